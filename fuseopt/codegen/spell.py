"""Spelling numbers, dtypes and sizes in Triton."""

from __future__ import annotations

import math
from typing import Any

import torch

from fuseopt.ir.dims import Size

TRITON_TYPES = {
    torch.bool: "int1",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float8_e4m3fn: "float8e4nv",
}
POINTER_TYPES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
}


def triton_type(dtype: torch.dtype) -> str:
    """Return a dtype's name in Triton's language: "tl.float32"."""
    return f"tl.{TRITON_TYPES[dtype]}"


def number(value: Any, dtype: torch.dtype) -> str:
    """Return a Python number as a literal; integers wrap around to the dtype's range.

    Triton would widen an operation with an integer that its other operand's type cannot hold.
    """
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        limits = torch.iinfo(dtype)
        return str((value - limits.min) % (limits.max - limits.min + 1) + limits.min)
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


def size(value: Size) -> str:
    """Return a size as an expression over the kernel's size parameters."""
    if isinstance(value, int):
        return str(value)
    return f"({str(value).replace('/', '//')})"


def times(text: str, factor: Size) -> str:
    """Return a product, without a factor of one."""
    if isinstance(factor, int) and factor == 1:
        return text
    return f"{text} * {size(factor)}"
