"""Matching products: which factors of the site go with which of the pattern.

    pattern  x[a] * (1 + exp(-x[a]))**-1 * gate[a]
    site     i1[b, d] * (1 + exp(-i0[b, d]))**-1 * i0[b, d]     ->   x = i0, gate = i1

Factors that are bound already are taken out first; then structured ones are tried against each
factor of the site; the last free parameter takes all that is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fuseopt.match import constants
from fuseopt.match.algebra import as_product, multiply
from fuseopt.match.bindings import Bindings
from fuseopt.match.constants import Constant
from fuseopt.match.folds import opened
from fuseopt.match.terms import Load, Mul, Term

if TYPE_CHECKING:
    from fuseopt.match.unify import Matcher

MOST_OPENED = 2  # shared values written out in one product or sum

Factors = tuple[tuple[Term, float], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the pattern being matched with one of the site."""

    coefficient: Constant
    wanted: Factors
    site_coefficient: Constant
    left: Factors
    partly: bool
    to_open: int = MOST_OPENED


def match_product(
    matcher: Matcher, pattern: Term, site: Term, bindings: Bindings, *, partly: bool
) -> Iterator[Bindings]:
    """Match a product, or any term as a product of one."""
    coefficient, wanted = as_product(pattern)
    site_coefficient, left = as_product(site)
    state = Product(coefficient, wanted, site_coefficient, left, partly)
    found = False
    for result in match_factors(matcher, state, bindings):
        found = True
        yield result
    if not found:
        matcher.fail(pattern, site, bindings)


def _product(matcher: Matcher, state: Product, bindings: Bindings) -> Iterator[Bindings]:
    matcher.step()
    if not state.wanted:
        yield from _end_product(matcher, state, bindings)
        return
    found = False
    for result in _next_factor(matcher, state, bindings):
        found = True
        yield result
    if not found:
        yield from _with_opened_factor(matcher, state, bindings)


def match_factors(matcher: Matcher, state: Product, bindings: Bindings) -> Iterator[Bindings]:
    """Take a scalar of the coefficient from the site where nothing else could take the number on.

    In cap * tanh(x / cap) this gives cap, before x could stand for a scaled value.
    """
    given = bindings.evaluated(state.coefficient)
    if constants.open_names(given) and not any(
        matcher.is_open(t, bindings) for t, _ in state.wanted
    ):
        found = _scaled(state, bindings)
        if found is not None:
            state = replace(state, coefficient=1.0, site_coefficient=1.0)
            yield from _product(matcher, state, found)
        return
    yield from _product(matcher, state, bindings)


def _scaled(state: Product, bindings: Bindings) -> Bindings | None:
    """Bind what the pattern's coefficient leaves open; a scalar of one is a factor not written."""
    found = bindings.constant(state.coefficient, state.site_coefficient)
    if found is None or any(
        constants.is_one(value)
        for name, value in found.scalars.items()
        if name not in bindings.scalars
    ):
        return None
    return found


def _next_factor(matcher: Matcher, state: Product, bindings: Bindings) -> Iterator[Bindings]:
    place = most_certain(matcher, [t for t, _ in state.wanted], bindings)
    base, power = state.wanted[place]
    wanted = (*state.wanted[:place], *state.wanted[place + 1 :])
    state = replace(state, wanted=wanted)
    if not isinstance(base, Load) or base.source.kind != "capture":
        yield from _structured_factor(matcher, state, base, power, bindings)
    elif matcher.is_open(base, bindings):
        yield from _open_factor(matcher, state, base, power, bindings)
    else:
        instance = matcher.instance(base, bindings)
        taken = None if instance is None else _without_factors(state, instance, power)
        if taken is None:
            matcher.fail(base, _left_product(matcher, state), bindings)
        else:
            yield from _product(matcher, taken, bindings)


def _structured_factor(
    matcher: Matcher, state: Product, base: Term, power: float, bindings: Bindings
) -> Iterator[Bindings]:
    for place, (term, own) in enumerate(state.left):
        if own / power < 1 or own / power != int(own / power):
            continue
        kept = () if own == power else ((term, own - power),)
        left = (*state.left[:place], *kept, *state.left[place + 1 :])
        for result in matcher.match(base, term, bindings):
            yield from _product(matcher, replace(state, left=left), result)


def _without_factors(state: Product, instance: Term, power: float) -> Product | None:
    """Take instance ** power out of what is left of the site."""
    coefficient, factors = as_product(instance)
    left = dict(state.left)
    for base, own in factors:
        have, need = left.get(base, 0.0), own * power
        if have * need <= 0 or abs(have) < abs(need):
            return None
        left[base] = have - need
        if left[base] == 0:
            del left[base]
    if constants.is_one(coefficient):
        return replace(state, left=tuple(left.items()))
    inverse = constants.power(coefficient, -power)
    rest = constants.times(state.site_coefficient, inverse)
    return replace(state, left=tuple(left.items()), site_coefficient=rest)


def _open_factor(
    matcher: Matcher, state: Product, capture: Load, power: float, bindings: Bindings
) -> Iterator[Bindings]:
    if power != 1:
        for place, (term, own) in enumerate(state.left):
            if own == power:
                left = (*state.left[:place], *state.left[place + 1 :])
                for result in matcher.capture(capture, term, bindings):
                    yield from _product(matcher, replace(state, left=left), result)
        return
    if not state.wanted:
        yield from _last_factor(matcher, state, capture, bindings)
        return
    for group in _groups(matcher, state, capture):
        value = multiply(matcher.table, 1.0, group)
        left = tuple(f for f in state.left if f not in group)
        for result in matcher.capture(capture, value, bindings):
            yield from _product(matcher, replace(state, left=left), result)


def _groups(matcher: Matcher, state: Product, capture: Load) -> list[Factors]:
    """What a parameter may take of the operands: for a row all that are rows, else any one."""
    singles: list[Factors] = [(f,) for f in state.left]
    if matcher.kinds[capture.source.name] != "row":
        return singles
    together = tuple(f for f in state.left if len(f[0].axes) <= 1)
    return [together, *singles] if len(together) > 1 else singles


def _last_factor(
    matcher: Matcher, state: Product, capture: Load, bindings: Bindings
) -> Iterator[Bindings]:
    if not state.left:
        matcher.fail(capture, matcher.table.literal(state.site_coefficient), bindings)
        return
    given = bindings.evaluated(state.coefficient)
    own: Constant = 1.0
    if constants.open_names(given):
        found = _scaled(state, bindings)
        if found is None:
            return
        bindings = found
    else:
        own = constants.times(state.site_coefficient, constants.power(given, -1.0))
    yield from with_coefficient(matcher, capture, own, state.left, bindings)


def with_coefficient(
    matcher: Matcher, capture: Load, coefficient: Constant, left: Factors, bindings: Bindings
) -> Iterator[Bindings]:
    """Bind a parameter to a scaled value, if there is such a value at the site.

    Otherwise any number would do: silu(1.7 * x) * y would be the gated silu of 1.7 * x and y / 1.7.
    """
    if constants.are_close(coefficient, 1.0):
        coefficient = 1.0
    value = multiply(matcher.table, coefficient, left)
    if constants.is_one(coefficient) or matcher.is_value(value):
        yield from matcher.capture(capture, value, bindings)
    else:
        matcher.fail(capture, value, bindings)


def _end_product(matcher: Matcher, state: Product, bindings: Bindings) -> Iterator[Bindings]:
    if state.left and not state.partly:
        matcher.fail(matcher.table.literal(1.0), _left_product(matcher, state), bindings)
        return
    found = _scaled(state, bindings)
    if found is None:
        site = matcher.table.literal(state.site_coefficient)
        matcher.fail(matcher.pattern.table.literal(state.coefficient), site, bindings)
        return
    rest = multiply(matcher.table, 1.0, state.left) if state.left else None
    yield found if rest is None else replace(found, rest=rest)


def _left_product(matcher: Matcher, state: Product) -> Term:
    return multiply(matcher.table, state.site_coefficient, state.left)


def _with_opened_factor(matcher: Matcher, state: Product, bindings: Bindings) -> Iterator[Bindings]:
    """Go on with a shared operand written out: the site's first, then the pattern's."""
    if not state.to_open:
        return
    fewer = replace(state, to_open=state.to_open - 1)
    for place, (term, power) in enumerate(state.left):
        shown = opened(matcher.table, term) if isinstance(term, Load) else None
        if shown is None or not isinstance(shown, (Mul, Load)):
            continue
        others = (*state.left[:place], *state.left[place + 1 :])
        made = multiply(matcher.table, state.site_coefficient, [*others, (shown, power)])
        coefficient, left = as_product(made)
        yield from _product(
            matcher, replace(fewer, site_coefficient=coefficient, left=left), bindings
        )
    for place, (term, power) in enumerate(state.wanted):
        shown = opened(matcher.pattern.table, term) if isinstance(term, Load) else None
        if not isinstance(shown, Mul):
            continue
        others = (*state.wanted[:place], *state.wanted[place + 1 :])
        made = multiply(matcher.pattern.table, state.coefficient, [*others, (shown, power)])
        coefficient, wanted = as_product(made)
        yield from _product(
            matcher, replace(fewer, coefficient=coefficient, wanted=wanted), bindings
        )


def most_certain(matcher: Matcher, terms: Sequence[Term], bindings: Bindings) -> int:
    """Return which operand to look at next: bound ones, structure, parameters still open."""

    def rank(place: int) -> tuple[int, int]:
        term = terms[place]
        if not isinstance(term, Load) or term.source.kind != "capture":
            return 1, -term.height
        if not matcher.is_open(term, bindings):
            return 0, 0
        return (2 if matcher.kinds[term.source.name] in ("row", "channel") else 3), place

    return min(range(len(terms)), key=rank)
