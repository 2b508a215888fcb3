"""Compiling, caching, launching and interpreting kernels."""
