"""Where a site's feature axis may run: along what its reductions run over, or any of its axes.

x[b, d] * (... sum_r x[b, r]**2)**-0.5     r is met outside the sum as d: the feature axis is d
x[b, c, h] - sum_(q, r) x[b, 4 * (c // 4) + q, h]     for the group of a channel: (c % 4, h)
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseopt.ir import dims
from fuseopt.match.bindings import Place
from fuseopt.match.folds import opened
from fuseopt.match.indices import Axis, Index, along, joined, substituted
from fuseopt.match.terms import Fold, Load, Source, Table, Term, walk

DEPTH = 3  # shared values that are looked through


def reduced_places(table: Table, root: Term) -> list[Place]:
    """Return where the axes of a root's reductions are met outside them."""
    terms = _opened_terms(table, root)
    inside = [
        (term.over, load)
        for term in terms
        if isinstance(term, Fold)
        for load in walk(term.body)
        if isinstance(load, Load) and not load.axes.isdisjoint(term.over)
    ]
    bound = {a for over, _ in inside for a in over}
    outside: dict[Source, list[Load]] = {}
    for term in terms:
        if isinstance(term, Load) and not term.axes & bound:
            outside.setdefault(term.source, []).append(term)
    found: dict[Place, None] = {}
    for over, load in inside:
        for other in outside.get(load.source, ()):
            place = _solve(over, load.where, other.where)
            if place is not None:
                found[place] = None
    return list(found)


def _opened_terms(table: Table, root: Term) -> list[Term]:
    """The terms below a root, shared values opened where they are read."""
    found: dict[Term, None] = {}
    level = [root]
    for _ in range(DEPTH + 1):
        following: list[Term] = []
        for below in (t for start in level for t in walk(start) if t not in found):
            found[below] = None
            shown = opened(table, below) if isinstance(below, Load) else None
            if shown is not None:
                following.append(shown)
        level = following
    return list(found)


def _solve(over: Sequence[Axis], inside: Place, outside: Place) -> Place | None:
    """Return what to put in for some axes so that one index becomes another."""
    place: list[Index] = []
    for axis in over:
        found = next((f for f in map(_Solving(axis, over), inside, outside) if f is not None), None)
        if found is None:
            return None
        place.append(found)
    mapping = dict(zip(over, place, strict=True))
    moved = [substituted(i, mapping, lambda value: value) for i in inside]
    return tuple(place) if moved == list(outside) else None


class _Solving:
    def __init__(self, axis: Axis, over: Sequence[Axis]) -> None:
        self.axis = axis
        self.others = frozenset(over) - {axis}

    def __call__(self, inside: Index, outside: Index) -> Index | None:
        factor = dict(inside.terms).get(self.axis)
        rest = inside - along(self.axis) * factor if factor is not None else inside
        if factor is None or self.axis in rest.axes or rest.axes & self.others:
            return None
        return _divided(outside - rest, factor)


def _divided(index: Index, factor: dims.Size) -> Index | None:
    const = dims.divide(index.const, factor)
    terms = [(a, dims.divide(c, factor)) for a, c in index.terms]
    if const is None or any(c is None for _, c in terms):
        return None
    return Index(const, tuple(terms))


def axis_places(axes: Sequence[Axis]) -> list[Place]:
    """Return the axes of a root longer than one, last first, as places of a feature axis.

    The last two together are tried as well: pairs of features may be stacked but not yet flat.
    """
    long = [a for a in axes if a.extent != 1]
    places: list[Place] = [(along(a),) for a in reversed(long)]
    if len(long) > 1:
        flat = joined(map(along, long[-2:]), [a.extent for a in long[-2:]])
        places.append((flat,))
    return places
