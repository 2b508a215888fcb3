"""Whether a call's arguments are what the kernel was compiled for, told in one line if not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuseopt.codegen.source import KernelSource, Param
from fuseopt.errors import KernelError

# One byte of integer or truth value may be read as another.
_BYTE = (torch.bool, torch.int8, torch.uint8)
ELEMENT_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "bf16": (torch.bfloat16,),
    "fp16": (torch.float16,),
    "fp32": (torch.float32,),
    "fp64": (torch.float64,),
    "fp8e4nv": (torch.float8_e4m3fn,),
    "fp8e5": (torch.float8_e5m2,),
    "i1": _BYTE,
    "i8": _BYTE,
    "u8": _BYTE,
    "i16": (torch.int16,),
    "i32": (torch.int32,),
    "i64": (torch.int64,),
    "u16": (torch.uint16,),
    "u32": (torch.uint32,),
    "u64": (torch.uint64,),
}
_INT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def check_arguments(source: KernelSource, args: Sequence[Any], device: torch.device) -> None:
    """Raise `KernelError` unless the arguments fit the kernel's parameters.

    A pointer takes a tensor on `device` of the parameter's dtype, or an address; an int or float
    parameter takes a number that its type holds. Parameters declared aligned are checked too.
    """
    if len(args) != len(source.params):
        names = ", ".join(p.name for p in source.params)
        raise KernelError(
            f"kernel {source.name} takes {len(source.params)} arguments ({names}), not {len(args)}"
        )
    for param, arg in zip(source.params, args, strict=True):
        problem = _problem(param, arg, device)
        if problem:
            raise KernelError(f"kernel {source.name}: argument {param.name} {problem}")


def _problem(param: Param, arg: Any, device: torch.device) -> str:
    if param.kind == "float":
        return "" if isinstance(arg, (int, float)) else f"must be a number, not {_kind(arg)}"
    if param.kind == "pointer" and isinstance(arg, torch.Tensor):
        return _tensor_problem(param, arg, device)
    if not isinstance(arg, int):
        wanted = "a tensor or an address" if param.kind == "pointer" else "a whole number"
        return f"must be {wanted}, not {_kind(arg)}"
    if param.kind == "int":
        half = 1 << (_INT_BITS[param.dtype] - 1)
        low, high = (0, 1) if param.dtype == "i1" else (-half, half - 1)
        if not low <= arg <= high:
            return f"is {arg}, which {param.dtype} does not hold"
    if param.aligned and arg % 16:
        return f"is {arg}, but the kernel was compiled for multiples of 16"
    return ""


def _tensor_problem(param: Param, tensor: torch.Tensor, device: torch.device) -> str:
    if tensor.device != device:
        return f"is on {tensor.device}, but the kernel runs on {device}"
    if tensor.dtype not in ELEMENT_DTYPES[param.dtype]:
        return f"is {tensor.dtype}, but the kernel was compiled for {param.signature}"
    if param.aligned and tensor.data_ptr() % 16:
        return "starts at an address that is no multiple of 16, but the kernel was compiled for one"
    return ""


def _kind(arg: Any) -> str:
    return type(arg).__name__
