"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

from fuseopt.api import optimize
from fuseopt.errors import FuseOptError

__all__ = ["FuseOptError", "__version__", "optimize"]

__version__ = "0.1.0"
