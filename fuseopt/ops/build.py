"""The vocabulary that definitions are written in: functions on expressions, beside operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Cat, Expr, Operand, Permute, Reduce, Reshape, Shape, Slice, apply
from fuseopt.ops.declare import convert


def exp(x: Expr) -> Expr:
    """e ** x."""
    return apply("exp", x)


def log(x: Expr) -> Expr:
    """Natural logarithm."""
    return apply("log", x)


def expm1(x: Expr) -> Expr:
    """e ** x - 1, exact for small x."""
    return apply("expm1", x)


def log1p(x: Expr) -> Expr:
    """log(1 + x), exact for small x."""
    return apply("log1p", x)


def sqrt(x: Expr) -> Expr:
    """Square root."""
    return apply("sqrt", x)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x)."""
    return apply("rsqrt", x)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def erf(x: Expr) -> Expr:
    """Error function."""
    return apply("erf", x)


def absolute(x: Expr) -> Expr:
    """Absolute value."""
    return apply("abs", x)


def floor(x: Expr) -> Expr:
    """The largest whole number not above x."""
    return apply("floor", x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e ** -x)."""
    return 1.0 / (1.0 + exp(-x))


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`."""
    return apply("where", condition, a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger; NaN where either is NaN."""
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller; NaN where either is NaN."""
    return apply("minimum", a, b)


def equal(a: Operand, b: Operand) -> Expr:
    """Elementwise a == b."""
    return apply("eq", a, b)


def differs(a: Operand, b: Operand) -> Expr:
    """Elementwise a != b."""
    return apply("ne", a, b)


def reduce(combine: str, x: Expr, over: Sequence[int]) -> Expr:
    """Reduce over dimensions, which stay with size 1."""
    over = tuple(sorted(d % x.rank for d in over if x.shape[d] != 1)) if x.rank else ()
    if not over:
        return x
    shape = [1 if d in over else s for d, s in enumerate(x.shape)]
    return x.arena.make(Reduce, shape, x.dtype, combine, x, over)


def total(x: Expr, over: Sequence[int]) -> Expr:
    """Sum over dimensions, which stay with size 1."""
    return reduce("sum", x, over)


def count(x: Expr, over: Sequence[int]) -> Size:
    """The number of elements that a reduction over these dimensions combines."""
    return dims.product(x.shape[d] for d in over)


def mean(x: Expr, over: Sequence[int]) -> Expr:
    """Arithmetic mean over dimensions, which stay with size 1."""
    return total(x, over) / x.arena.const(count(x, over), x.dtype)


def moments(x: Expr, over: Sequence[int], *, exact: bool) -> tuple[Expr, Expr, Expr]:
    """Mean, distances from it and the mean of their squares, over dimensions that stay with size 1.

    exact: correct the rounding of the mean by the mean of the distances (Chan, Golub & LeVeque
    1983), so that a constant row of float32 has distances of zero, as it has in PyTorch. Not worth
    its arithmetic where x was read in 16 bits.
    """
    number = x.arena.const(count(x, over), x.dtype)
    center = total(x, over) / number
    away = x - center
    if not exact:
        return center, away, total(away * away, over) / number
    drift = total(away, over) / number
    return center + drift, away - drift, total(away * away, over) / number - drift * drift


def as_bool(x: Expr) -> Expr:
    """Whether elements are not zero."""
    return x if x.dtype == torch.bool else differs(x, 0)


def reshape(x: Expr, shape: Shape) -> Expr:
    """The same elements under another shape."""
    if dims.same_shape(x.shape, shape):
        return x
    if isinstance(x, Reshape):
        return reshape(x.arg, shape)
    return x.arena.make(Reshape, shape, x.dtype, x)


def permute(x: Expr, order: Sequence[int]) -> Expr:
    """Reorder dimensions."""
    order = tuple(d % x.rank for d in order)
    if order == tuple(range(x.rank)):
        return x
    return x.arena.make(Permute, [x.shape[d] for d in order], x.dtype, x, order)


def slice_(x: Expr, dim: int, start: Size, length: Size, step: int = 1) -> Expr:
    """Every step-th element along a dimension, from `start`."""
    dim %= x.rank
    if start == 0 and step == 1 and dims.same(length, x.shape[dim]):
        return x
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return x.arena.make(Slice, shape, x.dtype, x, dim, start, step)


def select(x: Expr, dim: int, position: Size) -> Expr:
    """One element along a dimension, which disappears."""
    dim %= x.rank
    taken = slice_(x, dim, position, 1)
    return reshape(taken, (*x.shape[:dim], *x.shape[dim + 1 :]))


def cat(parts: Sequence[Expr], dim: int) -> Expr:
    """Tensors one after another along a dimension."""
    dim %= parts[0].rank
    parts = [p for p in parts if p.shape[dim] != 0]
    if len(parts) == 1:
        return parts[0]
    length: Size = 0
    for part in parts:
        length = dims.add(length, part.shape[dim])
    shape = (*parts[0].shape[:dim], length, *parts[0].shape[dim + 1 :])
    return parts[0].arena.make(Cat, shape, parts[0].dtype, tuple(parts), dim)


def dimensions(dim: Any, rank: int) -> tuple[int, ...]:
    """Return dimensions as non-negative numbers; None and () mean all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted(d % rank for d in given)) if rank else ()


def drop(x: Expr, over: Sequence[int], *, keepdim: bool) -> Expr:
    """Remove reduced dimensions unless they are to stay."""
    if keepdim:
        return x
    return reshape(x, tuple(s for d, s in enumerate(x.shape) if d not in over))


def index_along(x: Expr, dim: int, dtype: torch.dtype = torch.int64) -> Expr:
    """The coordinate along one dimension, shaped to broadcast against x."""
    shape = tuple(s if d == dim % x.rank else 1 for d, s in enumerate(x.shape))
    return convert(reshape(x.arena.iota(x.shape[dim]), shape), dtype)
