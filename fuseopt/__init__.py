"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

__version__ = "0.1.0"
