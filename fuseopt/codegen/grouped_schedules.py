"""Choosing schedules of kernels with totals: how many groups, and what a program holds of a row.

Enough groups fill the device, and few keep the second step small: its reads are groups times the
points kept. Rows that are walked one after another leave the device idle between them unless
several programs share a multiprocessor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuseopt.codegen.candidates import (
    LANES,
    MOST_STRIPS,
    PROCESSORS,
    WARP,
    Maker,
    contiguous_axis,
    power_of_two,
    warps_for,
)
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir import dims
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel

TILE = 4096  # elements that a program without a row to hold works on at a time
FLAT = 2048
HELD_TWICE = 8192  # elements of a row that a program can hold while it reads the next one
INTERPRETED_TILE = 1 << 15  # the interpreter's cost is per operation, not per element
INTERPRETED_GROUPS = 2


def grouped_schedules(
    kernel: LoopKernel, hints: dict[Any, int], *, sequential: bool = False
) -> list[Schedule]:
    """Return the candidate schedules of a kernel that `totals.first_step` made, best guess first.

    sequential: programs run one after another (the interpreter): few groups and large tiles.
    """
    kept = next(s.index.axes for s in kernel.stores if s.partial)
    if kernel.columns:
        found = _rows(kernel, kept, hints)
    else:
        found = _pointwise(kernel, kept, hints)
    return [_for_interpreter(found[0], hints)] if sequential else found


def _rows(kernel: LoopKernel, kept: frozenset[Axis], hints: dict[Any, int]) -> list[Schedule]:
    """Rows with reductions: several short ones, or one, held by a program at a time."""
    outer = tuple(a for a in kernel.rows if a not in kept)
    fixed = tuple(a for a in kernel.rows if a in kept)
    make = _Grouped(kernel, outer, kernel.columns, fixed, hints)
    length = dims.hint(kernel.column_count, hints)
    block = power_of_two(length)
    if length <= 1024:
        tall = max(1, min(power_of_two(make.outer_points), 2048 // block))
        warps = warps_for(tall * block, 2 * LANES)
        lean = warps_for(tall * block, LANES)
        return [
            make(tall, block, 4, ahead=True, warps=warps),
            make(tall, block, 8, ahead=True, warps=lean),
            make(tall, block, 4, warps=warps),
            make(tall, block, 8, warps=lean),
        ]
    if length > HELD_TWICE:
        found = []
        for width, warps in ((4096, 16), (8192, 32)):
            strips = -(-length // width)
            found.append(make(1, width, 1, strips=strips, again=True, warps=warps))
        return [*found, make(1, 4096, 1, strips=-(-length // 4096), warps=16)]
    if block == length or block <= 2048:
        full, half = warps_for(block, LANES), warps_for(block, 2 * LANES)
        return [
            make(1, block, 2, ahead=full < 32, warps=full),
            make(1, block, 2, ahead=True, warps=half),
            make(1, block, 4, ahead=True, warps=half),
            make(1, block, 2 if full < 32 else 1, warps=full),
            make(1, block, 4, warps=half),
        ]
    found = []
    for width in (1024, 2048, 4096):
        strips = -(-length // width)
        if 1 < strips <= MOST_STRIPS // 4:
            warps = warps_for(width, LANES)
            found += [
                make(1, width, each, strips=strips, ahead=ahead, warps=warps)
                for each, ahead in ((2, True), (1, True), (2, False))
            ]
    return found[:6]


def _pointwise(kernel: LoopKernel, kept: frozenset[Axis], hints: dict[Any, int]) -> list[Schedule]:
    """No reductions but the totals: tiles along the axis that memory is contiguous along."""
    main = contiguous_axis(kernel, hints)
    outer = tuple(a for a in kernel.rows if a not in kept and a != main)
    fixed = tuple(a for a in kernel.rows if a in kept and a != main)
    if not outer:  # all that is summed lies in one axis
        summed = tuple(a for a in kernel.rows if a not in kept)
        flat = _Grouped(kernel, summed, (), tuple(a for a in kernel.rows if a in kept), hints)
        block = max(WARP, min(power_of_two(flat.outer_points), FLAT))
        return [flat(block, 1, 8, warps=warps_for(block, 2 * LANES))]
    make = _Grouped(kernel, outer, (main,), fixed, hints)
    extent = dims.hint(main.extent, hints)
    tall = power_of_two(make.outer_points)
    found = []
    for width, warps, each, ahead in (
        (256, 8, 4, True),
        (512, 8, 4, False),
        (1024, 4, 8, True),
        (256, 4, 8, False),
        (128, 4, 8, True),
    ):
        width = min(power_of_two(extent), width)
        height = max(2, min(tall, TILE * warps // 8 // width))
        found.append(make(height, width, each, ahead=ahead, warps=warps))
    return list(dict.fromkeys(found))


def _for_interpreter(schedule: Schedule, hints: dict[Any, int]) -> Schedule:
    width = schedule.width if schedule.inner else 1
    tall = power_of_two(dims.hint(schedule.outer_count, hints))
    height = max(schedule.outer_block, min(tall, INTERPRETED_TILE // width))
    tiles = -(-dims.hint(schedule.outer_count, hints) // height)
    return replace(schedule, outer_block=height, groups=min(tiles, INTERPRETED_GROUPS))


class _Grouped:
    """Makes schedules with groups over given axes."""

    def __init__(
        self,
        kernel: LoopKernel,
        outer: tuple[Axis, ...],
        inner: tuple[Axis, ...],
        fixed: tuple[Axis, ...],
        hints: dict[Any, int],
    ) -> None:
        self.make = Maker(kernel, outer, inner, hints)
        self.fixed = fixed
        self.fixed_points = dims.hint(dims.product(a.extent for a in fixed), hints)
        self.outer_points = dims.hint(dims.product(a.extent for a in outer), hints)
        self.inner_points = dims.hint(dims.product(a.extent for a in inner), hints)
        self.holds_rows = bool(kernel.columns)

    def __call__(
        self,
        outer_block: int,
        inner_block: int,
        each: int,
        *,
        strips: int = 1,
        again: bool = False,
        ahead: bool = False,
        warps: int = 4,
    ) -> Schedule:
        """each: programs to a multiprocessor."""
        others = self.fixed_points
        if not self.holds_rows:
            others *= -(-self.inner_points // inner_block)
        tiles = -(-self.outer_points // outer_block)
        groups = max(1, min(tiles, -(-PROCESSORS * each // others)))
        return self.make(
            outer_block,
            inner_block,
            strips=strips,
            again=again,
            warps=warps,
            groups=groups,
            fixed=self.fixed,
            ahead=ahead,
        )
