"""A loop kernel: axes, parameters and stores. What runs as one Triton kernel, before a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index
from fuseopt.ir.values import Fold, Load, Value, index_values, sizes_of, walk


@dataclass(frozen=True, slots=True)
class TensorParam:
    """A tensor the kernel reads or writes. Strides are in elements; the pointer is at element 0."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]

    @property
    def span(self) -> Size:
        """The number of elements from the first to the last one, both included."""
        total: Size = 1
        for size, stride in zip(self.shape, self.strides, strict=True):
            total = dims.add(total, dims.multiply(dims.add(size, -1), stride))
        return total

    @property
    def distinct(self) -> Size:
        """The number of elements counted once where an expanded dimension repeats them."""
        sizes = [s for s, st in zip(self.shape, self.strides, strict=True) if st != 0]
        return dims.product(sizes)


@dataclass(frozen=True, slots=True)
class Store:
    """Writes `value` to element `index` of output `param`, where every guard is true.

    partial: the value is added up along the axes that the index does not have, as far as one
        program gets, and the output holds the sums of all programs (`codegen.totals`).
    """

    param: int
    index: Index
    value: Value
    guard: tuple[Value, ...] = ()
    partial: bool = False

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes along which the store takes place."""
        return self.index.axes.union(self.value.axes, *(g.axes for g in self.guard))


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """Stores over a loop nest: `rows` are parallel axes, `columns` are reduced or tiled together.

    A `Fold` runs over exactly the columns, or is a total: a sum over all axes that its result does
    not have, rows among them, of which only results of its own size are computed. A kernel without
    folds over columns has none; the schedule tiles its rows as it likes.
    """

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inputs: tuple[TensorParam, ...]
    outputs: tuple[TensorParam, ...]
    stores: tuple[Store, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Rows, then columns."""
        return self.rows + self.columns

    def values(self) -> list[Value]:
        """Every value of the kernel, operands before users."""
        return walk(root for s in self.stores for root in (*s.guard, *_roots(s)))

    def loads(self) -> Iterator[Load]:
        """The loads among the values."""
        return (v for v in self.values() if isinstance(v, Load))

    def folds(self) -> Iterator[Fold]:
        """The reductions over the columns."""
        folds = (v for v in self.values() if isinstance(v, Fold))
        return (f for f in folds if f.over == self.columns)

    def totals(self) -> Iterator[Fold]:
        """The sums over rows."""
        folds = (v for v in self.values() if isinstance(v, Fold))
        return (f for f in folds if f.over != self.columns)

    def extents(self) -> frozenset[Any]:
        """The size symbols that its loops and the layouts of its tensors are made of."""
        return frozenset().union(*map(dims.symbols_in, self._layout()))

    def _layout(self) -> Iterator[Size]:
        yield from (axis.extent for axis in self.axes)
        for param in (*self.inputs, *self.outputs):
            yield from (*param.shape, *param.strides)

    def sizes(self) -> Iterator[Size]:
        """Every size that the kernel computes with: its tensors', its loops' and its values'."""
        yield from self._layout()
        for store in self.stores:
            yield from store.index.sizes()
        for value in self.values():
            yield from sizes_of(value)

    @property
    def launches(self) -> int:
        """How many kernels it runs as: a second one completes sums over rows."""
        return 2 if any(True for _ in self.totals()) else 1

    @property
    def row_count(self) -> Size:
        """The number of points of the row axes."""
        return dims.product(a.extent for a in self.rows)

    @property
    def column_count(self) -> Size:
        """The number of points of the column axes."""
        return dims.product(a.extent for a in self.columns)


def _roots(store: Store) -> tuple[Value, ...]:
    return (*index_values(store.index), store.value)
