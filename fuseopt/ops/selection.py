"""Selection, clamping and arithmetic of three operands."""

from __future__ import annotations

from typing import Any

import torch

from fuseopt.ir.expr import Expr
from fuseopt.ops.build import (
    absolute,
    as_bool,
    equal,
    maximum,
    minimum,
    where,
)
from fuseopt.ops.declare import Call, NotExpressible, T, compute_dtype, convert, op, sample
from fuseopt.ops.domains import BOOLS, DIVISORS, INTEGERS, ROW, X


@op(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    samples=[sample(BOOLS, X, ROW), sample(BOOLS, INTEGERS, DIVISORS)],
)
def where_(call: Call, condition: Expr, a: Any, b: Any) -> Expr:
    """`a` where the condition holds, else `b`."""
    return where(as_bool(condition), *call.held(a, b))


@op("aten.where.Scalar", samples=[sample(BOOLS, 1.0, 0.0), sample(BOOLS, 1, 0)])
def where_numbers(call: Call, condition: Expr, a: Any, b: Any) -> Expr:
    """One of two numbers."""
    return where(as_bool(condition), *call.as_dtype(compute_dtype(call.dtype), a, b))


@op("aten.heaviside.default", samples=[sample(X, ROW)])
def heaviside(call: Call, x: Expr, at_zero: Expr) -> Expr:
    """0 below zero (and for NaN), 1 above, a given value at zero."""
    x, at_zero = call.promoted(x, at_zero)
    if x.dtype == torch.bool:
        raise NotExpressible("heaviside of bools")
    one, zero = call.number(1, x.dtype), call.number(0, x.dtype)
    return where(equal(x, 0), at_zero, where(x > 0, one, zero))


@op(
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    samples=[sample(X, BOOLS, -1.5), sample(INTEGERS, BOOLS, 7)],
)
def masked_fill(call: Call, x: Expr, mask: Expr, value: Any) -> Expr:
    """x with a number in place of the elements under the mask."""
    if not isinstance(value, Expr):
        value = call.number(value, x.dtype)
    wide = compute_dtype(x.dtype)
    value = convert(convert(value, x.dtype, explicit=True), wide)
    return where(mask, value, convert(x, wide))


@op(
    "aten.clamp.default",
    "aten.clip.default",
    "aten.clamp.Tensor",
    "aten.clip.Tensor",
    samples=[sample(X, -1.0, 1.5), sample(X, None, 1.0), sample(X, -1.0), sample(INTEGERS, -2, 3)],
)
def clamp(call: Call, x: Expr, low: Any = None, high: Any = None) -> Expr:
    """x kept between bounds; NaN stays NaN, and the upper bound wins where they cross."""
    given = [v for v in (x, low, high) if v is not None]
    operands = iter(call.held(*given))
    x = next(operands)
    if x.dtype == torch.bool:
        raise NotExpressible("clamp of bools")
    if low is not None:
        x = maximum(x, next(operands))
    if high is not None:
        x = minimum(x, next(operands))
    return x


@op("aten.clamp_min.default", "aten.clamp_min.Tensor", samples=[sample(X, -1.0)])
def clamp_min(call: Call, x: Expr, low: Any) -> Expr:
    """x, but not below a bound."""
    return clamp(call, x, low)


@op("aten.clamp_max.default", "aten.clamp_max.Tensor", samples=[sample(X, 1.0)])
def clamp_max(call: Call, x: Expr, high: Any) -> Expr:
    """x, but not above a bound."""
    return clamp(call, x, None, high)


@op("aten.addcmul.default", samples=[sample(X, X, ROW), sample(X, X, ROW, value=0.5)])
def addcmul(call: Call, x: Expr, a: Expr, b: Expr, value: Any = 1) -> Expr:
    """x + value * a * b."""
    x, a, b = call.promoted(x, a, b)
    return x + (a * b if value == 1 else a * value * b)


@op("aten.addcdiv.default", samples=[sample(X, X, T((6,), low=0.5), value=0.5)])
def addcdiv(call: Call, x: Expr, a: Expr, b: Expr, value: Any = 1) -> Expr:
    """x + value * a / b."""
    x, a, b = call.floats(x, a, b)
    return x + (a if value == 1 else a * value) / b


@op("aten.lerp.Scalar", "aten.lerp.Tensor", samples=[sample(X, ROW, 0.3), sample(X, ROW, 0.7)])
def lerp(call: Call, a: Expr, b: Expr, weight: Any) -> Expr:
    """a + weight * (b - a), from the nearer end."""
    a, b, weight = call.promoted(a, b, weight)
    near = absolute(weight) < 0.5
    return where(near, a + weight * (b - a), b - (b - a) * (1.0 - weight))
