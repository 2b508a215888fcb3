"""Spelling numbers, dtypes and sizes in Triton."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from fuseopt.errors import KernelError
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


_SIZE_FUNCTIONS = {
    "FloorDiv": "(({0}) // ({1}))",
    "CleanDiv": "(({0}) // ({1}))",
    "Mod": "(({0}) % ({1}))",
    "PythonMod": "(({0}) % ({1}))",
    "Max": "tl.maximum({0}, {1})",
    "Min": "tl.minimum({0}, {1})",
}


def size(value: Size) -> str:
    """Return a size as an expression over the kernel's size parameters."""
    return str(value) if isinstance(value, int) else f"({_size(value)})"


def _size(value: Any) -> str:
    """Spell a size expression out: Triton knows no powers, and `//` and `%` are sympy functions."""
    import sympy

    if value.is_Integer or value.is_Symbol:
        return str(value)
    over, under = sympy.fraction(sympy.together(value))
    if under != 1:
        return f"(({_size(over)}) // ({_size(under)}))"
    if value.is_Add:
        return " + ".join(map(_size, value.args))
    if value.is_Mul:
        return " * ".join(f"({_size(a)})" if a.is_Add else _size(a) for a in value.args)
    if value.is_Pow and value.exp.is_Integer:
        base = _size(value.base)
        return " * ".join([base if value.base.is_Symbol else f"({base})"] * int(value.exp))
    spelling = _SIZE_FUNCTIONS.get(type(value).__name__)
    if spelling is None:
        raise KernelError(f"the size {value} has no spelling in Triton")
    return functools.reduce(spelling.format, map(_size, value.args))


def times(text: str, factor: Size) -> str:
    """Return a product, without a factor of one."""
    if isinstance(factor, int) and factor == 1:
        return text
    return f"{text} * {size(factor)}"
