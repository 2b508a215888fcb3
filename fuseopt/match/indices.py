"""Index arithmetic in a normal form, so that equal indices of shadow terms are equal objects.

    16 * (d // 16) + d % 16  ->  d        (16 * h + d) // 16, d below 16  ->  h

An index is a constant plus a sum of coefficient * atom; an atom is an axis, a quotient or remainder
of an index by a size, or an index that is itself looked up. Sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fuseopt.ir import dims
from fuseopt.ir.dims import Size


@dataclass(frozen=True, slots=True)
class Axis:
    """A variable that runs from zero to below `extent`."""

    name: str
    extent: Size

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """index // divisor."""

    index: Index
    divisor: Size

    def __str__(self) -> str:
        return f"({self.index}) // {self.divisor}"


@dataclass(frozen=True, slots=True)
class Remainder:
    """index % divisor."""

    index: Index
    divisor: Size

    def __str__(self) -> str:
        return f"({self.index}) % {self.divisor}"


@dataclass(frozen=True, slots=True)
class Looked:
    """An index that is the value of an integer term, from zero to below `extent`."""

    value: Any
    extent: Size

    def __str__(self) -> str:
        return f"[{self.value}]"


Atom: TypeAlias = Axis | Quotient | Remainder | Looked
Found: TypeAlias = "tuple[Index, Index]"


@dataclass(frozen=True, slots=True)
class Index:
    """const + sum of coefficient * atom, atoms in order of their text."""

    const: Size = 0
    terms: tuple[tuple[Atom, Size], ...] = ()

    def __str__(self) -> str:
        words = [str(a) if c == 1 else f"{c}*({a})" for a, c in self.terms]
        if self.const != 0 or not words:
            words.append(str(self.const))
        return " + ".join(words)

    def __add__(self, other: Index) -> Index:
        if not self.terms and self.const == 0:
            return other
        parts = dict(self.terms)
        for atom, coefficient in other.terms:
            parts[atom] = dims.add(parts.get(atom, 0), coefficient)
        return _make(dims.add(self.const, other.const), parts)

    def __mul__(self, factor: Size) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return Index()
        terms = tuple((a, dims.multiply(c, factor)) for a, c in self.terms)
        return Index(dims.multiply(self.const, factor), terms)

    def __sub__(self, other: Index) -> Index:
        return self + other * -1

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that the index depends on, also through quotients and looked up terms."""
        found: set[Axis] = set()
        for atom, _ in self.terms:
            found |= axes_of(atom)
        return frozenset(found)

    @property
    def single_axis(self) -> Axis | None:
        """The axis that the index is, where it is just one."""
        if self.const == 0 and len(self.terms) == 1:
            atom, coefficient = self.terms[0]
            if isinstance(atom, Axis) and coefficient == 1:
                return atom
        return None


def axes_of(atom: Atom) -> frozenset[Axis]:
    """Return the axes that an atom depends on."""
    match atom:
        case Axis():
            return frozenset((atom,))
        case Looked():
            found: frozenset[Axis] = atom.value.axes
            return found
        case _:
            return atom.index.axes


def along(axis: Axis) -> Index:
    """Return the index that runs along an axis."""
    return Index() if axis.extent == 1 else Index(0, ((axis, 1),))


def fixed(position: Size) -> Index:
    """Return an index that is the same everywhere."""
    return Index(position)


def looked_up(value: Any, extent: Size) -> Index:
    """Return the index that an integer term gives."""
    return Index(0, ((Looked(value, extent), 1),))


def _make(const: Size, parts: dict[Atom, Size]) -> Index:
    parts = {a: c for a, c in parts.items() if c != 0}
    if len(parts) > 1:
        moved, parts = _recombined(parts)
        const = dims.add(const, moved)
    terms = parts.items()
    return Index(const, tuple(terms if len(parts) < 2 else sorted(terms, key=_atom_text)))


def _atom_text(term: tuple[Atom, Size]) -> str:
    return str(term[0])


def _recombined(parts: dict[Atom, Size]) -> tuple[Size, dict[Atom, Size]]:
    """Put together c * (i // c) + i % c = i, and i - c * (i // c) = i % c.

    Returns a constant and the parts.
    """
    const: Size = 0
    for atom in list(parts):
        if atom not in parts:
            continue
        if isinstance(atom, Remainder):
            outer = _only_atom(quotient(atom.index, atom.divisor))
            factor = parts[atom]
            if outer in parts and dims.same(parts[outer], dims.multiply(factor, atom.divisor)):
                del parts[outer], parts[atom]
                whole = Index(0, tuple(parts.items())) + atom.index * factor
                const, parts = dims.add(const, whole.const), dict(whole.terms)
        elif isinstance(atom, Quotient):
            axis = atom.index.single_axis
            factor = dims.multiply(parts[atom], -1)
            times = None if axis is None else dims.divide(factor, atom.divisor)
            if axis in parts and times is not None and dims.same(parts[axis], times):
                del parts[axis], parts[atom]
                rest = Remainder(atom.index, atom.divisor)
                parts[rest] = dims.add(parts.get(rest, 0), times)
    return const, {a: c for a, c in parts.items() if c != 0}


# --- division -------------------------------------------------------------------------------------


def quotient(index: Index, divisor: Size) -> Index:
    """Return index // divisor."""
    return divide(index, divisor)[0]


def remainder(index: Index, divisor: Size) -> Index:
    """Return index % divisor."""
    return divide(index, divisor)[1]


def divide(index: Index, divisor: Size) -> tuple[Index, Index]:
    """Return the quotient and the remainder of an index by a size."""
    if divisor == 1:
        return index, Index()
    whole, rest = _divisible_part(index, divisor)
    if is_within(rest, divisor):
        return whole, rest
    if not _is_nonnegative(bounds(rest)[0]):
        # What is left may be negative, the whole never is.
        whole, rest = Index(), index
    coarse = _coarse_part(rest, divisor)
    if coarse is not None:
        # (12 * c + i) // 48, i below 12, is c // 4.
        step, upper, lower = coarse
        count = dims.divide(divisor, step)
        outer, inner = divide(upper, count)
        return whole + outer, inner * step + lower
    return whole + _quotient(rest, divisor), _remainder(rest, divisor)


def _coarse_part(index: Index, divisor: Size) -> tuple[Size, Index, Index] | None:
    """Return step, u and l with index = step * u + l, 0 <= l < step, and step a divisor."""
    for _, step in sorted(index.terms, key=lambda t: str(t[1]), reverse=True):
        if step == 1 or dims.divide(divisor, step) is None:
            continue
        upper, lower = _divisible_part(index, step)
        if upper.terms and is_within(lower, step):
            return step, upper, lower
    return None


def _quotient(index: Index, divisor: Size) -> Index:
    atom = _only_atom(index)
    if isinstance(atom, Quotient):
        return quotient(atom.index, dims.multiply(atom.divisor, divisor))
    if isinstance(atom, Remainder):
        # (i % ab) // b = (i // b) % a
        outer = dims.divide(atom.divisor, divisor)
        if outer is not None:
            return remainder(quotient(atom.index, divisor), outer)
    return Index(0, ((Quotient(index, divisor), 1),))


def _remainder(index: Index, divisor: Size) -> Index:
    atom = _only_atom(index)
    if isinstance(atom, Remainder) and dims.divide(atom.divisor, divisor) is not None:
        return remainder(atom.index, divisor)
    return Index(0, ((Remainder(index, divisor), 1),))


def _only_atom(index: Index) -> Atom | None:
    if index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1:
        return index.terms[0][0]
    return None


def _divisible_part(index: Index, divisor: Size) -> tuple[Index, Index]:
    whole: list[tuple[Atom, Size]] = []
    rest: list[tuple[Atom, Size]] = []
    for atom, coefficient in index.terms:
        exact = dims.divide(coefficient, divisor)
        (rest if exact is None else whole).append((atom, coefficient if exact is None else exact))
    const = index.const
    if isinstance(const, int) and isinstance(divisor, int):
        return Index(const // divisor, tuple(whole)), Index(const % divisor, tuple(rest))
    exact = dims.divide(const, divisor)
    if exact is None:
        return Index(0, tuple(whole)), Index(const, tuple(rest))
    return Index(exact, tuple(whole)), Index(0, tuple(rest))


def bounds(index: Index) -> tuple[Size, Size]:
    """Return the smallest and largest value of an index, both inclusive."""
    low = high = index.const
    for atom, coefficient in index.terms:
        reach = dims.multiply(coefficient, dims.add(_count(atom), -1))
        if _is_nonnegative(coefficient):
            high = dims.add(high, reach)
        else:
            low = dims.add(low, reach)
    return low, high


def _count(atom: Atom) -> Size:
    match atom:
        case Axis(_, extent) | Looked(_, extent):
            return extent
        case Remainder(_, divisor):
            return divisor
        case Quotient(index, divisor):
            high = bounds(index)[1]
            exact = dims.divide(dims.add(high, 1), divisor)
            if exact is not None:
                return exact
            if isinstance(high, int) and isinstance(divisor, int):
                return high // divisor + 1
            return dims.add(high, 1)


def is_within(index: Index, extent: Size) -> bool:
    """Whether 0 <= index < extent is certain."""
    low, high = bounds(index)
    return _is_nonnegative(low) and _is_nonnegative(dims.add(extent, dims.multiply(high, -1)) - 1)


def is_below(index: Index, limit: Size) -> bool:
    """Whether index < limit is certain."""
    return _is_nonnegative(dims.add(limit, dims.multiply(bounds(index)[1], -1)) - 1)


def is_at_least(index: Index, limit: Size) -> bool:
    """Whether index >= limit is certain."""
    return _is_nonnegative(dims.add(bounds(index)[0], dims.multiply(limit, -1)))


def _is_nonnegative(size: Size) -> bool:
    return size >= 0 if isinstance(size, int) else dims.is_nonnegative(dims.as_size(size))


# --- shapes ---------------------------------------------------------------------------------------


def joined(indices: Iterable[Index], extents: Iterable[Size]) -> Index:
    """Return the flat index of coordinates, the last dimension fastest."""
    total = Index()
    for index, extent in zip(indices, extents, strict=True):
        total = total * extent + index
    return total


def parted(index: Index, extents: Sequence[Size]) -> list[Index]:
    """Return the coordinates of a flat index, the last dimension fastest."""
    parts: list[Index] = []
    for place, extent in reversed(list(enumerate(extents))):
        if extent == 1:
            parts.append(Index())
        elif all(e == 1 for e in extents[:place]):
            parts.append(index)
        else:
            index, rest = divide(index, extent)
            parts.append(rest)
    return parts[::-1]


def substituted(
    index: Index, mapping: Mapping[Axis, Index], on_value: Callable[[Any], Any]
) -> Index:
    """Replace axes by indices; `on_value` rebuilds the terms that are looked up."""
    result = Index(index.const)
    for atom, coefficient in index.terms:
        result = result + _substituted(atom, mapping, on_value) * coefficient
    return result


def _substituted(
    atom: Atom, mapping: Mapping[Axis, Index], on_value: Callable[[Any], Any]
) -> Index:
    match atom:
        case Axis():
            return mapping.get(atom) or along(atom)
        case Looked(value, extent):
            return looked_up(on_value(value), extent)
        case Quotient(inner, divisor):
            return quotient(substituted(inner, mapping, on_value), divisor)
        case Remainder(inner, divisor):
            return remainder(substituted(inner, mapping, on_value), divisor)
