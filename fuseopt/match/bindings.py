"""What a pattern's unknowns stand for so far: captures, numbers, sizes and axes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.match import constants
from fuseopt.match.constants import Constant
from fuseopt.match.folds import rebased, substitute
from fuseopt.match.indices import (
    Atom,
    Axis,
    Index,
    Looked,
    Quotient,
    Remainder,
    bounds,
    fixed,
    joined,
    parted,
    substituted,
)
from fuseopt.match.terms import Table, Term

Place = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A function of the feature axis: `term`, as it was met at `place`."""

    term: Term
    place: Place

    def at(self, table: Table, place: Place) -> Term | None:
        """Return the function at another place, None where it is not known to be one."""
        if len(place) != len(self.place):
            # A reduction over several axes, or over one that holds them: the same elements.
            flat = joined(place, map(extent_of, place))
            place = tuple(parted(flat, [extent_of(i) for i in self.place]))
        if place == self.place:
            return self.term
        axes = [i.single_axis for i in self.place]
        if len(place) == len(axes) and all(a is not None for a in axes):
            mapping = {a: i for a, i in zip(axes, place, strict=True) if a is not None}
            return substitute(table, self.term, mapping)
        if len(place) == len(self.place) == 1 and len(self.place[0].terms) == 1:
            # Met at c * atom + b: what it is at i has (i - b) / c in place of the atom.
            atom, factor = self.place[0].terms[0]
            moved = place[0] - Index(self.place[0].const)
            return rebased(table, self.term, atom, factor, moved)
        return None


def extent_of(index: Index) -> Size:
    """Return how many values an index has, from its smallest to its largest."""
    low, high = bounds(index)
    return dims.add(dims.add(high, 1), dims.multiply(low, -1))


@functools.lru_cache(maxsize=1024)
def _linear(size: Size) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return a size of a pattern as a number and how often it holds each of its symbols."""
    if isinstance(size, int):
        return size, ()
    if size.is_Symbol:
        return 0, ((size.name, 1),)
    parts = size.as_coefficients_dict()
    start = int(parts.pop(1, 0))
    return start, tuple((s.name, int(c)) for s, c in parts.items())


@dataclass(frozen=True, slots=True)
class Bindings:
    """Immutable; matching tries one after another.

    axes: where along the site's axes each axis of the pattern runs.
    rest: what is left over at the root.
    """

    captures: Mapping[str, Bound] = field(default_factory=dict)
    scalars: Mapping[str, Constant] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    axes: Mapping[Axis, Place] = field(default_factory=dict)
    rest: Term | None = None

    @property
    def count(self) -> int:
        """How much is bound."""
        return len(self.captures) + len(self.scalars) + len(self.sizes)

    def with_capture(self, name: str, bound: Bound) -> Bindings:
        """Return these with a capture bound."""
        return replace(self, captures={**self.captures, name: bound})

    def with_axes(self, axes: Mapping[Axis, Place]) -> Bindings:
        """Return these with other axes."""
        return replace(self, axes=axes)

    def constant(self, pattern: Constant, site: Constant) -> Bindings | None:
        """Bind what a constant of the pattern must hold to be the site's; None where it cannot."""
        if isinstance(pattern, float):
            return self if constants.are_close(pattern, site) else None
        given = self.evaluated(pattern)
        missing = constants.open_names(given)
        if not missing:
            return self if constants.are_close(given, site) else None
        if len(missing) > 1:
            return None
        (name,) = missing
        value = constants.solve(given, name, site)
        if value is None or value != value:
            return None
        if name[0] == constants.SCALAR:
            return replace(self, scalars={**self.scalars, name: value})
        if not isinstance(value, float) or abs(value - round(value)) > constants.CLOSE * value:
            return None
        return replace(self, sizes={**self.sizes, name: round(value)})

    def evaluated(self, pattern: Constant) -> Constant:
        """Return a constant of the pattern with what is known put in."""
        if isinstance(pattern, float):
            return pattern
        sizes = {n: constants.of_size(s) for n, s in self.sizes.items()}
        return constants.evaluate(pattern, {**self.scalars, **sizes})

    def size(self, pattern: Size, site: Size) -> Bindings | None:
        """Bind what a size of the pattern must hold to be the site's."""
        start, rates = _linear(pattern)
        missing = [(name, rate) for name, rate in rates if name not in self.sizes]
        known = self._total(start, rates)
        if not missing:
            return self if dims.same(known, site) else None
        if len(missing) > 1:
            return None
        ((name, rate),) = missing
        value = dims.divide(dims.add(site, dims.multiply(known, -1)), rate)
        if value is None or (isinstance(value, int) and value < 1):
            return None
        return replace(self, sizes={**self.sizes, name: value})

    def size_of(self, pattern: Size) -> Size:
        """Return a size of the pattern with what is known put in."""
        if isinstance(pattern, int):
            return pattern
        start, rates = _linear(pattern)
        if all(name in self.sizes for name, _ in rates):
            return self._total(start, rates)
        values = {s: self.sizes[s.name] for s in pattern.free_symbols if s.name in self.sizes}
        return dims.as_size(pattern.subs(values)) if values else pattern

    def _total(self, start: int, rates: Iterable[tuple[str, int]]) -> Size:
        total: Size = start
        for name, rate in rates:
            if name in self.sizes:
                total = dims.add(total, dims.multiply(self.sizes[name], rate))
        return total

    def place(self, index: Index) -> Place | None:
        """Return where an index of the pattern is at the site."""
        axis = index.single_axis
        if axis is not None:
            return self.axes.get(axis)
        moved: dict[Axis, Index] = {}
        for own in index.axes:
            found = self.axes.get(own)
            if found is None or len(found) != 1:
                return None
            moved[own] = found[0]
        sized = _with_sizes(index, self)
        return (substituted(sized, moved, lambda value: value),)


def _with_sizes(index: Index, bindings: Bindings) -> Index:
    result = fixed(bindings.size_of(index.const))
    for atom, coefficient in index.terms:
        made = Index(0, ((_atom_with_sizes(atom, bindings), bindings.size_of(coefficient)),))
        result = result + made
    return result


def _atom_with_sizes(atom: Atom, bindings: Bindings) -> Atom:
    match atom:
        case Quotient(inner, divisor):
            return Quotient(_with_sizes(inner, bindings), bindings.size_of(divisor))
        case Remainder(inner, divisor):
            return Remainder(_with_sizes(inner, bindings), bindings.size_of(divisor))
        case Looked(value, extent):
            return Looked(value, bindings.size_of(extent))
        case _:
            return atom
