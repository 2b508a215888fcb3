"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

from fuseopt.api import optimize
from fuseopt.errors import FuseOptError
from fuseopt.report.build import Report

__all__ = ["FuseOptError", "Report", "__version__", "optimize"]

__version__ = "0.1.0"
