"""Compiling, caching, launching and interpreting kernels.

Importing this package or its public modules does not load triton.
"""
