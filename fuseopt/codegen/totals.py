"""Totals in two steps: programs add up what they meet, and a second kernel adds up the programs.

    for row: out0[row, c] = ...; out1[c] = sum over rows of v
    ->  for row: out0[row, c] = ...; partial0[group, c] += v     a group of rows a program
        out1[c] = fold sum over groups of partial0[group, c]

Each program keeps its sums in registers while it walks its rows, so nothing is read twice; the
order of the additions depends on the number of groups alone, so results repeat bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index, axis_index
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.rewrite import Rebuilt
from fuseopt.ir.values import Fold, Value, walk


@dataclass(frozen=True, slots=True)
class Partial:
    """What the programs leave of one total: sums of `dtype` for each group and kept point."""

    fold: Fold
    kept: tuple[Axis, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the sums."""
        return self.fold.dtype

    @property
    def points(self) -> Size:
        """The sums of one group."""
        return dims.product(a.extent for a in self.kept)

    @property
    def index(self) -> Index:
        """The place of a point among those of its group."""
        where = Index()
        reach: Size = 1
        for axis in reversed(self.kept):
            where = where + axis_index(axis) * reach
            reach = dims.multiply(reach, axis.extent)
        return where


def partials_of(kernel: LoopKernel) -> tuple[Partial, ...]:
    """Return what the programs of a kernel must leave behind, one for each total."""
    return tuple(
        Partial(f, tuple(a for a in kernel.axes if a not in f.over)) for f in kernel.totals()
    )


def first_step(kernel: LoopKernel) -> LoopKernel:
    """Return the kernel without its totals: it writes the sums of each group instead."""
    partials = partials_of(kernel)
    if not partials:
        return kernel
    folds = {id(p.fold) for p in partials}
    stores = [s for s in kernel.stores if not _above(s, folds)]
    stores += [Store(n, p.index, p.fold.arg, (), partial=True) for n, p in enumerate(partials)]
    return replace(kernel, stores=tuple(stores))


def second_step(kernel: LoopKernel, groups: int) -> LoopKernel:
    """Return the kernel that makes results of the sums of all groups.

    Its inputs are those of the kernel and, after them, the sums of each total.
    """
    partials = partials_of(kernel)
    (kept,) = {p.kept for p in partials}
    group = Axis("g", groups)
    inputs = tuple(TensorParam(p.dtype, (groups, p.points), (p.points, 1)) for p in partials)
    rebuilt = _SecondStep(kernel, partials, group)
    stores = [s for s in kernel.stores if _above(s, {id(p.fold) for p in partials})]
    for value in walk(root for s in stores for root in (*s.guard, s.value)):
        rebuilt.add(value)
    return LoopKernel(
        kept,
        (group,),
        (*kernel.inputs, *inputs),
        kernel.outputs,
        tuple(rebuilt.store(s) for s in stores),
    )


class _SecondStep(Rebuilt):
    def __init__(self, kernel: LoopKernel, partials: tuple[Partial, ...], group: Axis) -> None:
        super().__init__((group,), lambda index: index)
        self.group = group
        self.partial_of = {id(p.fold): (n, p) for n, p in enumerate(partials)}
        self.first = len(kernel.inputs)

    def value(self, value: Value) -> Value:
        known = self.partial_of.get(id(value))
        if known is None:
            return super().value(value)
        number, partial = known
        where = partial.index + axis_index(self.group) * partial.points
        load = self.values.load(self.first + number, partial.dtype, where)
        return self.values.fold(partial.fold.combine, load, (self.group,))


def _above(store: Store, folds: set[int]) -> bool:
    return any(id(v) in folds for v in walk([store.value]))
