"""Tensors made from numbers: constants, ranges, and masks by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Expr
from fuseopt.ops.build import equal, index_along, reshape, where
from fuseopt.ops.declare import (
    Call,
    Definition,
    NotExpressible,
    Sample,
    T,
    convert,
    expand,
    op,
    sample,
)

X = T((4, 6))


def create(*targets: str, samples: Sequence[Sample] = ()) -> Callable[[Definition], Definition]:
    """Declare an op that reads no memory."""
    return op(*targets, form="create", samples=samples)


def _filled(call: Call, value: Any) -> Expr:
    if isinstance(value, complex):
        raise NotExpressible("complex number")
    return expand(call.number(value), call.shape)


@create("aten.full.default", samples=[sample([3, 4], 2.5)])
def full(call: Call, size: Any, value: Any, **_: Any) -> Expr:
    """One number everywhere."""
    return _filled(call, value)


@create("aten.full_like.default", "aten.new_full.default", samples=[sample(X, 2.5)])
def full_like(call: Call, x: Expr, *rest: Any, **_: Any) -> Expr:
    """One number in the shape of another tensor, or in a given one."""
    return _filled(call, rest[-1])


@create(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    samples=[sample([3, 4])],
)
def zeros(call: Call, *_: Any, **__: Any) -> Expr:
    """Zero everywhere."""
    return _filled(call, 0)


@create(
    "aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", samples=[sample([3, 4])]
)
def ones(call: Call, *_: Any, **__: Any) -> Expr:
    """One everywhere."""
    return _filled(call, 1)


@create("aten.scalar_tensor.default", samples=[sample(2.5, dtype=torch.float32)])
def scalar_tensor(call: Call, value: Any, **_: Any) -> Expr:
    """A number as a tensor without dimensions."""
    return _filled(call, value)


@create("aten.fill.Scalar", "aten.fill.Tensor", samples=[sample(X, 2.5)])
def fill(call: Call, x: Expr, value: Any) -> Expr:
    """One number in the shape of another tensor."""
    if isinstance(value, Expr):
        return expand(reshape(convert(value, x.dtype), ()), x.shape)
    return _filled(call, value)


def _range(call: Call, start: Any, step: Any) -> Expr:
    if kind_of(call.dtype) == "f":
        # PyTorch accumulates in float64 or float32; products are exact for the sizes that occur.
        dtype = torch.float64 if call.dtype == torch.float64 else torch.float32
        steps = convert(call.arena.iota(call.shape[0]), dtype)
        return steps * float(step) + float(start)
    steps = convert(call.arena.iota(call.shape[0]), call.dtype)
    return steps * call.number(step) + call.number(start)


@create("aten.arange.default", samples=[sample(7), sample(5, dtype=torch.float32)])
def arange(call: Call, end: Any, **_: Any) -> Expr:
    """0, 1, 2, ..."""
    return _range(call, 0, 1)


@create("aten.arange.start", samples=[sample(2, 9)])
def arange_from(call: Call, start: Any, end: Any, **_: Any) -> Expr:
    """start, start + 1, ..."""
    return _range(call, start, 1)


@create("aten.arange.start_step", samples=[sample(1, 10, 3)])
def arange_step(call: Call, start: Any, end: Any, step: Any = 1, **_: Any) -> Expr:
    """start, start + step, ..."""
    return _range(call, start, step)


@create("aten.eye.default", "aten.eye.m", samples=[sample(4), sample(3, 5)])
def eye(call: Call, *_: Any, **__: Any) -> Expr:
    """One on the diagonal, zero elsewhere."""
    rows, columns = call.arena.iota(call.shape[0]), call.arena.iota(call.shape[1])
    return convert(equal(reshape(rows, (call.shape[0], 1)), columns), call.dtype)


def _triangle(target: str, upper: bool) -> None:
    @op(target, samples=[sample(X), sample(X, 1), sample(T((2, 4, 4)), -1)])
    def define(call: Call, x: Expr, diagonal: int = 0) -> Expr:
        away = index_along(x, -1) - index_along(x, -2)
        keep = away >= diagonal if upper else away <= diagonal
        return where(keep, x, x.arena.const(0, x.dtype))


_triangle("aten.triu.default", upper=True)
_triangle("aten.tril.default", upper=False)
