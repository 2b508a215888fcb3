"""Comparisons, extrema, logic and shifts of two operands."""

from __future__ import annotations

import math
from typing import Any

import torch

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Const, Expr, apply
from fuseopt.ops.build import (
    absolute,
    as_bool,
    equal,
    exp,
    log,
    log1p,
    maximum,
    where,
)
from fuseopt.ops.declare import Call, NotExpressible, T, op, sample
from fuseopt.ops.domains import BOOLS, DIVISORS, INTEGERS, ROW, X


def _binary(target: str, primitive: str) -> None:
    @op(target, samples=[sample(X, ROW)])
    def define(call: Call, a: Expr, b: Any) -> Expr:
        a, b = call.floats(a, b)
        return apply(primitive, a, b)


_binary("aten.atan2.default", "atan2")
_binary("aten.copysign.Tensor", "copysign")


def _extremum(target: str, primitive: str) -> None:
    @op(target, samples=[sample(X, ROW), sample(INTEGERS, DIVISORS), sample(BOOLS, BOOLS)])
    def define(call: Call, a: Expr, b: Expr) -> Expr:
        a, b = call.promoted(a, b)
        if a.dtype == torch.bool:
            return a | b if primitive in ("maximum", "fmax") else a & b
        if kind_of(a.dtype) == "i":
            return apply({"fmax": "maximum", "fmin": "minimum"}.get(primitive, primitive), a, b)
        return apply(primitive, a, b)


for _target, _primitive in (
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("fmax", "fmax"),
    ("fmin", "fmin"),
):
    _extremum(f"aten.{_target}.default", _primitive)
_extremum("aten.max.other", "maximum")
_extremum("aten.min.other", "minimum")


def _comparison(name: str) -> None:
    targets = [f"aten.{name}.Tensor", f"aten.{name}.Scalar"]

    @op(*targets, samples=[sample(X, ROW), sample(INTEGERS, DIVISORS), sample(BOOLS, BOOLS)])
    def define(call: Call, a: Expr, b: Any) -> Expr:
        return apply(name, *call.held(a, b))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _logical(name: str, primitive: str) -> None:
    @op(f"aten.logical_{name}.default", samples=[sample(X, ROW), sample(BOOLS, INTEGERS)])
    def define(call: Call, a: Expr, b: Expr) -> Expr:
        return apply(primitive, as_bool(a), as_bool(b))


def _bitwise(name: str, primitive: str) -> None:
    targets = [f"aten.bitwise_{name}.{o}" for o in ("Tensor", "Scalar")]
    targets += [f"aten.__{name}__.{o}" for o in ("Tensor", "Scalar")]

    @op(*targets, samples=[sample(INTEGERS, DIVISORS), sample(BOOLS, BOOLS)])
    def define(call: Call, a: Expr, b: Any) -> Expr:
        a, b = call.promoted(a, b)
        return apply(primitive, a, b)


for _name in ("and", "or", "xor"):
    _logical(_name, _name)
    _bitwise(_name, _name)


def _shift(name: str, primitive: str) -> None:
    targets = [f"aten.bitwise_{name}_shift.{o}" for o in ("Tensor", "Tensor_Scalar")]
    targets += [f"aten.__{name[0]}shift__.{o}" for o in ("Tensor", "Scalar")]

    @op(*targets, samples=[sample(INTEGERS, T((6,), "i", -2, 70)), sample(INTEGERS, 3)])
    def define(call: Call, a: Expr, b: Any) -> Expr:
        a, b = call.promoted(a, b)
        if kind_of(a.dtype) != "i":
            raise NotExpressible("shift of values that are not integers")
        bits = torch.iinfo(a.dtype).bits
        if isinstance(b, Const) and isinstance(b.value, int) and 0 <= b.value < bits:
            return apply(primitive, a, b)
        # By more than there are bits, or by less than none, the sign is left; on a device anything.
        inside = (b >= 0) & (b < bits)
        shifted = apply(primitive, a, where(inside, b, 0))
        signed = name == "right" and a.dtype != torch.uint8
        return where(inside, shifted, apply(primitive, a, bits - 1) if signed else 0)


_shift("left", "shift_left")
_shift("right", "shift_right")


@op("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", samples=[sample(X, T((6,), low=0.1))])
def xlogy(call: Call, a: Expr, b: Any) -> Expr:
    """a * log(b), and 0 where a is 0 unless b is NaN."""
    a, b = call.floats(a, b)
    product = where(equal(a, 0.0), 0.0, a * log(b))
    return where(apply("is_nan", b), b, product)


@op("aten.logaddexp.default", samples=[sample(X, ROW)])
def logaddexp(call: Call, a: Expr, b: Expr) -> Expr:
    """log(e ** a + e ** b) without overflow."""
    a, b = call.promoted(a, b)
    high = maximum(a, b)
    apart = high + log1p(exp(-absolute(a - b)))
    return where(equal(absolute(a), math.inf) & equal(a, b), a, apart)
