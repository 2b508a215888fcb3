"""Printing a loop kernel under a schedule as the body of a Triton function.

A value is computed where its axes say: once per program where it does not vary along the inner
tile dimension, else once per tile. Reductions of the same depth share a pass over the row. A
resident row is read once and stays in registers, in one tile or several strips; a looped row is
read again for each pass. Programs that share a row combine their reductions through memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.cross import CrossProgram
from fuseopt.codegen.express import Body, Expressions, Tile, divides, roots_of
from fuseopt.codegen.pairs import PairEmitter
from fuseopt.codegen.passes import OnlineSoftmax, Pair, Pass, plan_passes
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir import dims
from fuseopt.ir.combine import COMBINES, identity_of
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Fold, Load, Value

# Reductions of one pass over what a program holds: tiles still to be reduced, states of pairs.
_Partial = tuple[list[tuple[Fold, str]], list[tuple[Pair, tuple[str, str]]]]

THREADS_PER_WARP = 32
EARLY_BYTES = 160  # of a thread's registers that may hold what was read before it is needed


class Printer(Expressions):
    """Prints one kernel under one schedule.

    interpreted: spell NVIDIA's math functions as calls that Triton's interpreter can run.
    """

    def __init__(self, kernel: LoopKernel, schedule: Schedule, *, interpreted: bool) -> None:
        super().__init__(kernel, schedule, interpreted=interpreted)
        self.cross = CrossProgram(self)
        self.pairs = PairEmitter(self)
        self.resident: list[Tile] = []

    # --- the whole -----------------------------------------------------------------------------

    def run(self) -> Body:
        """Return the statements of the kernel's function, indented by four spaces."""
        s = self.schedule
        self._row_coordinates()
        if s.inner and not s.looped:
            for strip in range(s.strips):
                self.resident.append(self._tile(self._strip_start(strip), strip))
            self._read_early()
        for walk in plan_passes(self.kernel, paired=s.looped or s.parts > 1):
            self._pass(walk)
            if s.again:
                self._forget()
        self._finish()
        self.body.slots = self.cross.slots
        return self.body

    def _read_early(self) -> None:
        """Start all reads at once, where what they bring fits: none then waits for a reduction."""
        s = self.schedule
        loads = self.direct_loads()
        threads = s.num_warps * THREADS_PER_WARP
        held = s.outer_block * s.width // threads * sum(v.dtype.itemsize for v in loads)
        if held <= EARLY_BYTES:
            for tile in self.resident:
                self.tile = tile
                self.compute(loads)

    def direct_loads(self) -> list[Load]:
        """What is read along the row at addresses known from coordinates alone."""
        loads = self.kernel.loads()
        return [v for v in loads if v.axes & self.inner_axes and is_direct(v)]

    def _forget(self) -> None:
        """Keep of each tile what was read, under a name that says nothing of its value.

        The compiler would otherwise see that a later pass computes the same, and keep that.
        """
        loads = [v for v in self.kernel.loads() if v.axes & self.inner_axes]
        for tile in self.resident:
            known = tile.names
            tile.names = {id(v): known[id(v)] for v in loads if id(v) in known}
            for load in loads:
                if id(load) in known and load.dtype != torch.bool:  # bits have no register
                    name = self.fresh()
                    self.line(f"{name} = _anew_{load.dtype.itemsize}({known[id(load)]})")
                    tile.names[id(load)] = name

    def _pass(self, walk: Pass) -> None:
        sources = [f.arg for f in walk.single]
        sources += [p.scores if isinstance(p, OnlineSoftmax) else p.sample for p in walk.pairs]
        self.compute_rows(sources)
        known = self._looped_pass if self.schedule.looped else self._resident_pass
        singles, pairs = known(walk, sources)
        partial = [(f, self.reduced(f.combine, text)) for f, text in singles]
        if self.schedule.parts > 1:
            self.cross.combine(partial, pairs)
            return
        for fold, text in partial:
            self.assign_row(fold, text)
        for pair, state in pairs:
            self.pairs.finish(pair, *state)

    def _looped_pass(self, walk: Pass, sources: list[Value]) -> _Partial:
        singles = [(f, self._start(f)) for f in walk.single]
        pairs = [(p, self.pairs.start(p)) for p in walk.pairs]
        for tiles in self._loop():
            for tile in tiles:
                self.tile = tile
                self.compute(sources)
                for fold, accumulator in singles:
                    masked = self._masked(fold, self.typed(fold.arg))
                    step = COMBINES[fold.combine].step.format(accumulator, masked)
                    self.line(f"{accumulator} = {step}")
            for pair, state in pairs:
                self.pairs.step(pair, state, tiles)
        return singles, [(p, self.pairs.meet(p, state)) for p, state in pairs]

    def _resident_pass(self, walk: Pass, sources: list[Value]) -> _Partial:
        running: dict[int, str] = {}
        for tile in self.resident:
            self.tile = tile
            self.compute(sources)
            for fold in walk.single:
                text = self._masked(fold, self.typed(fold.arg))
                known = running.get(id(fold))
                if known is not None:
                    name = self.fresh("acc")
                    self.line(f"{name} = {COMBINES[fold.combine].step.format(known, text)}")
                    text = name
                running[id(fold)] = text
        singles = [(f, running[id(f)]) for f in walk.single]
        return singles, [(p, self.pairs.resident(p)) for p in walk.pairs]

    def _finish(self) -> None:
        stores = self.kernel.stores
        self.compute_rows(root for s in stores for root in roots_of(s))
        tiled = [s for s in stores if s.axes & self.inner_axes]
        for store in stores:
            if store not in tiled:
                self.store(store)
        for tiles in self._tiles() if tiled else ():
            for tile in tiles:
                self.tile = tile
                self.compute(root for s in tiled for root in roots_of(s))
                for store in tiled:
                    self.store(store)

    # --- tiles ---------------------------------------------------------------------------------

    def _tiles(self) -> Iterable[list[Tile]]:
        if self.schedule.looped:
            return self._loop()
        return [self.resident or [self.tile]]

    def _loop(self) -> Iterator[list[Tile]]:
        """Open a loop over the row, yield the tiles of an iteration, close the loop."""
        s = self.schedule
        step = "RBLOCK" if s.strips == 1 else f"{s.strips} * RBLOCK"
        self.line(f"for start in range(0, {spell.size(s.inner_count)}, {step}):")
        self.indent += 1
        starts = ["start + "] + [f"start + {n} * RBLOCK + " for n in range(1, s.strips)]
        yield [self._tile(start, number) for number, start in enumerate(starts)]
        self.indent -= 1
        self.tile = Tile()

    def _tile(self, start: str, number: int) -> Tile:
        s = self.schedule
        tile = Tile()
        suffix = f"_{number}" if s.strips > 1 else ""
        shape = "" if self.scalar_rows else "[None, :]"
        wide = ".to(tl.int64)" if s.wide_inner else ""
        self.line(f"r{suffix} = {start}tl.arange(0, RBLOCK){wide}{shape}")
        if not self._is_full(number):
            self.line(f"rmask{suffix} = r{suffix} < {spell.size(s.inner_count)}")
            tile.mask = f"rmask{suffix}"
        self._axis_variables(tile.axis_names, f"r{suffix}", s.inner)
        return tile

    def _is_full(self, strip: int) -> bool:
        """Whether a tile lies inside the row whatever program it belongs to."""
        s = self.schedule
        if s.looped or s.parts > 1 or self._grid_over_inner():
            return divides(s.width * s.parts, s.inner_count)
        return isinstance(s.inner_count, int) and (strip + 1) * s.inner_block <= s.inner_count

    def _strip_start(self, strip: int) -> str:
        s = self.schedule
        offset = f"{strip} * RBLOCK + " if strip else ""
        if s.parts > 1:
            return f"part * {s.strips} * RBLOCK + {offset}"
        if not self._grid_over_inner():
            return offset
        blocks = f"tl.cdiv({spell.size(s.inner_count)}, RBLOCK)"
        return f"(program % {blocks}) * RBLOCK + "

    def _grid_over_inner(self) -> bool:
        s = self.schedule
        whole = isinstance(s.inner_count, int) and s.inner_count <= s.inner_block
        return bool(s.inner) and not s.looped and not self.kernel.columns and not whole

    # --- coordinates ---------------------------------------------------------------------------

    def _row_coordinates(self) -> None:
        s = self.schedule
        wide = ".to(tl.int64)" if s.wide_outer else ""
        if s.parts > 1:
            self.cross.take_place(wide)
            tile = "row"
        else:
            self.line(f"program = tl.program_id(0){wide}")
            tile = "program"
        if self._grid_over_inner():
            self.line(f"row_tile = program // tl.cdiv({spell.size(s.inner_count)}, RBLOCK)")
            tile = "row_tile"
        self._rows_of(tile)

    def _rows_of(self, tile: str, name: str = "x") -> None:
        """Emit the coordinates of the rows of one outer tile, and take them as the current ones."""
        s = self.schedule
        if self.scalar_rows:
            self.line(f"{name} = {tile}")
        else:
            shape = "[:, None]" if s.inner else ""
            self.line(f"{name} = {tile} * XBLOCK + tl.arange(0, XBLOCK){shape}")
            if not divides(s.outer_block, s.outer_count):
                self.line(f"{name}mask = {name} < {spell.size(s.outer_count)}")
                self.outer_mask = f"{name}mask"
        self._axis_variables(self.axis_names, name, s.outer)

    def _axis_variables(self, names: dict[Axis, str], name: str, axes: tuple[Axis, ...]) -> None:
        """Take a flat coordinate apart, the last axis fastest."""
        if len(axes) == 1:
            names[axes[0]] = name
            return
        below: Size = 1
        for place, axis in reversed(list(enumerate(axes))):
            variable = f"{name}{'_' if '_' in name else ''}{place}"
            text = name if below == 1 else f"({name} // {spell.size(below)})"
            if place:
                text = f"{text} % {spell.size(axis.extent)}"
            self.line(f"{variable} = {text}")
            names[axis] = variable
            below = dims.multiply(below, axis.extent)

    # --- reductions ----------------------------------------------------------------------------

    def _start(self, fold: Fold) -> str:
        name = self.fresh("acc")
        identity = spell.number(identity_of(fold.combine, fold.dtype), fold.dtype)
        shape = self.shape_of(fold.axes | self.inner_axes)
        self.line(f"{name} = tl.full({shape}, {identity}, {spell.triton_type(fold.dtype)})")
        return name

    def _masked(self, fold: Fold, text: str) -> str:
        """The operand of a reduction as a full tile, the identity outside the row."""
        if not self.tile.mask:
            if fold.arg.axes & self.inner_axes:
                return text
            return f"tl.broadcast_to({text}, {self.shape_of(fold.axes | self.inner_axes)})"
        identity = spell.number(identity_of(fold.combine, fold.dtype), fold.dtype)
        return f"tl.where({self.tile.mask}, {text}, {identity})"

    def reduced(self, combine: str, text: str) -> str:
        """A tile combined along the row."""
        spelling = COMBINES[combine].spelling
        if "_combine_" in spelling:
            self.body.combines.add(combine)
        reduced = spelling.format(text, "0" if self.scalar_rows else "1")
        return reduced if self.scalar_rows else f"{reduced}[:, None]"


def is_direct(load: Load) -> bool:
    """Return whether an address is known from coordinates alone."""
    return not load.operands
