"""What views do to indices: broadcasting, row-major reshaping, strides."""

from __future__ import annotations

from collections.abc import Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ir.index import Index, split_index


def broadcast(indices: tuple[Index, ...], operand: Expr) -> tuple[Index, ...]:
    """Return the index in an operand of the element at `indices` of what it broadcasts to."""
    trailing = indices[len(indices) - operand.rank :]
    return tuple(
        Index() if size == 1 else where for size, where in zip(operand.shape, trailing, strict=True)
    )


def flat(indices: Sequence[Index], strides: Sequence[Size]) -> Index:
    """Return the offset in elements of an index."""
    total = Index()
    for where, stride in zip(indices, strides, strict=True):
        total = total + where * stride
    return total


def reshaped(
    indices: tuple[Index, ...], shape: Sequence[Size], wanted: Sequence[Size]
) -> tuple[Index, ...]:
    """Return the index in `wanted` of the element at `indices` in `shape`, both row-major."""
    result: list[Index] = []
    for group, target in _factor_groups(shape, wanted):
        flat = Index()
        for place in group:
            flat = flat * shape[place] + indices[place]
        result.extend(split_index(flat, [wanted[place] for place in target]))
    return tuple(result)


def _factor_groups(
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
