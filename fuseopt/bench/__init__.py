"""Timing kernels and models on a GPU, next to PyTorch, its compiler and other libraries."""
