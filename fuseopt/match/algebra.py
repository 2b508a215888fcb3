"""Sums, products, powers, exponentials and logarithms of shadow terms, kept in normal form.

    x * 0.5 + x * 0.5 * erf(x)  ->  0.5 * x * (1 + erf(x))      exp(a - m) * exp(m)  ->  exp(a)

What decides whether a rewrite belongs here is that it stays the same when an expression is put in
for a variable: then a pattern still matches whatever stands in for a capture. So positive powers
are not distributed over products (`x**2` would not be found in `(2 * y)**2`), polynomials are not
expanded, and a factor goes out of a sum only where all its parts share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseopt.match import constants
from fuseopt.match.constants import Constant
from fuseopt.match.terms import (
    Add,
    Exp,
    Fold,
    Literal,
    Log,
    Mul,
    Table,
    Term,
    joint_axes,
    joint_height,
)

Parts = Iterable[tuple[Term, Constant]]
Factors = Iterable[tuple[Term, float]]


def as_product(term: Term) -> tuple[Constant, tuple[tuple[Term, float], ...]]:
    """Return a term's coefficient and factors."""
    if isinstance(term, Mul):
        return term.coefficient, term.factors
    if isinstance(term, Literal):
        return term.value, ()
    return 1.0, ((term, 1.0),)


def as_sum(term: Term) -> tuple[Constant, tuple[tuple[Term, Constant], ...]]:
    """Return a term's constant and parts."""
    if isinstance(term, Add):
        return term.const, term.parts
    if isinstance(term, Literal):
        return term.value, ()
    if isinstance(term, Mul) and not constants.is_one(term.coefficient):
        raise AssertionError(f"{term}: use split_coefficient")
    return 0.0, ((term, 1.0),)


def split_coefficient(table: Table, term: Term) -> tuple[Constant, Term]:
    """Return a term as a coefficient times a term without one."""
    if isinstance(term, Mul) and not constants.is_one(term.coefficient):
        return term.coefficient, _product(table, 1.0, dict(term.factors))
    return 1.0, term


# --- sums -----------------------------------------------------------------------------------------


def add(table: Table, const: Constant, parts: Parts) -> Term:
    """Return const + sum of coefficient * part."""
    given = [(t, c) for t, c in parts if not constants.is_zero(c)]
    if constants.is_zero(const) and len(given) == 1:
        return scale(table, given[0][1], given[0][0])
    found: dict[Term, Constant] = {}
    for term, coefficient in given:
        const = _collect(table, const, term, coefficient, found)
    found = {t: c for t, c in found.items() if not constants.is_zero(c)}
    if not found:
        return table.literal(const)
    if len(found) == 1 and constants.is_zero(const):
        ((only, own),) = found.items()
        return scale(table, own, only)
    if constants.is_zero(const):
        shared = _shared_factors(found)
        if shared:
            return _factored(table, found, shared)
    return _with_unit_coefficients(table, const, found)


def _collect(
    table: Table, const: Constant, term: Term, coefficient: Constant, found: dict[Term, Constant]
) -> Constant:
    inner, term = split_coefficient(table, term)
    coefficient = constants.times(coefficient, inner)
    if isinstance(term, Literal):
        return constants.plus(const, constants.times(coefficient, term.value))
    if isinstance(term, Add):
        for part, own in term.parts:
            scaled = constants.times(coefficient, own)
            const = _collect(table, const, part, scaled, found)
        return constants.plus(const, constants.times(coefficient, term.const))
    found[term] = constants.plus(found.get(term, 0.0), coefficient)
    return const


def _with_unit_coefficients(table: Table, const: Constant, found: dict[Term, Constant]) -> Term:
    """Take out a coefficient whose size all parts share: mean + eps = (sum + N * eps) / N."""
    sizes = [constants.magnitude(c) for c in found.values()]
    common = sizes[0]
    if constants.is_one(common) or not all(constants.are_same(s, common) for s in sizes):
        return _sum(table, const, found)
    inverse = constants.power(common, -1.0)
    inner = _sum(
        table,
        constants.times(const, inverse),
        {t: constants.times(c, inverse) for t, c in found.items()},
    )
    return scale(table, common, inner)


def _sum(table: Table, const: Constant, found: dict[Term, Constant]) -> Term:
    parts = tuple(sorted(found.items(), key=lambda p: p[0].number))
    terms = [t for t, _ in parts]
    key = (constants.rounded(const), tuple((t, constants.rounded(c)) for t, c in parts))
    return table.make(Add, joint_axes(terms), joint_height(terms), const, parts, key=key)


def _shared_factors(found: dict[Term, Constant]) -> dict[Term, float]:
    shared: dict[Term, float] | None = None
    for term in found:
        factors = dict(as_product(term)[1])
        if shared is None:
            shared = factors
            continue
        shared = {
            t: min(p, factors[t], key=abs)
            for t, p in shared.items()
            if t in factors and (p > 0) == (factors[t] > 0)
        }
        if not shared:
            return {}
    return shared or {}


def _factored(table: Table, found: dict[Term, Constant], shared: dict[Term, float]) -> Term:
    inverse = [(t, -p) for t, p in shared.items()]
    parts = [(multiply(table, 1.0, [(t, 1.0), *inverse]), c) for t, c in found.items()]
    return multiply(table, 1.0, [*shared.items(), (add(table, 0.0, parts), 1.0)])


def scale(table: Table, coefficient: Constant, term: Term) -> Term:
    """Return coefficient * term."""
    return multiply(table, coefficient, [(term, 1.0)])


def negate(table: Table, term: Term) -> Term:
    """Return -term."""
    return scale(table, -1.0, term)


# --- products -------------------------------------------------------------------------------------


def multiply(table: Table, coefficient: Constant, factors: Factors) -> Term:
    """Return coefficient * product of base ** power."""
    found: dict[Term, float] = {}
    exponents: list[tuple[Term, Constant]] = []
    for term, power in factors:
        coefficient = _gather(table, coefficient, term, float(power), found, exponents)
    if exponents:
        coefficient = _with_exponential(table, coefficient, exponents, found)
    return _product(table, coefficient, found)


def raised(table: Table, base: Term, power: float) -> Term:
    """Return base ** power."""
    return multiply(table, 1.0, [(base, power)])


def _gather(
    table: Table,
    coefficient: Constant,
    term: Term,
    power: float,
    found: dict[Term, float],
    exponents: list[tuple[Term, Constant]],
) -> Constant:
    if power == 0:
        return coefficient
    if isinstance(term, Literal):
        return constants.times(coefficient, constants.power(term.value, power))
    if isinstance(term, Exp):
        exponents.append((term.exponent, power))
        return coefficient
    if not isinstance(term, Mul):
        found[term] = constants.tidy_power(found.get(term, 0.0) + power)
        return coefficient
    if power == 1 or (power == int(power) and power < 0):
        own = constants.power(term.coefficient, power)
        coefficient = constants.times(coefficient, own)
        for base, inner in term.factors:
            coefficient = _gather(table, coefficient, base, inner * power, found, exponents)
        return coefficient
    own, term = _split_root(table, term, power)
    return _gather_power(table, constants.times(coefficient, own), term, power, found, exponents)


def _split_root(table: Table, term: Mul, power: float) -> tuple[Constant, Term]:
    """Take a positive constant out of a root: (sum / N)**-0.5 = N**0.5 * sum**-0.5."""
    if power == int(power) or not constants.is_positive(term.coefficient):
        return 1.0, term
    return constants.power(term.coefficient, power), _product(table, 1.0, dict(term.factors))


def _gather_power(
    table: Table,
    coefficient: Constant,
    term: Term,
    power: float,
    found: dict[Term, float],
    exponents: list[tuple[Term, Constant]],
) -> Constant:
    if not isinstance(term, Mul):
        return _gather(table, coefficient, term, power, found, exponents)
    if len(term.factors) == 1 and constants.is_one(term.coefficient):
        base, inner = term.factors[0]
        if inner % 2 != 0 or power == int(power):  # (x**2)**0.5 is |x|
            return _gather(table, coefficient, base, inner * power, found, exponents)
    if power != int(power) and any(isinstance(t, Exp) for t, _ in term.factors):
        rest = {t: p for t, p in term.factors if not isinstance(t, Exp)}
        for base, _ in term.factors:
            if isinstance(base, Exp):
                exponents.append((base.exponent, power))
        inner_term = _product(table, term.coefficient, rest)
        return _gather_power(table, coefficient, inner_term, power, found, exponents)
    found[term] = constants.tidy_power(found.get(term, 0.0) + power)
    return coefficient


def _product(table: Table, coefficient: Constant, found: dict[Term, float]) -> Term:
    if constants.is_zero(coefficient):
        return table.literal(0.0)
    kept = [(t, p) for t, p in found.items() if p != 0]
    if not kept:
        return table.literal(coefficient)
    if len(kept) == 1 and kept[0][1] == 1:
        term = kept[0][0]
        if constants.is_one(coefficient):
            return term
        if isinstance(term, Add) and constants.are_same(coefficient, -1.0):
            negated = {t: constants.times(-1.0, c) for t, c in term.parts}
            return _sum(table, constants.times(-1.0, term.const), negated)
    kept.sort(key=lambda f: f[0].number)
    terms = [t for t, _ in kept]
    if constants.is_one(coefficient):
        coefficient = 1.0
    fields = (coefficient, tuple(kept))
    key = (constants.rounded(coefficient), fields[1])
    return table.make(Mul, joint_axes(terms), joint_height(terms), *fields, key=key)


# --- exponentials ---------------------------------------------------------------------------------


def exponential(table: Table, exponent: Term) -> Term:
    """Return e ** exponent."""
    return multiply(table, 1.0, [(_exp(table, exponent), 1.0)])


def _exp(table: Table, exponent: Term) -> Term:
    return table.make(Exp, exponent.axes, exponent.height, exponent)


def _with_exponential(
    table: Table,
    coefficient: Constant,
    exponents: Sequence[tuple[Term, Constant]],
    found: dict[Term, float],
) -> Constant:
    """Put exp(sum of exponents) among the factors: exp(k * log(y)) becomes y**k."""
    total = add(table, 0.0, exponents)
    plain: list[tuple[Term, Constant]] = []
    logarithms: list[tuple[Term, float]] = []
    for part, factor in _summands(table, total):
        if isinstance(part, Log) and isinstance(factor, float):
            logarithms.append((part.arg, factor))
        else:
            plain.append((part, factor))
    if logarithms:
        again: list[tuple[Term, Constant]] = []
        for base, power in logarithms:
            coefficient = _gather(table, coefficient, base, power, found, again)
        const = total.const if isinstance(total, Add) else 0.0
        total = add(table, const, [*plain, *again])
    if isinstance(total, Literal) and constants.is_zero(total.value):
        return coefficient
    coefficient, done = _oriented(table, coefficient, total, found)
    if not done:
        found[_exp(table, total)] = 1.0
    return coefficient


def _summands(table: Table, term: Term) -> tuple[tuple[Term, Constant], ...]:
    if isinstance(term, Add):
        return term.parts
    coefficient, bare = split_coefficient(table, term)
    return () if isinstance(bare, Literal) else ((bare, coefficient),)


def _oriented(
    table: Table, coefficient: Constant, exponent: Term, found: dict[Term, float]
) -> tuple[Constant, bool]:
    """Rewrite exp(u) / (c + exp(u)) as 1 / (1 + c * exp(-u)): both would be normal otherwise."""
    for base, power in found.items():
        if not isinstance(base, Add) or len(base.parts) != 1 or power >= 0:
            continue
        inner, sign = base.parts[0]
        if not isinstance(inner, Exp) or not constants.is_one(sign):
            continue
        if scale(table, -power, inner.exponent) is exponent:
            del found[base]
            opposite = exponential(
                table, negate(table, exponent if power == -1 else inner.exponent)
            )
            turned = add(table, 1.0, [(opposite, base.const)])
            return _gather(table, coefficient, turned, power, found, []), True
    return coefficient, False


def logarithm(table: Table, term: Term) -> Term:
    """Return the natural logarithm; of a product with an exponential, the sum of logarithms."""
    if isinstance(term, Exp):
        return term.exponent
    coefficient, factors = as_product(term)
    exponents = [(t.exponent, p) for t, p in factors if isinstance(t, Exp)]
    rest = {t: p for t, p in factors if not isinstance(t, Exp)}
    if exponents:
        inner = logarithm(table, _product(table, coefficient, rest))
        return add(table, 0.0, [*exponents, (inner, 1.0)])
    if isinstance(term, Literal):
        return table.literal(0.0) if constants.is_one(term.value) else _log(table, term)
    if len(rest) == 1 and constants.is_one(coefficient):
        base, power = next(iter(rest.items()))
        if isinstance(base, (Fold, Add)) or power % 2:
            return add(table, 0.0, [(_log(table, base), power)])
    return _log(table, term)


def _log(table: Table, term: Term) -> Term:
    return table.make(Log, term.axes, term.height, term)
