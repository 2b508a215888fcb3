"""Elementwise arithmetic on two operands, and powers."""

from __future__ import annotations

from typing import Any

import torch

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Const, Expr, apply
from fuseopt.ops.build import (
    differs,
    equal,
    floor,
    rsqrt,
    sqrt,
    where,
)
from fuseopt.ops.declare import Call, NotExpressible, T, expand, op, sample
from fuseopt.ops.domains import BOOLS, DIVISORS, INTEGERS, POSITIVE, ROW, X


@op(
    "aten.add.Tensor",
    "aten.add.Scalar",
    samples=[
        sample(X, ROW),
        sample(X, ROW, alpha=2),
        sample(INTEGERS, DIVISORS),
        sample(BOOLS, BOOLS),
        sample(BOOLS, INTEGERS),
    ],
)
def add(call: Call, a: Expr, b: Any, alpha: Any = 1) -> Expr:
    """a + alpha * b; of two bools, whether either holds."""
    a, b = call.promoted(a, b)
    if a.dtype == torch.bool:
        return a | (b if alpha else call.number(False, torch.bool))
    return a + (b if alpha == 1 else b * alpha)


@op(
    "aten.sub.Tensor",
    "aten.sub.Scalar",
    samples=[sample(X, ROW), sample(X, ROW, alpha=0.5), sample(INTEGERS, DIVISORS)],
)
def sub(call: Call, a: Expr, b: Any, alpha: Any = 1) -> Expr:
    """a - alpha * b."""
    _check_subtraction(a, b)
    a, b = call.promoted(a, b)
    return a - (b if alpha == 1 else b * alpha)


@op("aten.rsub.Scalar", "aten.rsub.Tensor", samples=[sample(X, 2.5), sample(INTEGERS, 3)])
def rsub(call: Call, a: Expr, b: Any, alpha: Any = 1) -> Expr:
    """b - alpha * a."""
    _check_subtraction(a, b)
    a, b = call.promoted(a, b)
    return b - (a if alpha == 1 else a * alpha)


def _check_subtraction(*operands: Any) -> None:
    if any(isinstance(o, bool) or getattr(o, "dtype", None) == torch.bool for o in operands):
        raise NotExpressible("subtraction of or from a bool is an error in PyTorch")


@op(
    "aten.mul.Tensor",
    "aten.mul.Scalar",
    samples=[sample(X, ROW), sample(INTEGERS, DIVISORS), sample(BOOLS, BOOLS), sample(X, BOOLS)],
)
def mul(call: Call, a: Expr, b: Any) -> Expr:
    """a * b; of two bools, whether both hold."""
    a, b = call.promoted(a, b)
    return a & b if a.dtype == torch.bool else a * b


@op(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.true_divide.Tensor",
    samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)],
)
def div(call: Call, a: Expr, b: Any) -> Expr:
    """a / b in floating point."""
    a, b = call.floats(a, b)
    return a / b


@op(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    samples=[
        sample(X, T((6,), low=0.5), rounding_mode="floor"),
        sample(X, T((6,), low=0.5), rounding_mode="trunc"),
        sample(X, T((6,), low=0.5), rounding_mode=None),
        sample(INTEGERS, DIVISORS, rounding_mode="floor"),
        sample(INTEGERS, DIVISORS, rounding_mode="trunc"),
    ],
)
def div_mode(call: Call, a: Expr, b: Any, rounding_mode: str | None) -> Expr:
    """a / b, rounded down or towards zero."""
    if rounding_mode is None:
        return div(call, a, b)
    a, b = call.promoted(a, b)
    if rounding_mode == "floor":
        return _floor_divide(a, b)
    if kind_of(a.dtype) == "f":
        return apply("trunc", a / b)
    return apply("trunc_div", a, _divisor(b))


@op("aten.floor_divide.default", samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)])
def floor_divide(call: Call, a: Expr, b: Any) -> Expr:
    """a / b rounded down."""
    return _floor_divide(*call.promoted(a, b))


def _floor_divide(a: Expr, b: Expr) -> Expr:
    if kind_of(a.dtype) == "f":
        # The quotient of a - fmod(a, b) is whole but for rounding, which the last steps undo.
        rest = apply("fmod", a, b)
        quotient = (a - rest) / b
        quotient = where(differs(rest, 0.0) & ((b < 0.0) ^ (rest < 0.0)), quotient - 1.0, quotient)
        whole = floor(quotient)
        whole = where(quotient - whole > 0.5, whole + 1.0, whole)
        whole = where(differs(quotient, 0.0), whole, apply("copysign", quotient, a / b))
        return where(equal(b, 0.0), a / b, whole)
    if kind_of(a.dtype) != "i":
        raise NotExpressible("floor division of bools")
    quotient = apply("trunc_div", a, _divisor(b))
    down = differs(apply("rem", a, b), 0) & ((a < 0) ^ (b < 0))
    return where(down, quotient - 1, quotient)


@op(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)],
)
def remainder(call: Call, a: Expr, b: Any) -> Expr:
    """a modulo b, with the sign of b."""
    a, b = call.held(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("remainder of bools")
    zero = call.number(0, a.dtype)
    rest = apply("fmod", a, b) if kind_of(a.dtype) == "f" else apply("rem", a, _divisor(b))
    return where(differs(rest, zero) & ((b < zero) ^ (rest < zero)), rest + b, rest)


@op(
    "aten.fmod.Tensor",
    "aten.fmod.Scalar",
    samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)],
)
def fmod(call: Call, a: Expr, b: Any) -> Expr:
    """a modulo b, with the sign of a."""
    a, b = call.held(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("fmod of bools")
    return apply("fmod", a, b) if kind_of(a.dtype) == "f" else apply("rem", a, _divisor(b))


def _divisor(b: Expr) -> Expr:
    """An integer divisor."""
    if isinstance(b, Const) and b.value == 0:
        raise NotExpressible("integer division by zero")
    return b


@op(
    "aten.pow.Tensor_Scalar",
    samples=[
        *(sample(POSITIVE, e) for e in (2, 3, 0.5, -0.5, -1, -2, 0, 1, 1.7)),
        sample(X, 2),
        sample(INTEGERS, 3),
        sample(INTEGERS, 0),
    ],
)
def pow_scalar(call: Call, x: Expr, exponent: Any) -> Expr:
    """x ** number, with PyTorch's shortcuts for small exponents."""
    if not isinstance(exponent, (int, float)):
        raise NotExpressible("exponent is not a plain number")
    (x,) = call.as_dtype(_pow_dtype(x, exponent), x)
    if kind_of(x.dtype) == "f":
        return _float_power(x, float(exponent))
    if exponent < 0 or exponent > 8 or kind_of(x.dtype) != "i":
        raise NotExpressible(f"integer power {exponent}")
    result: Expr = expand(call.number(1, x.dtype), x.shape)
    for _ in range(int(exponent)):
        result = result * x
    return result


def _pow_dtype(x: Expr, exponent: Any) -> torch.dtype:
    if kind_of(x.dtype) == "f":
        return torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.get_default_dtype() if isinstance(exponent, float) else x.dtype


def _float_power(x: Expr, exponent: float) -> Expr:
    match exponent:
        case 0.0:
            return expand(x.arena.const(1.0, x.dtype), x.shape)
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case 0.5:
            return sqrt(x)
        case -0.5:
            return rsqrt(x)
        case -1.0:
            return 1.0 / x
        case -2.0:
            return 1.0 / (x * x)
        case _:
            return apply("pow", x, exponent)


@op("aten.pow.Tensor_Tensor", samples=[sample(POSITIVE, ROW)])
def pow_tensor(call: Call, x: Expr, exponent: Expr) -> Expr:
    """x ** exponent, elementwise, in floating point."""
    x, exponent = call.promoted(x, exponent)
    if kind_of(x.dtype) != "f":
        raise NotExpressible("integer power of a tensor")
    return apply("pow", x, exponent)


@op("aten.pow.Scalar", samples=[sample(2.0, X)])
def pow_of_number(call: Call, base: Any, exponent: Expr) -> Expr:
    """number ** exponent, in floating point."""
    given, exponent = call.promoted(base, exponent)
    if kind_of(exponent.dtype) != "f":
        raise NotExpressible("integer power of a number")
    return apply("exp2", exponent) if base == 2 else apply("pow", given, exponent)
