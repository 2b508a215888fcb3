"""What each primitive is as a shadow term: tanh and its kin become exponentials, and so on.

    tanh(x)  ->  2 / (1 + exp(-2 * x)) - 1          where(x > 0, x, 0)  ->  maximum(x, 0)

Terms are over the real numbers: comparisons with infinity are decided, casts between floats gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.match import constants
from fuseopt.match.algebra import (
    add,
    exponential,
    logarithm,
    multiply,
    negate,
    raised,
    scale,
    split_coefficient,
)
from fuseopt.match.terms import (
    Add,
    Apply,
    Exp,
    Literal,
    Log,
    Table,
    Term,
    joint_axes,
    joint_height,
)

Function = Callable[..., Term | None]  # None: the function stays as it is

# From here on softplus returns its argument; where the threshold is lower it is not softplus.
SOFTPLUS_THRESHOLD = 10.0


def apply(table: Table, name: str, args: Sequence[Term]) -> Term:
    """Return a primitive, or a conversion "to:dtype", of terms."""
    rewritten = _FUNCTIONS.get(name)
    made = rewritten(table, *args) if rewritten is not None else None
    return plain(table, name, args) if made is None else made


def plain(table: Table, name: str, args: Sequence[Term]) -> Term:
    """Return a function that stays as it is, its arguments in order where that is free."""
    declared = PRIMITIVES.get(name)
    if declared is not None and declared.commutative:
        args = sorted(args, key=lambda t: t.number)
    return table.make(Apply, joint_axes(args), joint_height(args), name, tuple(args))


def is_truth(term: Term, value: bool) -> bool:
    """Whether a condition is known."""
    return isinstance(term, Literal) and term.value == float(value)


def _number(term: Term) -> float | None:
    return term.value if isinstance(term, Literal) and isinstance(term.value, float) else None


def _is_infinite(term: Term) -> bool:
    number = _number(term)
    return number is not None and math.isinf(number)


# --- arithmetic -----------------------------------------------------------------------------------


def _add(table: Table, a: Term, b: Term) -> Term:
    return add(table, 0.0, [(a, 1.0), (b, 1.0)])


def _sub(table: Table, a: Term, b: Term) -> Term:
    return add(table, 0.0, [(a, 1.0), (b, -1.0)])


def _mul(table: Table, a: Term, b: Term) -> Term:
    return multiply(table, 1.0, [(a, 1.0), (b, 1.0)])


def _div(table: Table, a: Term, b: Term) -> Term:
    return multiply(table, 1.0, [(a, 1.0), (b, -1.0)])


def _pow(table: Table, base: Term, exponent: Term) -> Term | None:
    number = _number(exponent)
    if number is not None:
        return raised(table, base, number)
    known = _number(base)
    if known is not None and known > 0:
        return exponential(table, scale(table, math.log(known), exponent))
    return None


# --- exponentials and what is made of them --------------------------------------------------------


def sigmoid(table: Table, x: Term) -> Term:
    """Return 1 / (1 + exp(-x))."""
    below = add(table, 1.0, [(exponential(table, negate(table, x)), 1.0)])
    return raised(table, below, -1.0)


def _tanh(table: Table, x: Term) -> Term:
    return add(table, -1.0, [(sigmoid(table, scale(table, 2.0, x)), 2.0)])


def _sinh(table: Table, x: Term) -> Term:
    return add(
        table, 0.0, [(exponential(table, x), 0.5), (exponential(table, negate(table, x)), -0.5)]
    )


def _cosh(table: Table, x: Term) -> Term:
    return add(
        table, 0.0, [(exponential(table, x), 0.5), (exponential(table, negate(table, x)), 0.5)]
    )


def _exp2(table: Table, x: Term) -> Term:
    return exponential(table, scale(table, math.log(2.0), x))


def _log_to(base: float) -> Function:
    return lambda table, x: scale(table, 1 / math.log(base), logarithm(table, x))


def _expm1(table: Table, x: Term) -> Term:
    return add(table, -1.0, [(exponential(table, x), 1.0)])


def _log1p(table: Table, x: Term) -> Term:
    return logarithm(table, add(table, 1.0, [(x, 1.0)]))


def _odd(name: str) -> Function:
    """A function with f(-x) = -f(x): a negative coefficient comes out."""

    def define(table: Table, x: Term) -> Term | None:
        coefficient, _ = split_coefficient(table, x)
        if isinstance(coefficient, float) and coefficient < 0:
            return negate(table, plain(table, name, (negate(table, x),)))
        return None

    return define


def _erfc(table: Table, x: Term) -> Term:
    return add(table, 1.0, [(apply(table, "erf", (x,)), -1.0)])


# --- comparisons and choices ----------------------------------------------------------------------


def _equal(table: Table, a: Term, b: Term) -> Term | None:
    if a is b:
        return table.literal(1.0)
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return table.literal(float(x == y))
    # A real number is not infinite.
    return table.literal(0.0) if _is_infinite(a) or _is_infinite(b) else None


def _differs(table: Table, a: Term, b: Term) -> Term:
    return apply(table, "not", (apply(table, "eq", (a, b)),))


def _less(table: Table, a: Term, b: Term) -> Term | None:
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return table.literal(float(x < y))
    if y == math.inf or x == -math.inf:
        return table.literal(1.0)
    return None


def _at_most(table: Table, a: Term, b: Term) -> Term:
    """a <= b is not b < a."""
    return apply(table, "not", (apply(table, "lt", (b, a)),))


def _not(table: Table, x: Term) -> Term | None:
    if isinstance(x, Apply) and x.name == "not":
        return x.args[0]
    number = _number(x)
    return table.literal(float(not number)) if number in (0.0, 1.0) else None


def _and(table: Table, a: Term, b: Term) -> Term | None:
    for one, other in ((a, b), (b, a)):
        if is_truth(one, False):
            return one
        if is_truth(one, True):
            return other
    return a if a is b else None


def _or(table: Table, a: Term, b: Term) -> Term | None:
    for one, other in ((a, b), (b, a)):
        if is_truth(one, True):
            return one
        if is_truth(one, False):
            return other
    return a if a is b else None


def _where(table: Table, condition: Term, a: Term, b: Term) -> Term | None:
    if is_truth(condition, True) or a is b:
        return a
    if is_truth(condition, False):
        return b
    if isinstance(condition, Apply) and condition.name == "not":
        return apply(table, "where", (condition.args[0], b, a))
    if isinstance(condition, Apply) and condition.name == "lt":
        low, high = condition.args
        if (a, b) == (high, low):
            return apply(table, "maximum", (low, high))
        if (a, b) == (low, high):
            return apply(table, "minimum", (low, high))
        if _is_softplus(table, low, high, a, b):
            return b
    return None


def _is_softplus(table: Table, low: Term, high: Term, a: Term, b: Term) -> bool:
    """Whether where(limit < k * x, x, log(1 + exp(k * x)) / k) is that: they agree above."""
    limit = _number(low)
    if limit is None or limit < SOFTPLUS_THRESHOLD:
        return False
    factor, inner = split_coefficient(table, b)
    if not isinstance(inner, Log) or not isinstance(inner.arg, Add):
        return False
    total = inner.arg
    return (
        constants.is_one(total.const)
        and len(total.parts) == 1
        and total.parts[0] == (exponential(table, high), 1.0)
        and isinstance(total.parts[0][0], Exp)
        and scale(table, factor, high) is a
    )


def _maximum(table: Table, a: Term, b: Term) -> Term | None:
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return table.literal(max(x, y))
    if a is b or y == -math.inf:
        return a
    return b if x == -math.inf else None


def _minimum(table: Table, a: Term, b: Term) -> Term | None:
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return table.literal(min(x, y))
    if a is b or y == math.inf:
        return a
    return b if x == math.inf else None


_FUNCTIONS: dict[str, Function] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": negate,
    "pow": _pow,
    "sqrt": lambda table, x: raised(table, x, 0.5),
    "rsqrt": lambda table, x: raised(table, x, -0.5),
    "exp": exponential,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": logarithm,
    "log2": _log_to(2.0),
    "log10": _log_to(10.0),
    "log1p": _log1p,
    "tanh": _tanh,
    "sinh": _sinh,
    "cosh": _cosh,
    "erf": _odd("erf"),
    "erfc": _erfc,
    "sin": _odd("sin"),
    "eq": _equal,
    "ne": _differs,
    "lt": _less,
    "gt": lambda table, a, b: apply(table, "lt", (b, a)),
    "le": _at_most,
    "ge": lambda table, a, b: _at_most(table, b, a),
    "is_nan": lambda table, x: table.literal(0.0),  # a real number is one
    "not": _not,
    "and": _and,
    "or": _or,
    "where": _where,
    "maximum": _maximum,
    "minimum": _minimum,
    "fmax": lambda table, a, b: apply(table, "maximum", (a, b)),
    "fmin": lambda table, a, b: apply(table, "minimum", (a, b)),
}
