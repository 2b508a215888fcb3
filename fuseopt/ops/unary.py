"""Elementwise functions of one operand."""

from __future__ import annotations

import math

import torch

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Expr, apply
from fuseopt.ops.build import (
    absolute,
    as_bool,
    equal,
    log,
    maximum,
    minimum,
    where,
)
from fuseopt.ops.declare import Call, T, expand, op, sample
from fuseopt.ops.domains import BOOLS, INTEGERS, POSITIVE, X


def _unary(target: str, primitive: str, low: float = -4.0, high: float = 4.0) -> None:
    @op(target, samples=[sample(T((4, 6), low=low, high=high))])
    def define(call: Call, x: Expr) -> Expr:
        (x,) = call.floats(x)
        return apply(primitive, x)


for _name in (
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "atan",
    "erf",
    "erfc",
):
    _unary(f"aten.{_name}.default", _name)
for _name in ("log", "log2", "log10", "sqrt", "rsqrt"):
    _unary(f"aten.{_name}.default", _name, 0.05, 6.0)
_unary("aten.log1p.default", "log1p", -0.9, 6.0)
_unary("aten.tan.default", "tan", -1.4, 1.4)
_unary("aten.asin.default", "asin", -0.99, 0.99)
_unary("aten.acos.default", "acos", -0.99, 0.99)
_unary("aten.atanh.default", "atanh", -0.99, 0.99)
_unary("aten.acosh.default", "acosh", 1.01, 6.0)


def _rounding(target: str, primitive: str) -> None:
    @op(target, samples=[sample(X), sample(INTEGERS)])
    def define(call: Call, x: Expr) -> Expr:
        (x,) = call.promoted(x)
        return apply(primitive, x) if kind_of(x.dtype) == "f" else x


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(f"aten.{_name}.default", _name)


@op("aten.frac.default", samples=[sample(X)])
def frac(call: Call, x: Expr) -> Expr:
    """The part after the point, with the sign of x."""
    (x,) = call.promoted(x)
    return x - apply("trunc", x)


@op("aten.neg.default", samples=[sample(X), sample(INTEGERS)])
def neg(call: Call, x: Expr) -> Expr:
    """-x."""
    (x,) = call.promoted(x)
    return -x


@op("aten.abs.default", samples=[sample(X), sample(INTEGERS)])
def abs_(call: Call, x: Expr) -> Expr:
    """|x|; unsigned integers and bools are their own absolute value."""
    (x,) = call.promoted(x)
    return x if x.dtype in (torch.uint8, torch.bool) else absolute(x)


@op("aten.sign.default", "aten.sgn.default", samples=[sample(X), sample(INTEGERS)])
def sign(call: Call, x: Expr) -> Expr:
    """-1, 0 or 1; 0 for NaN."""
    (x,) = call.promoted(x)
    if x.dtype == torch.bool:
        return x
    one, zero = call.number(1, x.dtype), call.number(0, x.dtype)
    minus = call.number(-1, x.dtype) if x.dtype != torch.uint8 else zero
    return where(x > 0, one, where(x < 0, minus, zero))


@op("aten.square.default", samples=[sample(X), sample(INTEGERS)])
def square(call: Call, x: Expr) -> Expr:
    """x * x."""
    (x,) = call.promoted(x)
    return x * x


@op("aten.reciprocal.default", samples=[sample(POSITIVE)])
def reciprocal(call: Call, x: Expr) -> Expr:
    """1 / x."""
    (x,) = call.floats(x)
    return 1.0 / x


@op("aten.isnan.default", samples=[sample(X), sample(INTEGERS)])
def isnan(call: Call, x: Expr) -> Expr:
    """Whether x is not a number."""
    (x,) = call.promoted(x)
    return apply("is_nan", x) if kind_of(x.dtype) == "f" else _everywhere(call, x, False)


@op("aten.isinf.default", samples=[sample(X), sample(INTEGERS)])
def isinf(call: Call, x: Expr) -> Expr:
    """Whether x is an infinity."""
    (x,) = call.promoted(x)
    if kind_of(x.dtype) != "f":
        return _everywhere(call, x, False)
    return equal(absolute(x), math.inf)


@op("aten.isfinite.default", samples=[sample(X), sample(INTEGERS)])
def isfinite(call: Call, x: Expr) -> Expr:
    """Whether x is neither infinite nor NaN."""
    (x,) = call.promoted(x)
    if kind_of(x.dtype) != "f":
        return _everywhere(call, x, True)
    return absolute(x) < math.inf


def _everywhere(call: Call, x: Expr, value: bool) -> Expr:
    return expand(call.number(value, torch.bool), x.shape)


@op("aten.logical_not.default", samples=[sample(X), sample(BOOLS)])
def logical_not(call: Call, x: Expr) -> Expr:
    """Whether x is zero."""
    return ~as_bool(*call.promoted(x))


@op("aten.bitwise_not.default", samples=[sample(INTEGERS), sample(BOOLS)])
def bitwise_not(call: Call, x: Expr) -> Expr:
    """All bits turned over."""
    return ~x


@op("aten.nan_to_num.default", samples=[sample(X), sample(X, 0.5, 9.0, -9.0)])
def nan_to_num(
    call: Call,
    x: Expr,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Expr:
    """NaN and infinities replaced; infinities by the dtype's largest numbers by default."""
    if kind_of(x.dtype) != "f":
        return x
    largest = torch.finfo(x.dtype).max
    (x,) = call.promoted(x)
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    finite = where(equal(x, math.inf), high, where(equal(x, -math.inf), low, x))
    return where(apply("is_nan", x), 0.0 if nan is None else nan, finite)


@op("aten.logit.default", samples=[sample(T((4, 6), low=0.05, high=0.95)), sample(X, 1e-3)])
def logit(call: Call, x: Expr, eps: float | None = None) -> Expr:
    """log(x / (1 - x)), x clamped to [eps, 1 - eps] where eps is given."""
    (x,) = call.floats(x)
    if eps is not None:
        x = minimum(maximum(x, eps), 1.0 - eps)
    return log(x / (1.0 - x))
