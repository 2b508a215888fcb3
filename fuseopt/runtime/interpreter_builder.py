"""Triton's interpreter with its numbers put right and its memory accesses watched.

Imports triton: import it only while interpreting.
"""

# ruff: noqa: D102
# Methods without a docstring keep Triton's name and meaning.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import (
    InterpreterBuilder,
    InterpreterOptions,
    TensorHandle,
    _get_np_dtype,
)

from fuseopt.codegen.source import Param
from fuseopt.runtime import float_formats

# The attribute of a pointer that tells which parameter it was computed from.
_BASE = "fuseopt.base"


class Memory:
    """The storages that a kernel may touch, each through pointers computed from its own tensor."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        storages = {name: t.untyped_storage() for name, t in tensors.items()}
        self._ranges = {name: (s.data_ptr(), s.nbytes()) for name, s in storages.items()}

    def check(self, what: str, pointers: TensorHandle, mask: Any) -> None:
        """Raise `IndexError` unless every access under the mask falls into the base's storage."""
        name = pointers.attr.get(_BASE)
        if name not in self._ranges:  # an address that was given as a number
            return
        addresses = pointers.data[np.broadcast_to(mask, pointers.data.shape)]
        if addresses.size == 0:
            return
        start, length = self._ranges[name]
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = int(addresses.min()) - start, int(addresses.max()) + size - start
        if low < 0 or high > length:
            raise IndexError(
                f"{what} of bytes {low} to {high} of {name}, whose storage has {length}"
            )


class Builder(InterpreterBuilder):
    """Performs the operations of one kernel; `memory` holds the tensors it was given."""

    def __init__(self, memory: Memory, *, debug: bool) -> None:
        super().__init__()
        self.memory = memory
        self.options = InterpreterOptions(debug=debug, sanitize_overflow=False)

    def argument(self, param: Param, value: Any) -> Any:
        """Return a call's argument as a scalar tensor of the parameter's type."""
        kind = tl.str_to_ty(param.signature, None)
        if isinstance(value, torch.Tensor):
            value = value.data_ptr()
        handle = TensorHandle(np.array([value], dtype=_get_np_dtype(kind)), kind)
        if param.kind == "pointer":
            handle.set_attr(_BASE, param.name)
        return tl.tensor(handle, kind)

    def get_bf16(self, value: float) -> TensorHandle:
        data = float_formats.encode(np.array([value]), "bf16", np.dtype(np.uint16))
        return TensorHandle(data, tl.bfloat16)

    def get_all_ones_value(self, type: Any) -> TensorHandle:  # noqa: A002
        if type.scalar != tl.uint8:
            return super().get_all_ones_value(type)
        return TensorHandle(np.full(1, 255, dtype=np.uint8), tl.uint8)  # numpy takes no -1 for it

    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        return _based(super().create_addptr(ptr, offset), ptr)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        return _based(super().create_splat(ret_ty, arg), arg)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        return _based(super().create_broadcast(arg, shape), arg)

    def create_expand_dims(self, arg: Any, axis: Any) -> Any:
        return _based(super().create_expand_dims(arg, axis), arg)

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: Any) -> Any:
        return _based(super().create_reshape(arg, shape, allow_reorder), arg)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        return _based(super().create_bitcast(src, dst_type), src)

    # What follows the mask of an access (cache hints, memory order) differs between Tritons and is
    # handed on as it came.

    def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any) -> Any:
        self.memory.check("load", ptrs, mask.data)
        return super().create_masked_load(ptrs, mask, *rest)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self.memory.check("store", ptrs, mask.data)
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, operation: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        self.memory.check("atomic update", ptr, mask.data)
        return super().create_atomic_rmw(operation, ptr, val, mask, *rest)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        values = float_formats.decode(src.data, source.name)
        data = float_formats.encode(values, target.name, _get_np_dtype(target))
        return TensorHandle(data, target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if rounding_mode in (None, ir.ROUNDING_MODE.RTNE):
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        kind = lhs.dtype.scalar
        if kind == tl.bfloat16:
            # float32 holds enough bits for +, -, * and / to round to bfloat16 as if exact.
            data = op(*(float_formats.decode(h.data, kind.name) for h in (lhs, rhs)))
            if data.dtype != np.bool_:
                data = float_formats.encode(data, kind.name, np.dtype(np.uint16))
        else:
            data = super().binary_op(lhs, rhs, op).data
        # Triton's interpreter gives comparisons the type of their operands.
        return TensorHandle(data, tl.int1 if data.dtype == np.bool_ else kind)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == ir.PROPAGATE_NAN.ALL:
            return super().create_clampf(arg, lo, hi, propagate_nans)
        return self.create_minnumf(self.create_maxnumf(arg, lo), hi)

    def create_erf(self, arg: Any) -> Any:
        flat = map(math.erf, arg.data.ravel().tolist())
        data = np.fromiter(flat, arg.data.dtype, arg.data.size).reshape(arg.data.shape)
        return TensorHandle(data, arg.dtype.scalar)

    def create_assert(self, condition: Any, message: str) -> None:
        # Not an assert statement: that would vanish under `python -O`.
        if not np.all(condition.data):
            raise AssertionError(message)


def _based(result: TensorHandle, origin: TensorHandle) -> TensorHandle:
    """Mark a handle as computed from the same parameter as another."""
    if _BASE in origin.attr:
        result.set_attr(_BASE, origin.attr[_BASE])
    return result
