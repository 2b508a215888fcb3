"""Collapsing axes: neighbours that every access walks as one become one axis.

    in0[512a + 8b + c] with b: 64, c: 8   ->   in0[512a + d] with d: 512   ->   in0[e]

Axes are first put in the order of the widest access, so that the last one is contiguous in memory
and a permuted tensor that is only read and written elementwise becomes flat.
"""

from __future__ import annotations

import itertools

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.rewrite import all_indices, rewrite_indices


def collapse(kernel: LoopKernel, hints: dict[object, int]) -> LoopKernel:
    """Return the same kernel over as few axes as its accesses allow.

    hints: an example value for each size symbol; it orders strides that are not numbers.
    """
    widest = _widest_access(kernel, hints)
    kernel = rewrite_indices(
        kernel,
        _by_stride(kernel.rows, widest, hints),
        _by_stride(kernel.columns, widest, hints),
        lambda index: index,
    )
    merged = _one_merge(kernel)
    while merged is not None:
        kernel = merged
        merged = _one_merge(kernel)
    return kernel


def _widest_access(kernel: LoopKernel, hints: dict[object, int]) -> Index:
    def points(index: Index) -> int:
        reach = 1
        for atom, _ in index.terms:
            if isinstance(atom, Axis):
                reach *= dims.hint(atom.extent, hints)
        return reach

    accesses = [s.index for s in kernel.stores] + [v.index for v in kernel.loads()]
    return max(accesses, key=points)


def _by_stride(axes: tuple[Axis, ...], access: Index, hints: dict[object, int]) -> tuple[Axis, ...]:
    strides = {a: abs(dims.hint(access.coefficient(a), hints)) for a in axes}
    if any(stride == 0 for stride in strides.values()):
        moving = iter(sorted((a for a in axes if strides[a]), key=lambda a: -strides[a]))
        return tuple(next(moving) if strides[a] else a for a in axes)
    return tuple(sorted(axes, key=lambda a: -strides[a]))


def _one_merge(kernel: LoopKernel) -> LoopKernel | None:
    indices = all_indices(kernel)
    for axes in (kernel.rows, kernel.columns):
        for outer, inner in itertools.pairwise(axes):
            if all(_walks_as_one(i, outer, inner) for i in indices):
                return _merge(kernel, outer, inner)
    return None


def _walks_as_one(index: Index, outer: Axis, inner: Axis) -> bool:
    stride: Size = dims.multiply(index.coefficient(inner), inner.extent)
    return dims.same(index.coefficient(outer), stride)


def _merge(kernel: LoopKernel, outer: Axis, inner: Axis) -> LoopKernel:
    both = Axis(f"{outer.name}{inner.name}", dims.multiply(outer.extent, inner.extent))

    def renamed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(both if a == inner else a for a in axes if a != outer)

    def on_terms(index: Index) -> Index:
        terms = tuple((both if a == inner else a, c) for a, c in index.terms if a != outer)
        return Index(index.const, terms)

    return rewrite_indices(kernel, renamed(kernel.rows), renamed(kernel.columns), on_terms)
