"""The matcher: finds what a pattern's parameters must be for its term to be the site's.

    pattern  features**0.5 * x[a] * (eps * features + sum_r x[r]**2)**-0.5 * weight[a]
    site     4 * h[b, s, d] * (1.6e-5 + sum_q h[b, s, q]**2)**-0.5 * i3[d]
    ->       x = h[b, s, _], weight = i3[_], eps = 1e-6, features = 16

This is higher-order pattern unification: a parameter is a function of the feature axis, met once
under a sum (where the axis is the sum's own) and again outside. Matching is a search with
backtracking over immutable bindings. Shared values of either side are opened where no operand fits
while they are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fuseopt.ir import dims
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.match.bindings import Bindings, Bound, Place, extent_of
from fuseopt.match.folds import opened
from fuseopt.match.functions import apply
from fuseopt.match.indices import Axis, along
from fuseopt.match.pattern import Pattern
from fuseopt.match.products import match_product
from fuseopt.match.sums import match_sum
from fuseopt.match.terms import (
    Add,
    Apply,
    Fold,
    Literal,
    Load,
    Mul,
    Pieces,
    Position,
    Table,
    Term,
)

MOST_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Miss:
    """Where a match failed: what was bound by then, and the two terms that do not fit."""

    bound: int
    expected: Term
    found: Term


class TooManySteps(Exception):  # noqa: N818 - ends one search, which then counts as a miss
    """The search was given up."""


class Matcher:
    """One search for a pattern among the terms of a table.

    is_value: whether a term is a value of the site, and not only put together while matching.
    """

    def __init__(
        self, pattern: Pattern, table: Table, is_value: Callable[[Term], bool] = lambda _: True
    ) -> None:
        self.pattern = pattern
        self.table = table
        self.is_value = is_value
        self.kinds = {p.name: p.kind for p in pattern.parameters}
        self.steps = 0
        self.miss: Miss | None = None

    def root(self, site: Term, feature: Place, *, partly: bool) -> Bindings | None:
        """Match a site's root, whose feature axis runs along `feature`.

        partly: whether operands of the site's root sum or product may be left over.
        """
        axis = self.pattern.axis
        start = Bindings(axes={} if axis is None else {axis: feature})
        if axis is not None:
            extent = dims.product(extent_of(i) for i in feature)
            sized = start.size(axis.extent, extent)
            if sized is None:
                return None
            start = sized
        self.steps = 0
        try:
            found = self.forms(self.pattern.root, site, start, partly=partly)
            return next((b for b in found if self._is_complete(b)), None)
        except TooManySteps:
            return None

    def _is_complete(self, bindings: Bindings) -> bool:
        return all(p.name in bindings.captures for p in self.pattern.parameters if p.is_tensor)

    def step(self) -> None:
        """Count one step of the search."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooManySteps

    def fail(self, expected: Term, found: Term, bindings: Bindings) -> None:
        """Note where the search went furthest."""
        if self.miss is None or bindings.count > self.miss.bound:
            self.miss = Miss(bindings.count, expected, found)

    # --- terms ---------------------------------------------------------------------------------

    def match(self, pattern: Term, site: Term, bindings: Bindings) -> Iterator[Bindings]:
        """Yield the bindings under which two terms are equal."""
        self.step()
        if isinstance(pattern, Load):
            if pattern.source.kind == "capture":
                yield from self.capture(pattern, site, bindings)
                return
            shown = opened(self.pattern.table, pattern)
            assert shown is not None
            pattern = shown
        yield from self.forms(pattern, site, bindings, partly=False)

    def forms(
        self, pattern: Term, site: Term, bindings: Bindings, *, partly: bool
    ) -> Iterator[Bindings]:
        """As `match`, for a pattern that is no load."""
        if isinstance(pattern, Add):
            yield from match_sum(self, pattern, site, bindings, partly=partly)
        elif isinstance(pattern, Mul) or partly:
            yield from match_product(self, pattern, site, bindings, partly=partly)
        else:
            yield from self._form(pattern, site, bindings)

    def _form(self, pattern: Term, site: Term, bindings: Bindings) -> Iterator[Bindings]:
        if isinstance(site, Load) and not isinstance(pattern, Load):
            shown = opened(self.table, site)
            if shown is None:
                self.fail(pattern, site, bindings)
            else:
                yield from self.match(pattern, shown, bindings)
            return
        results = self._alike(pattern, site, bindings) if type(pattern) is type(site) else ()
        any_found = False
        for found_bindings in results:
            any_found = True
            yield found_bindings
        if not any_found:
            self.fail(pattern, site, bindings)

    def _alike(self, pattern: Term, site: Term, bindings: Bindings) -> Iterable[Bindings]:
        """Match two terms of one form."""
        match pattern, site:
            case Literal(), Literal():
                found = bindings.constant(pattern.value, site.value)
                return () if found is None else (found,)
            case Apply(), Apply():
                return self._apply(pattern, site, bindings)
            case Fold(), Fold():
                return self._fold(pattern, site, bindings)
            case Pieces(), Pieces():
                return self._pieces(pattern, site, bindings)
            case Position(), Position():
                same = bindings.place(pattern.index) == (site.index,)
                return (bindings,) if same else ()
            case _:
                return self.all(pattern.operands, site.operands, bindings)

    def _apply(self, pattern: Apply, site: Apply, bindings: Bindings) -> Iterator[Bindings]:
        if pattern.name != site.name or len(pattern.args) != len(site.args):
            return
        for args in self._orders(site):
            yield from self.all(pattern.args, args, bindings)

    def _orders(self, site: Apply) -> Iterator[tuple[Term, ...]]:
        """The arguments of a function in every order that leaves its value as it is."""
        yield site.args
        declared = PRIMITIVES.get(site.name)
        if declared is not None and declared.commutative:
            yield site.args[::-1]
        if site.name == "where":
            condition, a, b = site.args
            yield apply(self.table, "not", (condition,)), b, a

    def all(
        self, patterns: Sequence[Term], sites: Sequence[Term], bindings: Bindings
    ) -> Iterator[Bindings]:
        """Match terms one by one; those that are a capture not bound yet come last."""
        if not patterns:
            yield bindings
            return
        place = next((n for n, p in enumerate(patterns) if not self.is_open(p, bindings)), 0)
        left = (*patterns[:place], *patterns[place + 1 :])
        others = (*sites[:place], *sites[place + 1 :])
        for found in self.match(patterns[place], sites[place], bindings):
            yield from self.all(left, others, found)

    def _fold(self, pattern: Fold, site: Fold, bindings: Bindings) -> Iterator[Bindings]:
        if pattern.combine != site.combine:
            return
        own: dict[Axis, Place] = {}
        if len(pattern.over) == 1:
            own[pattern.over[0]] = tuple(map(along, site.over))
            extents = [(pattern.over[0].extent, dims.product(a.extent for a in site.over))]
        elif len(pattern.over) == len(site.over):
            own = {a: (along(b),) for a, b in zip(pattern.over, site.over, strict=True)}
            extents = [(a.extent, b.extent) for a, b in zip(pattern.over, site.over, strict=True)]
        else:
            return
        sized: Bindings | None = bindings
        for expected, found in extents:
            sized = None if sized is None else sized.size(expected, found)
        if sized is None:
            return
        inside = sized.with_axes({**bindings.axes, **own})
        for result in self.match(pattern.body, site.body, inside):
            yield result.with_axes(bindings.axes)

    def _pieces(self, pattern: Pieces, site: Pieces, bindings: Bindings) -> Iterator[Bindings]:
        if len(pattern.args) != len(site.args):
            return
        for expected, found in zip(pattern.bounds, site.bounds, strict=True):
            sized = bindings.size(expected, found)
            if sized is None:
                return
            bindings = sized
        if bindings.place(pattern.selector) == (site.selector,):
            yield from self.all(pattern.args, site.args, bindings)

    # --- captures ------------------------------------------------------------------------------

    def is_open(self, pattern: Term, bindings: Bindings) -> bool:
        """Whether a term of the pattern is a parameter that nothing stands for yet."""
        return (
            isinstance(pattern, Load)
            and pattern.source.kind == "capture"
            and pattern.source.name not in bindings.captures
        )

    def instance(self, pattern: Load, bindings: Bindings) -> Term | None:
        """Return what a bound parameter is where the pattern reads it."""
        place = self._place(pattern, bindings)
        if place is None:
            return None
        return bindings.captures[pattern.source.name].at(self.table, place)

    def capture(self, pattern: Load, site: Term, bindings: Bindings) -> Iterator[Bindings]:
        """Bind a parameter, or compare with what it stands for."""
        name = pattern.source.name
        place = self._place(pattern, bindings)
        known = bindings.captures.get(name)
        if place is None:
            return
        if known is None:
            if self._may_stand(name, site, place, bindings):
                yield bindings.with_capture(name, Bound(site, place))
            else:
                self.fail(pattern, site, bindings)
            return
        expected = known.at(self.table, place)
        if expected is None and known.place != place:
            # Met the other way round: the new place may say what the function is.
            turned = Bound(site, place)
            if turned.at(self.table, known.place) is known.term:
                yield bindings.with_capture(name, turned)
            return
        if expected is site or (expected is not None and self._same(expected, site)):
            yield bindings
        else:
            self.fail(pattern, site, bindings)

    def _same(self, a: Term, b: Term) -> bool:
        """Whether terms are the same once a shared value is opened."""
        shown = [opened(self.table, t) if isinstance(t, Load) else None for t in (a, b)]
        return (shown[0] is not None and shown[0] in (b, shown[1])) or (
            shown[1] is not None and shown[1] is a
        )

    def _place(self, pattern: Load, bindings: Bindings) -> Place | None:
        where = pattern.where
        return () if not where else bindings.place(where[0])

    def _may_stand(self, name: str, site: Term, place: Place, bindings: Bindings) -> bool:
        own = frozenset[Axis]().union(*(i.axes for i in place))
        bound_axes: set[Axis] = set()
        for axis, found in bindings.axes.items():
            if axis is not self.pattern.axis:
                bound_axes |= frozenset[Axis]().union(*(i.axes for i in found))
        if (site.axes & bound_axes) - own:
            return False  # it would depend on the axis of a reduction that it is not given
        kind = self.kinds[name]
        if kind == "row":
            plain = all(i.single_axis is not None for i in place)
            return plain and site.axes <= own
        return kind != "channel" or len(site.axes) <= 1
