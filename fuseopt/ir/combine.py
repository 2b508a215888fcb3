"""The ways a reduction combines values: identity, the same reduction in PyTorch, Triton's form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Combine:
    """One associative way of combining values of one dtype.

    identity: the value that changes nothing, by dtype kind ("f", "i", "b").
    function: the reduction on a PyTorch tensor over a tuple of dimensions, keeping them.
    step: the Triton expression that combines {0} and {1}.
    spelling: the Triton expression that reduces tile {0} along its axis {1}.
    """

    name: str
    identity: dict[str, Any]
    function: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    step: str
    spelling: str


def _product(x: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
    for dim in over:
        x = x.prod(dim, keepdim=True)
    return x


_LOW = {"f": -math.inf, "i": "min", "b": False}
_HIGH = {"f": math.inf, "i": "max", "b": True}

# "max" and "min" give NaN where an element is NaN, as PyTorch does; "max_number" does not, which
# is faster and enough where another term of the same row carries the NaN (softmax).
COMBINES: dict[str, Combine] = {
    c.name: c
    for c in (
        Combine(
            "sum",
            {"f": 0.0, "i": 0, "b": False},
            lambda x, d: x.sum(d, keepdim=True),
            "({0} + {1})",
            "tl.sum({0}, {1})",
        ),
        Combine(
            "prod",
            {"f": 1.0, "i": 1, "b": True},
            _product,
            "({0} * {1})",
            "tl.reduce({0}, {1}, _combine_prod)",
        ),
        Combine(
            "max",
            _LOW,
            lambda x, d: x.amax(d, keepdim=True),
            "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
            "tl.reduce({0}, {1}, _combine_max)",
        ),
        Combine(
            "min",
            _HIGH,
            lambda x, d: x.amin(d, keepdim=True),
            "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
            "tl.reduce({0}, {1}, _combine_min)",
        ),
        Combine(
            "max_number",
            _LOW,
            lambda x, d: x.amax(d, keepdim=True),
            "tl.maximum({0}, {1})",
            "tl.max({0}, {1})",
        ),
        Combine(
            "any",
            {"b": False},
            lambda x, d: x.any(d, keepdim=True),
            "({0} | {1})",
            "(tl.max({0}.to(tl.int32), {1}) != 0)",
        ),
        Combine(
            "all",
            {"b": True},
            lambda x, d: x.all(d, keepdim=True),
            "({0} & {1})",
            "(tl.min({0}.to(tl.int32), {1}) != 0)",
        ),
    )
}


def kind_of(dtype: torch.dtype) -> str:
    """Return "f", "i" or "b" for a real dtype."""
    if dtype == torch.bool:
        return "b"
    return "f" if dtype.is_floating_point else "i"


def identity_of(combine: str, dtype: torch.dtype) -> Any:
    """Return the number that leaves a reduction of this dtype unchanged."""
    value = COMBINES[combine].identity[kind_of(dtype)]
    if value in ("min", "max") and isinstance(value, str):
        return getattr(torch.iinfo(dtype), value)
    return value
