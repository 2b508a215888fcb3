"""`tl.reduce` for the interpreter: whole arrays are combined, halves first, in log2(n) steps.

A combine function is elementwise, so it may be called on blocks as well as on numbers.

Imports triton: import it only while interpreting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import standard
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

# What numpy does in one call, on floats and on integers, for Triton's own sum, max and min.
# Compared by identity: hashing a jitted function reads the language, which is replaced just now.
_KNOWN = (
    (standard._sum_combine, np.add, np.add),
    (standard._elementwise_max, np.fmax, np.maximum),
    (standard._elementwise_min, np.fmin, np.minimum),
)


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:  # noqa: A002
    """Take `tl.reduce`'s arguments; `input` is a tensor or a tuple of tensors of one shape."""
    tensors = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    rank = tensors[0].handle.data.ndim
    axis, keep_dims = _plain(axis), _plain(keep_dims)
    if axis is None:
        arrays = [t.handle.data.reshape(-1) for t in tensors]
    else:
        arrays = [np.moveaxis(t.handle.data, axis, 0) for t in tensors]
    types = [t.dtype for t in tensors]
    known = [k for k in _KNOWN if k[0] is combine_fn]
    if known and types[0] != tl.bfloat16:
        combine = known[0][1] if types[0].is_floating() else known[0][2]
        results = [combine.reduce(arrays[0], axis=0, dtype=arrays[0].dtype)]
    else:
        results = _tree(arrays, types, combine_fn)
    if keep_dims and axis is None:
        results = [r.reshape((1,) * rank) for r in results]
    elif keep_dims:
        results = [np.expand_dims(r, axis) for r in results]
    made = tuple(_tensor(r, t) for r, t in zip(results, types, strict=True))
    return made if isinstance(input, (tuple, tl.tuple)) else made[0]


def _tree(arrays: list[Any], types: list[Any], combine: Any) -> list[Any]:
    length = len(arrays[0])
    while length > 1:
        half = length // 2
        low = [_tensor(a[:half], t) for a, t in zip(arrays, types, strict=True)]
        high = [_tensor(a[half : 2 * half], t) for a, t in zip(arrays, types, strict=True)]
        combined = combine(*low, *high)
        combined = tuple(combined) if isinstance(combined, (tuple, tl.tuple)) else (combined,)
        parts = [_array(c, a[:half]) for c, a in zip(combined, arrays, strict=True)]
        if length % 2:
            parts = [np.concatenate([p, a[-1:]]) for p, a in zip(parts, arrays, strict=True)]
        arrays, length = parts, math.ceil(length / 2)
    return [a[0] for a in arrays]


def _array(value: Any, like: Any) -> Any:
    data = value.handle.data if isinstance(value, tl.tensor) else np.asarray(_plain(value))
    return np.broadcast_to(data, like.shape).astype(like.dtype)


def _tensor(array: Any, dtype: Any) -> Any:
    array = np.asarray(array, dtype=_get_np_dtype(dtype))
    if array.ndim == 0:
        return tl.tensor(TensorHandle(array.reshape(1), dtype), dtype)
    return tl.tensor(TensorHandle(array, dtype), tl.block_type(dtype, list(array.shape)))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value
