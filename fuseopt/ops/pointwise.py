"""Elementwise arithmetic, comparisons, logic, conversions and selection."""

from __future__ import annotations

import math
from typing import Any

import torch

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Expr, apply
from fuseopt.ops.build import (
    absolute,
    as_bool,
    differs,
    equal,
    exp,
    floor,
    log,
    log1p,
    maximum,
    minimum,
    rsqrt,
    sqrt,
    where,
)
from fuseopt.ops.declare import (
    Call,
    NotExpressible,
    T,
    compute_dtype,
    convert,
    expand,
    op,
    sample,
)

X = T((4, 6))
ROW = T((6,))
POSITIVE = T((4, 6), low=0.05, high=6.0)
INTEGERS = T((4, 6), "i", -9, 9)
DIVISORS = T((6,), "i", 1, 9)
BOOLS = T((4, 6), "b")


# --- one operand -----------------------------------------------------------------------------


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


# --- two operands ----------------------------------------------------------------------------


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
    a, b = call.promoted(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("bool subtraction is an error in PyTorch")
    return a - (b if alpha == 1 else b * alpha)


@op("aten.rsub.Scalar", "aten.rsub.Tensor", samples=[sample(X, 2.5), sample(INTEGERS, 3)])
def rsub(call: Call, a: Expr, b: Any, alpha: Any = 1) -> Expr:
    """b - alpha * a."""
    a, b = call.promoted(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("bool subtraction is an error in PyTorch")
    return b - (a if alpha == 1 else a * alpha)


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
    return apply("trunc_div", a, b)


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
    quotient = apply("trunc_div", a, b)
    down = differs(apply("rem", a, b), 0) & ((a < 0) ^ (b < 0))
    return where(down, quotient - 1, quotient)


@op(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)],
)
def remainder(call: Call, a: Expr, b: Any) -> Expr:
    """a modulo b, with the sign of b."""
    a, b = call.promoted(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("remainder of bools")
    zero = call.number(0, a.dtype)
    rest = apply("fmod" if kind_of(a.dtype) == "f" else "rem", a, b)
    return where(differs(rest, zero) & ((b < zero) ^ (rest < zero)), rest + b, rest)


@op(
    "aten.fmod.Tensor",
    "aten.fmod.Scalar",
    samples=[sample(X, T((6,), low=0.5)), sample(INTEGERS, DIVISORS)],
)
def fmod(call: Call, a: Expr, b: Any) -> Expr:
    """a modulo b, with the sign of a."""
    a, b = call.promoted(a, b)
    if a.dtype == torch.bool:
        raise NotExpressible("fmod of bools")
    return apply("fmod" if kind_of(a.dtype) == "f" else "rem", a, b)


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
        a, b = call.promoted(a, b)
        return apply(name, a, b)


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

    @op(*targets, samples=[sample(INTEGERS, T((6,), "i", 0, 5))])
    def define(call: Call, a: Expr, b: Any) -> Expr:
        a, b = call.promoted(a, b)
        if kind_of(a.dtype) != "i":
            raise NotExpressible("shift of values that are not integers")
        return apply(primitive, a, b)


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


# --- three operands --------------------------------------------------------------------------


@op(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    samples=[sample(BOOLS, X, ROW), sample(BOOLS, INTEGERS, DIVISORS)],
)
def where_(call: Call, condition: Expr, a: Any, b: Any) -> Expr:
    """`a` where the condition holds, else `b`."""
    a, b = call.promoted(a, b)
    return where(as_bool(condition), a, b)


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
    (x,) = call.promoted(x)
    if isinstance(value, Expr):
        value = convert(value, x.dtype)
    else:
        (value,) = call.as_dtype(x.dtype, value)
    return where(mask, value, x)


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
    operands = iter(call.promoted(*given))
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


# --- conversions and copies ------------------------------------------------------------------


@op("aten.to.dtype", samples=[sample(X, torch.float16), sample(X, torch.int32)])
def to_dtype(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """Convert to the output's dtype."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten._to_copy.default",
    samples=[sample(X, dtype=torch.bfloat16), sample(INTEGERS, dtype=torch.float32)],
)
def to_copy(call: Call, x: Expr, **_: Any) -> Expr:
    """Convert to the output's dtype, in new memory."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten.to.dtype_layout",
    "aten.to.other",
    "aten.type_as.default",
    "aten._autocast_to_full_precision.default",
    "aten._autocast_to_reduced_precision.default",
    "prims.convert_element_type.default",
)
def to_other(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """Convert to the output's dtype."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    samples=[sample(X)],
)
def clone(call: Call, x: Expr, **_: Any) -> Expr:
    """The same values in new memory."""
    return x


@op("aten.copy.default", samples=[sample(X, ROW)])
def copy(call: Call, x: Expr, source: Expr, non_blocking: bool = False) -> Expr:
    """The source's values in the shape and dtype of x."""
    return expand(convert(source, x.dtype), x.shape)


@op("aten.dropout.default", samples=[sample(X, 0.3, False), sample(X, 0.0, True)])
def dropout(call: Call, x: Expr, p: float, train: bool) -> Expr:
    """The identity outside training or with p = 0."""
    if train and p != 0:
        raise NotExpressible("dropout in training draws random numbers")
    return x
