"""Constants of shadow terms: numbers, or expressions in a pattern's scalars and in size symbols.

    1e-5 * N    (eps of a pattern, its features)      {(("N", 1),): 1e-5}

A constant is a float, or a `Polynomial`: a sum of products of powers of unknowns. Unknowns stand
for positive numbers. What is no such sum (the root of one) becomes an unknown itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fuseopt.ir.dims import Size

SAME = 1e-11  # relative, after some arithmetic
SCALAR, WHOLE = "?", "#"  # how the names of a pattern's scalars and sizes begin
CLOSE = 1e-6  # relative; written-out constants often have ten digits, sometimes seven

Monomial: TypeAlias = tuple[tuple[Any, float], ...]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Sum of coefficient * monomial, sorted; a monomial maps unknowns to powers.

    An unknown is a name, or a `Polynomial` where a power of a sum is meant.
    """

    terms: tuple[tuple[Monomial, float], ...]

    def __str__(self) -> str:
        return " + ".join(_monomial_text(m, c) for m, c in self.terms)


Constant: TypeAlias = float | Polynomial


def _monomial_text(monomial: Monomial, coefficient: float) -> str:
    words = [] if coefficient == 1 and monomial else [f"{coefficient:.7g}"]
    for unknown, power in monomial:
        name = unknown if isinstance(unknown, str) else f"({unknown})"
        words.append(name if power == 1 else f"{name}**{power:.7g}")
    return "*".join(words)


def text(constant: Constant) -> str:
    """Return a constant as people write it."""
    return f"{constant:.7g}" if isinstance(constant, float) else str(constant)


def rounded(constant: Constant) -> Constant:
    """Round to twelve digits, so that rounding errors do not tell equal constants apart."""
    if isinstance(constant, float):
        return float(f"{constant:.12g}") + 0.0
    return Polynomial(tuple((m, float(f"{c:.12g}")) for m, c in constant.terms))


def unknown(name: str) -> Polynomial:
    """Return the constant that a name stands for."""
    return Polynomial(((((name, 1.0),), 1.0),))


def tidy_power(exponent: float) -> float:
    """Return an exponent without the rounding errors of its arithmetic."""
    return float(f"{exponent:.12g}") + 0.0


def of_size(size: Size) -> Constant:
    """Return a size as a constant; its symbols become unknowns."""
    if isinstance(size, int):
        return float(size)
    if size.is_number:
        return float(size)
    if size.is_Symbol:
        return unknown(size.name)
    if size.is_Add:
        return plus(*map(of_size, size.args))
    if size.is_Mul:
        return times(*map(of_size, size.args))
    if size.is_Pow and size.exp.is_number:
        return power(of_size(size.base), float(size.exp))
    return unknown(str(size))


def plus(*constants: Constant) -> Constant:
    """Return the sum."""
    if all(isinstance(c, float) for c in constants):
        return _sum(constants)  # type: ignore[arg-type]
    parts: dict[Monomial, list[float]] = {}
    for constant in constants:
        for monomial, coefficient in _terms(constant):
            parts.setdefault(monomial, []).append(coefficient)
    return _polynomial({m: _sum(cs) for m, cs in parts.items()})


def times(*constants: Constant) -> Constant:
    """Return the product."""
    if all(isinstance(c, float) for c in constants):
        return math.prod(constants)  # type: ignore[arg-type]
    result: dict[Monomial, float] = {(): 1.0}
    for constant in constants:
        parts: dict[Monomial, float] = {}
        for left, a in result.items():
            for right, b in _terms(constant):
                monomial = _product(left, right)
                parts[monomial] = parts.get(monomial, 0.0) + a * b
        result = parts
    return _polynomial(result)


def power(constant: Constant, exponent: float) -> Constant:
    """Return a power; zero and negative numbers give inf and nan where they have none."""
    if isinstance(constant, float):
        return _number_power(constant, exponent)
    if exponent == 0:
        return 1.0
    if len(constant.terms) == 1:
        monomial, coefficient = constant.terms[0]
        if coefficient > 0 or exponent == int(exponent):
            raised = tuple((u, tidy_power(p * exponent)) for u, p in monomial)
            return _polynomial({raised: _number_power(coefficient, exponent)})
    if exponent == 1:
        return constant
    return Polynomial(((((constant, float(exponent)),), 1.0),))


def open_names(constant: Constant) -> frozenset[str]:
    """Return the names of a pattern's scalars and sizes that a constant depends on."""
    return frozenset(n for n in unknowns(constant) if n[0] in (SCALAR, WHOLE))


def is_zero(constant: Constant) -> bool:
    """Whether a constant is the number zero."""
    return isinstance(constant, float) and constant == 0


def is_one(constant: Constant) -> bool:
    """Whether a constant is the number one."""
    return isinstance(constant, float) and abs(constant - 1) < SAME


def are_same(a: Constant, b: Constant) -> bool:
    """Whether two constants are equal but for rounding errors of arithmetic."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) < SAME * max(abs(a), abs(b))
    return rounded(a) == rounded(b)


def is_positive(constant: Constant) -> bool:
    """Whether a constant is above zero whatever its unknowns are."""
    if isinstance(constant, float):
        return constant > 0
    return all(c > 0 for _, c in constant.terms)


def magnitude(constant: Constant) -> Constant:
    """Return the constant without its sign, as far as that is known."""
    if isinstance(constant, float):
        return abs(constant)
    negative = all(c < 0 for _, c in constant.terms)
    return times(-1.0, constant) if negative else constant


def unknowns(constant: Constant) -> frozenset[str]:
    """Return the names that a constant depends on."""
    if isinstance(constant, float):
        return frozenset()
    found: set[str] = set()
    for monomial, _ in constant.terms:
        for name, _ in monomial:
            found |= {name} if isinstance(name, str) else unknowns(name)
    return frozenset(found)


def evaluate(constant: Constant, values: Mapping[str, Constant]) -> Constant:
    """Replace the unknowns that have values."""
    if isinstance(constant, float):
        return constant
    return plus(*(_evaluate_monomial(m, c, values) for m, c in constant.terms))


def _evaluate_monomial(
    monomial: Monomial, coefficient: float, values: Mapping[str, Constant]
) -> Constant:
    result: Constant = coefficient
    for name, exponent in monomial:
        if isinstance(name, str):
            base = values.get(name, None)
            base = unknown(name) if base is None else base
        else:
            base = evaluate(name, values)
        result = times(result, power(base, exponent))
    return result


def solve(constant: Constant, name: str, value: Constant) -> Constant | None:
    """Return what an unknown must be for `constant` to have a value; None where that is not plain.

    solve(1 + 2 * eps, "eps", 1.5) is 0.25. Everything else in `constant` must be known.
    """
    if isinstance(constant, float):
        return None
    holding = [(m, c) for m, c in constant.terms if name in unknowns(Polynomial(((m, c),)))]
    if len(holding) != 1:
        return None
    monomial, coefficient = holding[0]
    rest = plus(
        0.0, *(Polynomial((t,)) if t[0] else t[1] for t in constant.terms if t[0] != monomial)
    )
    left = plus(value, times(-1.0, rest))
    inner = [(u, p) for u, p in monomial if name in _names(u)]
    if len(inner) != 1:
        return None
    others = _polynomial({tuple(x for x in monomial if x != inner[0]): coefficient})
    place, exponent = inner[0]
    if not is_positive(magnitude(others)):
        return None
    found = power(times(left, power(others, -1.0)), 1 / exponent)
    return found if isinstance(place, str) else solve(place, name, found)


def are_close(a: Constant, b: Constant) -> bool:
    """Whether two constants are equal up to the rounding of written-out numbers."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= CLOSE * max(abs(a), abs(b))
    left, right = dict(_terms(a)), dict(_terms(b))
    return left.keys() == right.keys() and all(are_close(left[m], right[m]) for m in left)


def _terms(constant: Constant) -> Iterable[tuple[Monomial, float]]:
    return (((), constant),) if isinstance(constant, float) else constant.terms


def _names(place: Any) -> frozenset[str]:
    return frozenset({place}) if isinstance(place, str) else unknowns(place)


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for name, exponent in right:
        powers[name] = tidy_power(powers.get(name, 0.0) + exponent)
    return tuple(sorted(((u, p) for u, p in powers.items() if p), key=str))


def _polynomial(parts: Mapping[Monomial, float]) -> Constant:
    kept = {m: c for m, c in parts.items() if c != 0}
    if not kept:
        return 0.0
    if kept.keys() == {()}:
        return kept[()]
    return Polynomial(tuple(sorted(kept.items(), key=str)))


def _sum(values: Iterable[float]) -> float:
    values = list(values)
    if not all(map(math.isfinite, values)):
        return sum(values)
    total = math.fsum(values)
    # What cancels but for rounding cancels.
    return 0.0 if abs(total) <= 1e-12 * max(map(abs, values), default=0.0) else total


def _number_power(value: float, exponent: float) -> float:
    try:
        result = value**exponent
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf
    return math.nan if isinstance(result, complex) else result
