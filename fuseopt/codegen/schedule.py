"""Schedules: how a loop kernel is tiled. A few candidates, the one expected to be best first.

The axes of a kernel become two tile dimensions. For kernels with reductions the inner one is the
columns: resident (one block holds the row) or looped (blocks of the row one after another, read
again for each pass). For the others the inner one is the axis along which memory is contiguous, or
there is none and the kernel is flat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel

WARP = 32
INT32_LIMIT = 2**31 - 1
RESIDENT_LIMIT = 16384  # elements of a row that one program may hold
FLAT_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way of tiling a kernel.

    outer, inner: the axes of the two tile dimensions, slowest first; inner is empty when flat.
    outer_block, inner_block: tile size; an outer block of 1 makes outer coordinates scalars.
    looped: the inner dimension is walked in blocks by a loop instead of held whole.
    wide_outer, wide_inner: coordinates need 64 bits.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    outer_block: int
    inner_block: int
    looped: bool = False
    wide_outer: bool = False
    wide_inner: bool = False
    num_warps: int = 4
    num_stages: int = 1

    @property
    def outer_count(self) -> Size:
        """Points of the outer tile dimension."""
        return dims.product(a.extent for a in self.outer)

    @property
    def inner_count(self) -> Size:
        """Points of the inner tile dimension."""
        return dims.product(a.extent for a in self.inner)

    def describe(self) -> str:
        """Return a short text for reports: "resident 1x4096, 8 warps"."""
        if not self.inner:
            return f"flat {self.outer_block}, {self.num_warps} warps"
        kind = "looped" if self.looped else "tile"
        return f"{kind} {self.outer_block}x{self.inner_block}, {self.num_warps} warps"


def schedules(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    """Return the candidate schedules of a collapsed kernel, best guess first.

    hints: the value of each size symbol at the shapes that the kernel is built for.
    """
    if kernel.columns:
        return _row_schedules(kernel, hints)
    return _pointwise_schedules(kernel, hints)


# --- kernels with reductions -------------------------------------------------------------------


def _row_schedules(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    rows = dims.hint(kernel.row_count, hints)
    length = dims.hint(kernel.column_count, hints)
    block = _power_of_two(length)
    make = _Maker(kernel, kernel.rows, kernel.columns, hints)
    if _contiguous_axis(kernel, hints) in kernel.rows and rows > 1:
        return _strided_rows(make, rows, length)
    if block > _resident_limit(kernel):
        return [make(1, 4096, looped=True, warps=16), make(1, 2048, looped=True, warps=8)]
    found = []
    for per_thread in (8, 16):
        height = max(1, min(_power_of_two(rows), 2048 // block))
        found.append(make(height, block, warps=_warps(height * block, per_thread)))
        if block < 512:
            break
    return found


def _strided_rows(make: _Maker, rows: int, length: int) -> list[Schedule]:
    """Memory is contiguous across rows: tiles are tall, so that each access reads whole lines."""
    height = min(_power_of_two(rows), 64)
    block = _power_of_two(length)
    if height * block <= RESIDENT_LIMIT:
        return [make(height, block, warps=_warps(height * block, 16))]
    if 32 * block <= RESIDENT_LIMIT and rows >= 32:
        return [make(32, block, warps=_warps(32 * block, 16))]
    return [make(height, max(16, 4096 // height), looped=True, warps=8)]


def _resident_limit(kernel: LoopKernel) -> int:
    """Rows longer than this would not stay in registers."""
    columns = set(kernel.columns)
    loads = [v for v in kernel.loads() if columns <= v.axes]
    return RESIDENT_LIMIT if len(loads) <= 4 else RESIDENT_LIMIT // 2


# --- kernels without reductions ----------------------------------------------------------------


def _pointwise_schedules(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    if len(kernel.rows) <= 1:
        return _flat(kernel, kernel.rows, hints)
    main = _contiguous_axis(kernel, hints)
    others = _other_contiguous(kernel, main, hints)
    extent = dims.hint(main.extent, hints)
    if others is not None:
        outer = tuple(a for a in kernel.rows if a not in (main, others))
        make = _Maker(kernel, (*outer, others), (main,), hints)
        side = min(_power_of_two(extent), 64)
        other_side = min(_power_of_two(dims.hint(others.extent, hints)), 64)
        return [
            make(other_side, side, warps=4),
            make(min(other_side, 32), min(side, 32), warps=4),
        ]
    outer = tuple(a for a in kernel.rows if a != main)
    if extent < WARP:
        return _flat(kernel, (*outer, main), hints)
    make = _Maker(kernel, outer, (main,), hints)
    width = min(_power_of_two(extent), FLAT_BLOCK)
    height = max(
        1, min(_power_of_two(dims.hint(kernel.row_count, hints) // extent), FLAT_BLOCK // width)
    )
    return [make(height, width, warps=4)]


def _flat(kernel: LoopKernel, axes: tuple[Axis, ...], hints: dict[Any, int]) -> list[Schedule]:
    make = _Maker(kernel, axes, (), hints)
    count = dims.hint(kernel.row_count, hints)
    if count <= 32 * FLAT_BLOCK:
        return [make(min(_power_of_two(count), 256), 1, warps=4)]
    return [make(FLAT_BLOCK, 1, warps=4), make(2 * FLAT_BLOCK, 1, warps=8)]


def _contiguous_axis(kernel: LoopKernel, hints: dict[Any, int]) -> Axis:
    """Return the axis along which most bytes are next to each other."""
    weights = _contiguity(kernel, hints)
    fallback = kernel.axes[-1]
    return max(weights, key=lambda a: weights[a], default=fallback)


def _other_contiguous(kernel: LoopKernel, main: Axis, hints: dict[Any, int]) -> Axis | None:
    """Return another axis along which a large access is contiguous: a transpose, or None."""
    weights = _contiguity(kernel, hints)
    rest = {a: w for a, w in weights.items() if a != main}
    if not rest:
        return None
    axis = max(rest, key=lambda a: rest[a])
    wide = dims.hint(axis.extent, hints) >= 8 and dims.hint(main.extent, hints) >= 8
    return axis if wide and rest[axis] * 8 >= weights[main] else None


def _contiguity(kernel: LoopKernel, hints: dict[Any, int]) -> dict[Axis, int]:
    weights: dict[Axis, int] = {}
    accesses = [(s.index, kernel.outputs[s.param].dtype) for s in kernel.stores]
    accesses += [(v.index, v.dtype) for v in kernel.loads()]
    for index, dtype in accesses:
        axes = [a for a in index.axes if index.coefficient(a) == 1]
        points = 1
        for axis in index.axes:
            points *= dims.hint(axis.extent, hints)
        for axis in axes:
            weights[axis] = weights.get(axis, 0) + points * dtype.itemsize
    return weights


# --- common ------------------------------------------------------------------------------------


class _Maker:
    """Makes schedules over given axes, with coordinates as wide as the accesses need."""

    def __init__(
        self,
        kernel: LoopKernel,
        outer: tuple[Axis, ...],
        inner: tuple[Axis, ...],
        hints: dict[Any, int],
    ) -> None:
        self.outer = outer
        self.inner = inner
        self.wide_outer = False
        self.wide_inner = False
        accesses = [s.index for s in kernel.stores] + [v.index for v in kernel.loads()]
        for index in accesses:
            reach = inner_reach = abs(dims.hint(index.const, hints))
            for atom, coefficient in index.terms:
                last = _last(atom, hints) * abs(dims.hint(coefficient, hints))
                reach += last
                inner_reach += last if _touches(atom, inner) else 0
            self.wide_outer |= reach > INT32_LIMIT
            self.wide_inner |= inner_reach > INT32_LIMIT
        points = dims.hint(dims.product(a.extent for a in kernel.axes), hints)
        self.wide_outer |= points > INT32_LIMIT

    def __call__(
        self, outer_block: int, inner_block: int, *, looped: bool = False, warps: int = 4
    ) -> Schedule:
        return Schedule(
            self.outer,
            self.inner,
            outer_block,
            inner_block,
            looped,
            self.wide_outer,
            self.wide_inner,
            num_warps=warps,
        )


def _last(atom: Any, hints: dict[Any, int]) -> int:
    extent = getattr(atom, "extent", None)
    if extent is None:
        return INT32_LIMIT  # a quotient or remainder: rare, and 64 bits are always right
    return dims.hint(extent, hints) - 1


def _touches(atom: Any, axes: tuple[Axis, ...]) -> bool:
    if isinstance(atom, Axis):
        return atom in axes
    inside = atom.value.axes if hasattr(atom, "value") else atom.index.axes
    return bool(inside & set(axes))


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _warps(elements: int, per_thread: int) -> int:
    return max(1, min(32, _power_of_two(elements // (per_thread * WARP))))
