"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

from fuseopt.api import optimize
from fuseopt.errors import FuseOptError
from fuseopt.events import Log
from fuseopt.report.build import Report

__all__ = ["FuseOptError", "Log", "Report", "__version__", "optimize"]

__version__ = "0.1.0"
