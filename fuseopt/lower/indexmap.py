"""What views do to indices: broadcasting, row-major reshaping, strides."""

from __future__ import annotations

from collections.abc import Sequence

from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ir.index import Index, split_index
from fuseopt.ir.layout import pair_dimensions


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
    for group, target in pair_dimensions(shape, wanted):
        flat = Index()
        for place in group:
            flat = flat * shape[place] + indices[place]
        result.extend(split_index(flat, [wanted[place] for place in target]))
    return tuple(result)
