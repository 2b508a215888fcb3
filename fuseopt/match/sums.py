"""Matching sums: which parts of the site go with which of the pattern.

    pattern  scale * x[a] + mask[a]
    site     0.125 * i0[b, h, q, k] + i1[b, k]     ->   scale = 0.125, x = i0, mask = i1

As for products, with the coefficient of a part in place of the power of a factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fuseopt.match import constants
from fuseopt.match.algebra import add, as_product, multiply, split_coefficient
from fuseopt.match.bindings import Bindings
from fuseopt.match.constants import Constant
from fuseopt.match.folds import opened
from fuseopt.match.products import (
    MOST_OPENED,
    Product,
    match_factors,
    most_certain,
    with_coefficient,
)
from fuseopt.match.terms import Add, Literal, Load, Mul, Term

if TYPE_CHECKING:
    from fuseopt.match.unify import Matcher

Parts = tuple[tuple[Term, Constant], ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of the pattern being matched with one of the site."""

    const: Constant
    wanted: Parts
    site_const: Constant
    left: Parts
    partly: bool
    to_open: int = MOST_OPENED


def match_sum(
    matcher: Matcher, pattern: Add, site: Term, bindings: Bindings, *, partly: bool
) -> Iterator[Bindings]:
    """Match a sum."""
    found = False
    shown = opened(matcher.table, site) if isinstance(site, Load) else None
    product = site if shown is None else shown
    for const, left in (_summands(matcher, site), *_multiplied_out(matcher, product)):
        if found:
            return
        state = _Sum(pattern.const, pattern.parts, const, left, partly)
        for result in _sum(matcher, state, bindings):
            found = True
            yield result
    if not found:
        matcher.fail(pattern, site, bindings)


def _multiplied_out(matcher: Matcher, site: Term) -> Iterator[tuple[Constant, Parts]]:
    """A product x * (1 + y) as the sum x + x * y: a common factor went out of it."""
    coefficient, factors = as_product(site)
    for place, (total, power) in enumerate(factors):
        if not isinstance(total, Add) or power != 1 or len(factors) == 1:
            continue
        others = (*factors[:place], *factors[place + 1 :])
        rest = multiply(matcher.table, 1.0, others)
        parts = [(rest, constants.times(coefficient, total.const))]
        for term, own in total.parts:
            made = multiply(matcher.table, 1.0, [(rest, 1.0), (term, 1.0)])
            parts.append((made, constants.times(coefficient, own)))
        yield 0.0, tuple((t, c) for t, c in parts if not constants.is_zero(c))


def _summands(matcher: Matcher, site: Term) -> tuple[Constant, Parts]:
    if isinstance(site, Add):
        return site.const, site.parts
    if isinstance(site, Literal):
        return site.value, ()
    coefficient, bare = split_coefficient(matcher.table, site)
    if isinstance(bare, Add):
        parts = tuple((t, constants.times(coefficient, c)) for t, c in bare.parts)
        return constants.times(coefficient, bare.const), parts
    return 0.0, ((bare, coefficient),)


def _sum(matcher: Matcher, state: _Sum, bindings: Bindings) -> Iterator[Bindings]:
    matcher.step()
    if not state.wanted:
        yield from _end_sum(matcher, state, bindings)
        return
    found = False
    for result in _next_part(matcher, state, bindings):
        found = True
        yield result
    if not found:
        yield from _with_opened_part(matcher, state, bindings)


def _next_part(matcher: Matcher, state: _Sum, bindings: Bindings) -> Iterator[Bindings]:
    place = most_certain(matcher, [t for t, _ in state.wanted], bindings)
    term, coefficient = state.wanted[place]
    wanted = (*state.wanted[:place], *state.wanted[place + 1 :])
    state = replace(state, wanted=wanted)
    coefficient = bindings.evaluated(coefficient)
    is_capture = isinstance(term, Load) and term.source.kind == "capture"
    if not is_capture or constants.open_names(coefficient):
        yield from _structured_part(matcher, state, term, coefficient, bindings)
        return
    assert isinstance(term, Load)
    if matcher.is_open(term, bindings):
        yield from _open_part(matcher, state, term, coefficient, bindings)
        return
    instance = matcher.instance(term, bindings)
    taken = None if instance is None else _without_parts(matcher, state, instance, coefficient)
    if taken is None:
        matcher.fail(term, _left_sum(matcher, state), bindings)
    else:
        yield from _sum(matcher, taken, bindings)


def _structured_part(
    matcher: Matcher, state: _Sum, term: Term, coefficient: Constant, bindings: Bindings
) -> Iterator[Bindings]:
    for place, (site, own) in enumerate(state.left):
        left = (*state.left[:place], *state.left[place + 1 :])
        factors, site_factors = as_product(term)[1], as_product(site)[1]
        product = Product(coefficient, factors, own, site_factors, partly=False)
        for result in match_factors(matcher, product, bindings):
            yield from _sum(matcher, replace(state, left=left), result)


def _without_parts(
    matcher: Matcher, state: _Sum, instance: Term, coefficient: Constant
) -> _Sum | None:
    """Take coefficient * instance out of what is left of the site."""
    const, parts = _summands(matcher, instance)
    left = dict(state.left)
    for term, own in parts:
        if term not in left:
            return None
        taken = constants.times(-1.0, coefficient, own)
        left[term] = constants.plus(left[term], taken)
        if constants.is_zero(left[term]):
            del left[term]
    rest = constants.plus(state.site_const, constants.times(-1.0, coefficient, const))
    return replace(state, left=tuple(left.items()), site_const=rest)


def _open_part(
    matcher: Matcher, state: _Sum, capture: Load, coefficient: Constant, bindings: Bindings
) -> Iterator[Bindings]:
    inverse = constants.power(coefficient, -1.0)
    if not state.wanted and not state.partly:
        # A constant goes with it only where the pattern has none of its own.
        takes = constants.is_zero(bindings.evaluated(state.const))
        if not state.left:
            matcher.fail(capture, matcher.table.literal(state.site_const), bindings)
            return
        ended = replace(state, left=(), site_const=0.0 if takes else state.site_const)
        if len(state.left) == 1 and not (takes and not constants.is_zero(state.site_const)):
            ((term, own),) = state.left
            scaled = constants.times(own, inverse)
            found = with_coefficient(matcher, capture, scaled, ((term, 1.0),), bindings)
        else:
            parts = [(t, constants.times(c, inverse)) for t, c in state.left]
            const = constants.times(state.site_const, inverse) if takes else 0.0
            found = matcher.capture(capture, add(matcher.table, const, parts), bindings)
        for result in found:
            yield from _end_sum(matcher, ended, result)
        return
    for place, (term, own) in enumerate(state.left):
        left = (*state.left[:place], *state.left[place + 1 :])
        scaled = constants.times(own, inverse)
        for result in with_coefficient(matcher, capture, scaled, ((term, 1.0),), bindings):
            yield from _sum(matcher, replace(state, left=left), result)
        shifted = add(matcher.table, constants.times(state.site_const, inverse), [(term, scaled)])
        if not constants.is_zero(state.site_const) and matcher.is_value(shifted):
            without = replace(state, left=left, site_const=0.0)
            for result in matcher.capture(capture, shifted, bindings):
                yield from _sum(matcher, without, result)


def _end_sum(matcher: Matcher, state: _Sum, bindings: Bindings) -> Iterator[Bindings]:
    if state.left and not state.partly:
        matcher.fail(matcher.table.literal(0.0), _left_sum(matcher, state), bindings)
        return
    if state.left:
        rest = add(matcher.table, 0.0, state.left)
        if constants.is_zero(state.const):
            rest = add(matcher.table, state.site_const, state.left)
            yield replace(bindings, rest=rest)
            return
        bindings = replace(bindings, rest=rest)
    found = bindings.constant(state.const, state.site_const)
    if found is None:
        site = matcher.table.literal(state.site_const)
        matcher.fail(matcher.pattern.table.literal(state.const), site, bindings)
        return
    yield found


def _left_sum(matcher: Matcher, state: _Sum) -> Term:
    return add(matcher.table, state.site_const, state.left)


def _with_opened_part(matcher: Matcher, state: _Sum, bindings: Bindings) -> Iterator[Bindings]:
    """Go on with a shared operand written out: the site's first, then the pattern's."""
    if not state.to_open:
        return
    fewer = replace(state, to_open=state.to_open - 1)
    for place, (term, own) in enumerate(state.left):
        shown = opened(matcher.table, term) if isinstance(term, Load) else None
        if shown is None or not isinstance(shown, (Add, Mul, Load)):
            continue
        others = (*state.left[:place], *state.left[place + 1 :])
        made = add(matcher.table, state.site_const, [*others, (shown, own)])
        const, left = _summands(matcher, made)
        yield from _sum(matcher, replace(fewer, site_const=const, left=left), bindings)
    for place, (term, own) in enumerate(state.wanted):
        shown = opened(matcher.pattern.table, term) if isinstance(term, Load) else None
        if not isinstance(shown, Add):
            continue
        others = (*state.wanted[:place], *state.wanted[place + 1 :])
        made = add(matcher.pattern.table, state.const, [*others, (shown, own)])
        if isinstance(made, Add):
            changed = replace(fewer, const=made.const, wanted=made.parts)
            yield from _sum(matcher, changed, bindings)
