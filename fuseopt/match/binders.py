"""Which axes of a reduction its body wants split, and which it wants joined.

sum_r x[r // 4, r % 4]   splits r in two     sum_(a, b) x[4 * a + b], b below 4   joins them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.match.indices import Atom, Axis, Index, Looked, Quotient, Remainder
from fuseopt.match.terms import Load, Pieces, Position, Term, walk


def axis_to_split(over: Sequence[Axis], body: Term) -> tuple[Axis, Size] | None:
    """Return an axis that the body divides, and the extent of its inner part."""
    for atom in atoms_in(body):
        if isinstance(atom, (Quotient, Remainder)):
            axis = atom.index.single_axis
            if axis is None or axis not in over:
                continue
            if dims.divide(axis.extent, atom.divisor) is not None:
                return axis, atom.divisor
    return None


def occur_joined(body: Term, outer: Axis, inner: Axis) -> bool:
    """Whether two axes only occur as one mixed-radix index."""
    found = False
    for index in indices_in(body):
        parts = dict(index.terms)
        if outer not in parts and inner not in parts:
            continue
        if outer not in parts or inner not in parts:
            return False
        if not dims.same(parts[outer], dims.multiply(parts[inner], inner.extent)):
            return False
        found = True
    return found


def indices_in(body: Term) -> Iterable[Index]:
    """Yield the indices in a term, those inside others too."""
    for term in walk(body):
        given: tuple[Index, ...] = ()
        match term:
            case Load(where=where):
                given = where
            case Position(index=index) | Pieces(selector=index):
                given = (index,)
        for index in given:
            yield from _nested(index)


def _nested(index: Index) -> Iterable[Index]:
    yield index
    for atom, _ in index.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield from _nested(atom.index)
        elif isinstance(atom, Looked):
            yield from indices_in(atom.value)


def atoms_in(body: Term) -> Iterable[Atom]:
    """Yield the atoms of all indices in a term."""
    for index in indices_in(body):
        for atom, _ in index.terms:
            yield atom
