"""Choosing schedules: a few candidates for a kernel at given sizes, the one expected best first.

The aim is memory speed: 16-byte accesses, each input read once, enough bytes in flight. What a row
holds in registers decides between one tile, several strips, a shared row, or a loop.
"""

from __future__ import annotations

from typing import Any

from fuseopt.codegen.schedule import Schedule
from fuseopt.ir import dims
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Apply, Convert, Fold, Load

WARP = 32
LANES = 8  # elements that a thread reads at a time: 16 bytes of a 16-bit type
FLAT_BLOCK = 1024
INT32_LIMIT = 2**31 - 1
MOST_STRIPS = 16
RESIDENT_LIMIT = 16384  # elements of a row that one program may hold
MOST_PARTS = 64
PROCESSORS = 132  # multiprocessors of the devices that the choices were measured on


def schedules(
    kernel: LoopKernel, hints: dict[Any, int], *, sequential: bool = False
) -> list[Schedule]:
    """Return the candidate schedules of a collapsed kernel, best guess first.

    hints: the value of each size symbol at the shapes that the kernel is built for.
    sequential: programs run one after another (the interpreter), so none may wait for another.
    """
    if not kernel.columns:
        return _pointwise_schedules(kernel, hints)
    rows = dims.hint(kernel.row_count, hints)
    if contiguous_axis(kernel, hints) in kernel.rows and rows > 1:
        return _strided_rows(kernel, hints)
    found = _row_schedules(kernel, hints)
    if sequential:
        found = [s for s in found if s.parts == 1] or _looped(kernel, hints)
    return found


# --- kernels with reductions -------------------------------------------------------------------


def _row_schedules(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    rows = dims.hint(kernel.row_count, hints)
    length = dims.hint(kernel.column_count, hints)
    dynamic = any(not isinstance(a.extent, int) for a in kernel.columns)
    if length <= 2048:
        return _short_rows(kernel, hints, rows, length)
    limit = RESIDENT_LIMIT if _live_tiles(kernel) <= 4 else RESIDENT_LIMIT // 2
    if length <= limit:
        return _resident_rows(kernel, hints, length)
    if dynamic or not _can_share(kernel) or -(-length // limit) > MOST_PARTS:
        return _looped(kernel, hints)
    whole = all(not set(kernel.columns) & s.axes for s in kernel.stores)
    if whole and rows >= 2 * PROCESSORS:
        return _looped(kernel, hints)[:3]  # nothing of the row is needed after its reductions
    held = _long_resident_rows(kernel, hints, length)
    return [*held, *_shared_rows(kernel, hints, rows, length)[:3], _looped(kernel, hints)[0]]


def _short_rows(
    kernel: LoopKernel, hints: dict[Any, int], rows: int, length: int
) -> list[Schedule]:
    """Several rows a program; where a row fits a warp, its reductions stay inside the warp."""
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    block = power_of_two(length)
    tall = power_of_two(rows)
    height = max(1, min(tall, 2048 // block))
    found = [make(height, block, warps=warps_for(height * block, 2 * LANES))]
    if block < 512:
        return [*found, make(height, block, warps=warps_for(height * block, LANES))]
    for width in (256, 512):
        strips = -(-length // width)
        if 2 <= strips <= 8:
            lanes = width // (LANES * WARP)
            found.append(make(min(tall, 4 // lanes), width, strips=strips, warps=4))
    narrow = 128
    if -(-length // narrow) * narrow < 0.9 * block and length > 512:
        strips = -(-length // narrow)
        found.append(make(min(tall, 8), narrow, strips=strips, warps=4))
    return found


def _resident_rows(kernel: LoopKernel, hints: dict[Any, int], length: int) -> list[Schedule]:
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    block = power_of_two(length)
    found = []
    if block == length:
        wide_enough = [n for n in (2 * LANES, 4 * LANES) if n * WARP * 32 >= block]
        found = [make(1, block, warps=warps_for(block, n)) for n in wide_enough]
    for width in (1024, 2048, 4096):
        strips = -(-length // width)
        if 1 < strips <= MOST_STRIPS and (block != length or strips == 4):
            found.append(make(1, width, strips=strips, warps=warps_for(width, LANES)))
    return found[:5]


def _long_resident_rows(kernel: LoopKernel, hints: dict[Any, int], length: int) -> list[Schedule]:
    """Rows that take most of a multiprocessor's registers, where little else has to be held."""
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    found = []
    for width, warps, most, registers in (
        (8192, 32, 5, 0),
        (4096, 16, 8, 64),
        (8192, 32, 8, 64),
    ):
        strips = -(-length // width)
        if strips <= most and _live_tiles(kernel) <= 4:
            again = registers > 0
            made = make(1, width, strips=strips, again=again, warps=warps, registers=registers)
            found.append(made)
    return found


def _shared_rows(
    kernel: LoopKernel, hints: dict[Any, int], rows: int, length: int
) -> list[Schedule]:
    """Programs that hold 8K or 16K elements of a row each."""
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    found = []
    for block, strips, warps in ((8192, 1, 16), (4096, 4, 16), (8192, 4, 32)):
        parts = -(-length // (block * strips))
        if 1 < parts <= MOST_PARTS and rows * parts <= INT32_LIMIT:
            again = strips > 1
            made = make(
                1,
                block,
                strips=strips,
                parts=parts,
                again=again,
                warps=warps,
                registers=64 if again else 0,
            )
            found.append(made)
    return found


def _can_share(kernel: LoopKernel) -> bool:
    """Whether partial reductions can be exchanged: float32 sums and extremes, not too many."""
    folds = list(kernel.folds())
    kinds = {f.combine for f in folds}
    return (
        all(f.dtype.itemsize == 4 and f.dtype.is_floating_point for f in folds)
        and kinds <= {"sum", "max_number"}
        and len(folds) <= 8
    )


def _looped(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    """Rows walked in steps of several tiles, which keeps several reads under way."""
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    return [
        make(1, 2048, strips=4, looped=True, warps=8),
        make(1, 1024, strips=8, looped=True, warps=4),
        make(1, 2048, strips=8, looped=True, warps=8),
        make(1, 4096, strips=4, looped=True, warps=16),
    ]


def _strided_rows(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    """Memory is contiguous across rows: tiles are tall, so that each access reads whole lines."""
    make = Maker(kernel, kernel.rows, kernel.columns, hints)
    rows = dims.hint(kernel.row_count, hints)
    length = dims.hint(kernel.column_count, hints)
    block = power_of_two(length)
    found = []
    for height, per_thread in ((32, 4 * LANES), (32, 8 * LANES), (64, 8 * LANES), (16, 4 * LANES)):
        height = min(power_of_two(rows), height)
        if height * block <= 4 * RESIDENT_LIMIT // 2:
            found.append(make(height, block, warps=warps_for(height * block, per_thread)))
    if not found:
        height = min(power_of_two(rows), 64)
        found = [
            make(height, min(32, block), strips=2, looped=True, warps=8),
            make(height, min(64, block), looped=True, warps=8),
        ]
    return list(dict.fromkeys(found))


def _live_tiles(kernel: LoopKernel) -> int:
    """How many values of a row are needed both before and after its reductions, about."""
    columns = set(kernel.columns)
    reduced = {id(v) for f in kernel.folds() for v in _below(f)}
    loads = [v for v in kernel.loads() if columns & v.axes]
    return sum(id(v) in reduced for v in loads) + len(kernel.stores)


def _below(fold: Fold) -> list[Any]:
    found: list[Any] = []
    stack: list[Any] = [fold.arg]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (Apply, Convert)):
            stack.extend(value.operands)
        elif isinstance(value, Load):
            found.append(value)
    return found


# --- kernels without reductions ----------------------------------------------------------------


def _pointwise_schedules(kernel: LoopKernel, hints: dict[Any, int]) -> list[Schedule]:
    if len(kernel.rows) <= 1:
        return _flat(kernel, kernel.rows, hints)
    main = contiguous_axis(kernel, hints)
    others = _other_contiguous(kernel, main, hints)
    extent = dims.hint(main.extent, hints)
    if others is not None:
        outer = tuple(a for a in kernel.rows if a not in (main, others))
        make = Maker(kernel, (*outer, others), (main,), hints)
        side = min(power_of_two(extent), 64)
        other_side = min(power_of_two(dims.hint(others.extent, hints)), 64)
        return [
            make(other_side, side, warps=4),
            make(min(other_side, 32), min(side, 32), warps=4),
        ]
    outer = tuple(a for a in kernel.rows if a != main)
    if extent < WARP:
        return _flat(kernel, (*outer, main), hints)
    make = Maker(kernel, outer, (main,), hints)
    width = min(power_of_two(extent), FLAT_BLOCK)
    rows = dims.hint(kernel.row_count, hints) // extent
    height = max(1, min(power_of_two(rows), FLAT_BLOCK // width))
    found = [make(height, width, warps=4)]
    if rows * extent > 64 * FLAT_BLOCK * PROCESSORS:
        found.append(make(max(1, 2 * height), width, warps=4))
    if extent % width:
        found.append(_flat(kernel, (*outer, main), hints)[0])
    return found


def _flat(kernel: LoopKernel, axes: tuple[Axis, ...], hints: dict[Any, int]) -> list[Schedule]:
    make = Maker(kernel, axes, (), hints)
    count = dims.hint(kernel.row_count, hints)
    if count <= 32 * FLAT_BLOCK:
        return [make(min(power_of_two(count), 256), 1, warps=4)]
    return [make(FLAT_BLOCK, 1, warps=4), make(2 * FLAT_BLOCK, 1, warps=8)]


def contiguous_axis(kernel: LoopKernel, hints: dict[Any, int]) -> Axis:
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


class Maker:
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
        self,
        outer_block: int,
        inner_block: int,
        *,
        strips: int = 1,
        looped: bool = False,
        parts: int = 1,
        again: bool = False,
        warps: int = 4,
        registers: int = 0,
        groups: int = 0,
        fixed: tuple[Axis, ...] = (),
        ahead: bool = False,
    ) -> Schedule:
        """Return the schedule with tiles of these sizes."""
        return Schedule(
            self.outer,
            self.inner,
            outer_block,
            inner_block,
            strips,
            looped,
            parts,
            again,
            self.wide_outer,
            self.wide_inner,
            num_warps=warps,
            registers=registers,
            groups=groups,
            fixed=fixed,
            ahead=ahead,
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


def power_of_two(count: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << max(count - 1, 0).bit_length()


def warps_for(elements: int, per_thread: int) -> int:
    """Return how many warps hold so many elements with so many a thread."""
    return max(1, min(32, power_of_two(elements // (per_thread * WARP))))
