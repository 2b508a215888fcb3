"""Reductions and softmax, over any dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fuseopt.ir.expr import Cast, Expr
from fuseopt.ops.build import (
    absolute,
    as_bool,
    count,
    dimensions,
    drop,
    equal,
    exp,
    log,
    mean,
    moments,
    reduce,
    sqrt,
    total,
    where,
)
from fuseopt.ops.declare import Call, NotExpressible, T, compute_dtype, convert, op, sample

X = T((4, 6))
CUBE = T((3, 4, 6))
INTEGERS = T((4, 6), "i", -9, 9)
BOOLS = T((4, 6), "b")
Dim = int | Sequence[int] | None


@op(
    "aten.sum.default",
    "aten.sum.dim_IntList",
    form="reduce",
    samples=[
        sample(X),
        sample(CUBE, [1], True),
        sample(CUBE, [0, 2]),
        sample(INTEGERS, [1]),
        sample(BOOLS, [1]),
        sample(X, [1], dtype=torch.float64),
    ],
)
def sum_(call: Call, x: Expr, dim: Dim = None, keepdim: bool = False, **_: Any) -> Expr:
    """Sum over dimensions, in the output's dtype (float32 for 16-bit floats)."""
    over = dimensions(dim, x.rank)
    x = convert(x, compute_dtype(call.dtype))
    return drop(total(x, over), over, keepdim=keepdim)


@op(
    "aten.mean.default",
    "aten.mean.dim",
    form="reduce",
    samples=[sample(X), sample(CUBE, [1], True), sample(CUBE, [0, 2])],
)
def mean_(call: Call, x: Expr, dim: Dim = None, keepdim: bool = False, **_: Any) -> Expr:
    """Arithmetic mean over dimensions."""
    over = dimensions(dim, x.rank)
    x = convert(x, compute_dtype(call.dtype))
    return drop(mean(x, over), over, keepdim=keepdim)


@op(
    "aten.prod.default",
    "aten.prod.dim_int",
    form="reduce",
    samples=[sample(T((4, 6), low=0.5, high=1.5)), sample(INTEGERS, 1)],
)
def prod(call: Call, x: Expr, dim: Dim = None, keepdim: bool = False, **_: Any) -> Expr:
    """Product over dimensions."""
    over = dimensions(dim, x.rank)
    x = convert(x, compute_dtype(call.dtype))
    return drop(reduce("prod", x, over), over, keepdim=keepdim)


def _extremum(name: str, *targets: str) -> None:
    @op(*targets, form="reduce", samples=[sample(CUBE), sample(INTEGERS)])
    def define(call: Call, x: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
        over = dimensions(dim, x.rank)
        if x.dtype == torch.bool:
            raise NotExpressible(f"{name} of bools")
        (x,) = call.promoted(x)
        return drop(reduce(name, x, over), over, keepdim=keepdim)


_extremum("max", "aten.max.default", "aten.amax.default")
_extremum("min", "aten.min.default", "aten.amin.default")


def _truth(name: str) -> None:
    targets = [f"aten.{name}.{o}" for o in ("default", "dim", "dims")]

    @op(*targets, form="reduce", samples=[sample(BOOLS), sample(X)])
    def define(call: Call, x: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
        over = dimensions(dim, x.rank)
        return drop(reduce(name, as_bool(x), over), over, keepdim=keepdim)


_truth("any")
_truth("all")


def _variance(call: Call, x: Expr, over: Sequence[int], correction: float) -> tuple[Expr, Expr]:
    """Variance with n - correction below, and the mean."""
    (wide,) = call.floats(x)
    source = x.arg if isinstance(x, Cast) else x
    center, _, spread = moments(wide, over, exact=wide.dtype == source.dtype)
    number = count(x, over)
    if correction == 0:
        return spread, center
    if isinstance(number, int):
        below = max(number - correction, 0)
        factor = float(number) / below if below else math.inf
        return spread * factor, center
    if correction != int(correction):
        raise NotExpressible("fractional correction of a symbolic size")
    fewer = wide.arena.const(number - int(correction), wide.dtype)
    return spread * (wide.arena.const(number, wide.dtype) / fewer), center


@op(
    "aten.var.correction",
    "aten.std.correction",
    loose=True,
    form="reduce",
    samples=[
        sample(CUBE, [2]),
        sample(CUBE, [0, 2], correction=0, keepdim=True),
        sample(CUBE, None, correction=2),
    ],
)
def var(
    call: Call, x: Expr, dim: Dim = None, *, correction: Any = None, keepdim: bool = False
) -> Expr:
    """Variance or standard deviation over dimensions, in two passes."""
    over = dimensions(dim, x.rank)
    spread = _variance(call, x, over, 1.0 if correction is None else float(correction))[0]
    spread = sqrt(spread) if ".std." in call.target else spread
    return drop(spread, over, keepdim=keepdim)


@op(
    "aten.var.default",
    "aten.var.dim",
    "aten.std.default",
    "aten.std.dim",
    loose=True,
    form="reduce",
    samples=[sample(CUBE)],
)
def var_unbiased(call: Call, x: Expr, *rest: Any, **named: Any) -> Expr:
    """Variance or standard deviation with the older signature (dim, unbiased, keepdim)."""
    dim, correction, keepdim = _older_signature(call, rest, named)
    return var(call, x, dim, correction=correction, keepdim=keepdim)


def _older_signature(
    call: Call, rest: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Dim, float, bool]:
    """Dimensions, correction and keepdim of a call with (unbiased) or (dim, unbiased, keepdim)."""
    with_dim = call.target.endswith(".dim")
    dim = rest[0] if with_dim else None
    rest = rest[1:] if with_dim else rest
    unbiased = named.get("unbiased", rest[0] if rest else True)
    keepdim = named.get("keepdim", rest[1] if len(rest) > 1 else False)
    return dim, 1.0 if unbiased else 0.0, keepdim


@op(
    "aten.var_mean.correction",
    "aten.std_mean.correction",
    loose=True,
    form="reduce",
    samples=[sample(CUBE, [2]), sample(CUBE, [0, 2], correction=0, keepdim=True)],
)
def var_mean(
    call: Call, x: Expr, dim: Dim = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Expr, Expr]:
    """Variance (or standard deviation) and mean over dimensions."""
    over = dimensions(dim, x.rank)
    wanted = 1.0 if correction is None else float(correction)
    spread, center = _variance(call, x, over, wanted)
    spread = sqrt(spread) if ".std_" in call.target else spread
    return drop(spread, over, keepdim=keepdim), drop(center, over, keepdim=keepdim)


@op(
    "aten.var_mean.default",
    "aten.var_mean.dim",
    "aten.std_mean.default",
    "aten.std_mean.dim",
    loose=True,
    form="reduce",
    samples=[sample(CUBE), sample(CUBE, [2]), sample(CUBE, [0, 2], False, True)],
)
def var_mean_unbiased(call: Call, x: Expr, *rest: Any, **named: Any) -> tuple[Expr, Expr]:
    """Variance (or standard deviation) and mean with the older signature."""
    dim, correction, keepdim = _older_signature(call, rest, named)
    return var_mean(call, x, dim, correction=correction, keepdim=keepdim)


@op(
    "aten.linalg_vector_norm.default",
    form="reduce",
    samples=[sample(CUBE, 2, [2], True), sample(CUBE, 1, [1]), sample(CUBE, math.inf, [2])],
)
def vector_norm(
    call: Call, x: Expr, order: Any = 2, dim: Dim = None, keepdim: bool = False, **_: Any
) -> Expr:
    """The 1-, 2- or infinity-norm over dimensions."""
    over = dimensions(dim, x.rank)
    x = convert(x, compute_dtype(call.dtype))
    return drop(_norm(x, order, over), over, keepdim=keepdim)


@op("aten.norm.ScalarOpt_dim", form="reduce", samples=[sample(CUBE, 2, [2], True)])
def norm(call: Call, x: Expr, order: Any, dim: Dim, keepdim: bool = False) -> Expr:
    """The norm over dimensions, older signature."""
    return vector_norm(call, x, 2 if order is None else order, dim, keepdim)


def _norm(x: Expr, order: Any, over: Sequence[int]) -> Expr:
    if order == 2:
        return sqrt(total(x * x, over))
    if order == 1:
        return total(absolute(x), over)
    if order == math.inf:
        return reduce("max", absolute(x), over)
    raise NotExpressible(f"norm of order {order}")


@op("aten.logsumexp.default", form="reduce", samples=[sample(CUBE, [2], True), sample(CUBE, [1])])
def logsumexp(call: Call, x: Expr, dim: Dim, keepdim: bool = False) -> Expr:
    """log(sum(e ** x)) over dimensions without overflow."""
    over = dimensions(dim, x.rank)
    (x,) = call.floats(x)
    high = reduce("max", x, over)
    # An infinite maximum would give inf - inf.
    shift = where(equal(absolute(high), math.inf), 0.0, high)
    return drop(log(total(exp(x - shift), over)) + shift, over, keepdim=keepdim)


def _softmax(x: Expr, dim: int) -> Expr:
    # A NaN in the row reaches the sum by itself, so the maximum may ignore it.
    grown = exp(x - reduce("max_number", x, (dim,)))
    return grown / total(grown, (dim,))


def _log_softmax(x: Expr, dim: int) -> Expr:
    shifted = x - reduce("max_number", x, (dim,))
    return shifted - log(total(exp(shifted), (dim,)))


@op(
    "aten.softmax.int",
    form="reduce",
    samples=[sample(X, -1), sample(CUBE, 1), sample(X, 1, torch.float64)],
)
def softmax(call: Call, x: Expr, dim: int, dtype: torch.dtype | None = None) -> Expr:
    """e ** x over the sum of e ** x along a dimension, computed in the output's dtype."""
    return _softmax(convert(x, compute_dtype(call.dtype)), dim)


@op("aten._softmax.default", form="reduce", samples=[sample(X, -1, False), sample(CUBE, 1, False)])
def softmax_dispatched(call: Call, x: Expr, dim: int, half_to_float: bool) -> Expr:
    """Softmax as it is called after dispatch."""
    return _softmax(convert(x, compute_dtype(call.dtype)), dim)


@op("aten._safe_softmax.default", form="reduce", samples=[sample(X, -1)])
def safe_softmax(call: Call, x: Expr, dim: int, dtype: torch.dtype | None = None) -> Expr:
    """Softmax with zeros where a whole row is -inf."""
    x = convert(x, compute_dtype(call.dtype))
    masked = reduce("all", equal(x, -math.inf), (dim,))
    return where(masked, 0.0, _softmax(x, dim))


@op("aten.log_softmax.int", form="reduce", samples=[sample(X, -1), sample(CUBE, 1)])
def log_softmax(call: Call, x: Expr, dim: int, dtype: torch.dtype | None = None) -> Expr:
    """The logarithm of softmax."""
    return _log_softmax(convert(x, compute_dtype(call.dtype)), dim)


@op(
    "aten._log_softmax.default",
    form="reduce",
    samples=[sample(X, -1, False), sample(CUBE, 1, False)],
)
def log_softmax_dispatched(call: Call, x: Expr, dim: int, half_to_float: bool) -> Expr:
    """Log-softmax as it is called after dispatch."""
    return _log_softmax(convert(x, compute_dtype(call.dtype)), dim)


@op(
    "aten._softmax_backward_data.default",
    form="reduce",
    samples=[sample(X, T((4, 6), low=0.0, high=0.3), -1, torch.float32)],
)
def softmax_backward(call: Call, grad: Expr, y: Expr, dim: int, _: torch.dtype) -> Expr:
    """Gradient of softmax from its output y."""
    grad, y = call.floats(grad, y)
    # Not grad * y - y * total: where most of y is in one place the two terms all but cancel.
    return y * (grad - total(grad * y, (dim,)))


@op(
    "aten._log_softmax_backward_data.default",
    form="reduce",
    samples=[sample(X, T((4, 6), low=-6.0, high=-0.1), -1, torch.float32)],
)
def log_softmax_backward(call: Call, grad: Expr, y: Expr, dim: int, _: torch.dtype) -> Expr:
    """Gradient of log-softmax from its output y."""
    grad, y = call.floats(grad, y)
    return grad - exp(y) * total(grad, (dim,))


@op(
    "aten.count_nonzero.default",
    "aten.count_nonzero.dim_IntList",
    form="reduce",
    samples=[sample(INTEGERS, [1]), sample(X, 1), sample(BOOLS)],
)
def count_nonzero(call: Call, x: Expr, dim: Dim = None) -> Expr:
    """How many elements are not zero."""
    over = dimensions(dim, x.rank)
    return drop(total(convert(as_bool(x), torch.int64), over), over, keepdim=False)
