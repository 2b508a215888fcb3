"""Lining up dimensions with loop axes: which index runs along which axes, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index, SplitAxis, mixed_radix


def align(extents: Sequence[Size], axes: Sequence[Axis]) -> tuple[Index, ...] | None:
    """Return the index of each dimension over axes that together have the same elements in order.

        align((6, 4), (a: 2, b: 3, c: 4))  ->  (3*a + b, c)

    Raises `SplitAxis` where an axis spans several dimensions, returns None where sizes disagree.
    """
    left = list(axes)
    found: list[Index] = []
    for extent in reversed(extents):
        taken: list[Axis] = []
        reach: Size = 1
        while not dims.same(reach, extent):
            if not left:
                return None
            axis = left.pop()
            wider = dims.multiply(reach, axis.extent)
            if dims.divide(extent, wider) is None:
                inner = dims.divide(extent, reach)
                if inner is None or dims.divide(axis.extent, inner) is None:
                    return None
                raise SplitAxis(axis, inner)
            taken.insert(0, axis)
            reach = wider
        found.insert(0, mixed_radix(taken))
    return None if left else tuple(found)


def run_of(axes: Sequence[Axis], count: Size) -> tuple[Axis, ...] | None:
    """Return neighbouring axes with `count` points in all, the last such run, or None."""
    for end in range(len(axes), 0, -1):
        points: Size = 1
        for start in range(end - 1, -1, -1):
            points = dims.multiply(points, axes[start].extent)
            if dims.same(points, count):
                return tuple(axes[start:end])
    return None


def covered(indices: Iterable[Index], shape: Sequence[Size]) -> frozenset[Axis] | None:
    """Return the axes whose points meet every element of a tensor exactly once, or None."""
    used: set[Axis] = set()
    for where, extent in zip(indices, shape, strict=True):
        axes = _radix_axes(where, extent)
        if axes is None or used & axes:
            return None
        used |= axes
    return frozenset(used)


def _radix_axes(where: Index, extent: Size) -> set[Axis] | None:
    if where.const != 0:
        return None
    left = dict(where.terms)
    reach: Size = 1
    used: set[Axis] = set()
    while left:
        following = next((a for a, c in left.items() if dims.same(c, reach)), None)
        if not isinstance(following, Axis):
            return None
        del left[following]
        used.add(following)
        reach = dims.multiply(reach, following.extent)
    return used if dims.same(reach, extent) else None


def pair_dimensions(
    shape: Sequence[Size], wanted: Sequence[Size]
) -> list[tuple[list[int], list[int]]]:
    """Pair runs of dimensions of two shapes that hold the same number of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(wanted):
        left: list[int] = []
        right: list[int] = []
        have: Size = 1
        want: Size = 1
        while True:
            if i < len(shape) and (not left or _smaller(have, want)):
                have = dims.multiply(have, shape[i])
                left.append(i)
                i += 1
            elif j < len(wanted) and (not right or not dims.same(have, want)):
                want = dims.multiply(want, wanted[j])
                right.append(j)
                j += 1
            elif i < len(shape):
                have = dims.multiply(have, shape[i])
                left.append(i)
                i += 1
            if dims.same(have, want) or (i >= len(shape) and j >= len(wanted)):
                break
        groups.append((left, right))
    return groups


def _smaller(a: Size, b: Size) -> bool:
    return dims.is_nonnegative(dims.add(b, -dims.add(a, 1)))
