"""Index arithmetic: linear forms over loop axes, with division only where a view does not factor.

`x.view(2, 6)[i, j]` of a flat tensor is `6*i + j`. Going the other way, element `k` of a flattened
tensor has `k // 6` and `k % 6`; both vanish once axis `k` is split in an outer axis of extent 2 and
an inner one of extent 6, which is what `SplitAxis` asks the lowering to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fuseopt.ir import dims
from fuseopt.ir.dims import Size


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop axis. `extent` is at least two: axes of extent one are never made."""

    name: str
    extent: Size

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """index // divisor, for an index that is never negative."""

    index: Index
    divisor: Size


@dataclass(frozen=True, slots=True)
class Remainder:
    """index % divisor, for an index that is never negative."""

    index: Index
    divisor: Size


@dataclass(frozen=True, slots=True)
class Indirect:
    """An index read from memory: the value of an integer kernel value, below `extent`."""

    value: Any
    extent: Size


Atom = Axis | Quotient | Remainder | Indirect


class SplitAxis(Exception):  # noqa: N818 - a request, not an error
    """Asks for an axis to be replaced by an outer axis and an inner one of extent `inner`."""

    def __init__(self, axis: Axis, inner: Size) -> None:
        super().__init__(f"split {axis.name} by {inner}")
        self.axis = axis
        self.inner = inner


@dataclass(frozen=True, slots=True)
class Index:
    """const + sum of coefficient * atom, terms in order of first use."""

    const: Size = 0
    terms: tuple[tuple[Atom, Size], ...] = ()

    def __add__(self, other: Index | Size) -> Index:
        if not isinstance(other, Index):
            return Index(dims.add(self.const, other), self.terms)
        coefficients = dict(self.terms)
        for atom, coefficient in other.terms:
            coefficients[atom] = dims.add(coefficients.get(atom, 0), coefficient)
        return _make(dims.add(self.const, other.const), coefficients)

    def __mul__(self, factor: Size) -> Index:
        scaled = {atom: dims.multiply(c, factor) for atom, c in self.terms}
        return _make(dims.multiply(self.const, factor), scaled)

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that the index depends on, also through what it reads from memory."""
        found: set[Axis] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Axis):
                found.add(atom)
            elif isinstance(atom, Indirect):
                found |= atom.value.axes
            else:
                found |= atom.index.axes
        return frozenset(found)

    def sizes(self) -> Iterator[Size]:
        """Every size that computing the index takes, without what it reads from memory."""
        yield self.const
        for atom, coefficient in self.terms:
            yield coefficient
            match atom:
                case Axis() | Indirect():
                    yield atom.extent
                case _:
                    yield atom.divisor
                    yield from atom.index.sizes()

    @property
    def is_constant(self) -> bool:
        """Whether the index is the same at every point."""
        return not self.terms

    def coefficient(self, atom: Atom) -> Size:
        """Return the coefficient of an atom, 0 where it does not occur."""
        return dict(self.terms).get(atom, 0)

    def substitute(self, mapping: Mapping[Axis, Index]) -> Index:
        """Replace axes by indices; values read from memory must not depend on them."""
        result = Index(self.const)
        for atom, coefficient in self.terms:
            result = result + _substitute_atom(atom, mapping) * coefficient
        return result


def _make(const: Size, coefficients: Mapping[Atom, Size]) -> Index:
    return Index(const, tuple((a, c) for a, c in coefficients.items() if c != 0))


def _substitute_atom(atom: Atom, mapping: Mapping[Axis, Index]) -> Index:
    match atom:
        case Axis():
            return mapping.get(atom, axis_index(atom))
        case Quotient(index, divisor):
            return quotient(index.substitute(mapping), divisor, split=False)
        case Remainder(index, divisor):
            return remainder(index.substitute(mapping), divisor, split=False)
        case Indirect():
            if any(axis in mapping for axis in atom.value.axes):
                raise AssertionError(f"cannot substitute {mapping} below a load")
            return Index(0, ((atom, 1),))


def axis_index(axis: Axis) -> Index:
    """Return the index that runs along one axis."""
    return Index(0, ((axis, 1),))


def indirect(value: Any, extent: Size) -> Index:
    """Return the index held by an integer value, which must lie in [0, extent)."""
    return Index(0, ((Indirect(value, extent), 1),))


def bounds(index: Index) -> tuple[Size, Size]:
    """Return the smallest and largest value the index can take, both inclusive."""
    low = high = index.const
    for atom, coefficient in index.terms:
        reach = dims.multiply(coefficient, dims.add(_count(atom), -1))
        if dims.is_nonnegative(coefficient):
            high = dims.add(high, reach)
        else:
            low = dims.add(low, reach)
    return low, high


def _count(atom: Atom) -> Size:
    match atom:
        case Axis(_, extent) | Indirect(_, extent):
            return extent
        case Remainder(_, divisor):
            return divisor
        case Quotient(index, divisor):
            largest = bounds(index)[1]
            if isinstance(largest, int) and isinstance(divisor, int):
                return largest // divisor + 1
            return dims.add(largest, 1)


def within(index: Index, extent: Size) -> bool:
    """Whether 0 <= index < extent is provable."""
    low, high = bounds(index)
    return dims.is_nonnegative(low) and dims.is_nonnegative(dims.add(extent, -dims.add(high, 1)))


def quotient(index: Index, divisor: Size, *, split: bool = True) -> Index:
    """Return index // divisor. With `split`, raises `SplitAxis` where that makes it exact."""
    return _divide(index, divisor, split=split)[0]


def remainder(index: Index, divisor: Size, *, split: bool = True) -> Index:
    """Return index % divisor. With `split`, raises `SplitAxis` where that makes it exact."""
    return _divide(index, divisor, split=split)[1]


def _divide(index: Index, divisor: Size, *, split: bool) -> tuple[Index, Index]:
    if divisor == 1:
        return index, Index()
    whole, rest = divisible_part(index, divisor)
    if within(rest, divisor):
        return whole, rest
    if split:
        for atom, coefficient in rest.terms:
            if isinstance(atom, Axis):
                _request_split(atom, coefficient, divisor)
    if not dims.is_nonnegative(bounds(rest)[0]):
        whole, rest = Index(), index  # what is left may be negative, the whole never is
    return whole + _atom(Quotient(rest, divisor)), _atom(Remainder(rest, divisor))


def divisible_part(index: Index, divisor: Size) -> tuple[Index, Index]:
    """Return (whole, rest) with index = divisor * whole + rest, term by term."""
    whole = Index()
    rest = Index()
    for atom, coefficient in index.terms:
        exact = dims.divide(coefficient, divisor)
        if exact is None:
            rest = rest + Index(0, ((atom, coefficient),))
        else:
            whole = whole + Index(0, ((atom, exact),))
    if isinstance(index.const, int) and isinstance(divisor, int):
        return whole + index.const // divisor, rest + index.const % divisor
    exact = dims.divide(index.const, divisor)
    return (whole, rest + index.const) if exact is None else (whole + exact, rest)


def _request_split(axis: Axis, coefficient: Size, divisor: Size) -> None:
    inner = dims.divide(divisor, coefficient)
    if inner is None or inner == 1 or dims.same(inner, axis.extent):
        return
    if dims.divide(axis.extent, inner) is not None:
        raise SplitAxis(axis, inner)


def _atom(atom: Atom) -> Index:
    return Index(0, ((atom, 1),))


def mixed_radix(axes: Iterable[Axis]) -> Index:
    """Return the flat index that runs over several axes, the last one fastest."""
    total = Index()
    for axis in axes:
        total = total * axis.extent + axis_index(axis)
    return total


def split_index(index: Index, extents: Iterable[Size]) -> tuple[Index, ...]:
    """Return the coordinates of a flat index in a shape, the last dimension fastest.

    The index must lie inside the shape, so that the slowest coordinate is what the others leave.
    Where that is no sum of axes, a remainder says so: bounds are proved of sums alone.
    """
    shape = tuple(extents)
    slowest = next((place for place, extent in enumerate(shape) if extent != 1), len(shape))
    parts = [Index()] * len(shape)
    for place in range(len(shape) - 1, slowest - 1, -1):
        if shape[place] == 1:
            continue
        if place == slowest and all(isinstance(a, Axis | Indirect) for a, _ in index.terms):
            parts[place] = index
        else:
            parts[place] = remainder(index, shape[place])
            index = quotient(index, shape[place])
    return tuple(parts)


def evaluate(index: Index, axes: Mapping[Axis, Any], read: Callable[[Any], Any]) -> Any:
    """Return the index at given axis values (ints or arrays); `read` evaluates kernel values."""
    total: Any = index.const
    for atom, coefficient in index.terms:
        match atom:
            case Axis():
                part = axes[atom]
            case Quotient(inner, divisor):
                part = evaluate(inner, axes, read) // divisor
            case Remainder(inner, divisor):
                part = evaluate(inner, axes, read) % divisor
            case Indirect(value, _):
                part = read(value)
        total = total + part * coefficient
    return total
