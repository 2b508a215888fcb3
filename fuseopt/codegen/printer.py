"""Printing a loop kernel under a schedule as the body of a Triton function.

A value is computed where its axes say: once per program where it does not vary along the inner
tile dimension, else once per tile. Reductions of the same depth share a pass over the row. A
resident row is read once and stays in registers, in one tile or several strips; a looped row is
read again for each pass. Programs that share a row combine their reductions through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fuseopt.codegen import spell
from fuseopt.codegen.cross import CrossProgram
from fuseopt.codegen.express import Body, Expressions, Tile, divides, roots_of
from fuseopt.codegen.fast import may_be_fast
from fuseopt.codegen.passes import Moments, OnlineSoftmax, Pair, Pass, plan_passes
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir import dims
from fuseopt.ir.combine import COMBINES, identity_of
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Fold, Value

# Reductions of one pass over what a program holds: tiles still to be reduced, states of pairs.
_Partial = tuple[list[tuple[Fold, str]], list[tuple[Pair, tuple[str, str]]]]


def print_body(kernel: LoopKernel, schedule: Schedule, *, interpreted: bool = False) -> Body:
    """Return the statements of the kernel's function, indented by four spaces.

    interpreted: spell NVIDIA's math functions as calls that Triton's interpreter can run.
    """
    return _Printer(kernel, schedule, interpreted=interpreted).run()


class _Printer(Expressions):
    def __init__(self, kernel: LoopKernel, schedule: Schedule, *, interpreted: bool) -> None:
        super().__init__(kernel, schedule, fast=may_be_fast(kernel), interpreted=interpreted)
        self.cross = CrossProgram(self)
        self.resident: list[Tile] = []

    # --- the whole -----------------------------------------------------------------------------

    def run(self) -> Body:
        s = self.schedule
        self._row_coordinates()
        if s.inner and not s.looped:
            for strip in range(s.strips):
                self.resident.append(self._tile(self._strip_start(strip), strip))
        for walk in plan_passes(self.kernel, paired=s.looped or s.parts > 1):
            self._pass(walk)
        self._finish()
        self.body.slots = self.cross.slots
        return self.body

    def _pass(self, walk: Pass) -> None:
        sources = [f.arg for f in walk.single]
        sources += [p.scores if isinstance(p, OnlineSoftmax) else p.sample for p in walk.pairs]
        self.compute_rows(sources)
        known = self._looped_pass if self.schedule.looped else self._resident_pass
        singles, pairs = known(walk, sources)
        partial = [(f, self._reduced(f.combine, text)) for f, text in singles]
        if self.schedule.parts > 1:
            self.cross.combine(partial, pairs)
            return
        for fold, text in partial:
            self.assign_row(fold, text)
        for pair, state in pairs:
            self.finish_pair(pair, *state)

    def _looped_pass(self, walk: Pass, sources: list[Value]) -> _Partial:
        singles = [(f, self._start(f)) for f in walk.single]
        pairs = [(p, self._pair_state(p)) for p in walk.pairs]
        for tile in self._loop():
            self.tile = tile
            self.compute(sources)
            for fold, accumulator in singles:
                masked = self._masked(fold, self.typed(fold.arg))
                step = COMBINES[fold.combine].step.format(accumulator, masked)
                self.line(f"{accumulator} = {step}")
            for pair, state in pairs:
                self._accumulate_pair(pair, state)
        return singles, pairs

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
        return singles, [(p, self._resident_pair(p)) for p in walk.pairs]

    def _finish(self) -> None:
        stores = self.kernel.stores
        self.compute_rows(root for s in stores for root in roots_of(s))
        tiled = [s for s in stores if s.axes & self.inner_axes]
        for store in stores:
            if store not in tiled:
                self.store(store)
        if tiled:
            for tile in self._tiles():
                self.tile = tile
                self.compute(root for s in tiled for root in roots_of(s))
                for store in tiled:
                    self.store(store)

    # --- tiles ---------------------------------------------------------------------------------

    def _tiles(self) -> Iterable[Tile]:
        if self.schedule.looped:
            return self._loop()
        return self.resident or [self.tile]

    def _loop(self) -> Iterator[Tile]:
        """Open a loop over the row, yield its tile once, close the loop."""
        self.line(f"for start in range(0, {spell.size(self.schedule.inner_count)}, RBLOCK):")
        self.indent += 1
        self.tile = self._tile("start + ", 0)
        yield self.tile
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
            return divides(s.width * s.parts if s.parts > 1 else s.inner_block, s.inner_count)
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
            self.cross.take_ticket(wide)
            tile = "row"
        else:
            self.line(f"program = tl.program_id(0){wide}")
            tile = "program"
        if self._grid_over_inner():
            self.line(f"row_tile = program // tl.cdiv({spell.size(s.inner_count)}, RBLOCK)")
            tile = "row_tile"
        if self.scalar_rows:
            self.line(f"x = {tile}")
        else:
            shape = "[:, None]" if s.inner else ""
            self.line(f"x = {tile} * XBLOCK + tl.arange(0, XBLOCK){shape}")
            if not divides(s.outer_block, s.outer_count):
                self.line(f"xmask = x < {spell.size(s.outer_count)}")
                self.outer_mask = "xmask"
        self._axis_variables(self.axis_names, "x", s.outer)

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
        identity = spell.number(identity_of(fold.combine, fold.dtype))
        shape = self.shape_of(fold.axes | self.inner_axes)
        self.line(f"{name} = tl.full({shape}, {identity}, {spell.triton_type(fold.dtype)})")
        return name

    def _masked(self, fold: Fold, text: str) -> str:
        """The operand of a reduction as a full tile, the identity outside the row."""
        if not self.tile.mask:
            if fold.arg.axes & self.inner_axes:
                return text
            return f"tl.broadcast_to({text}, {self.shape_of(fold.axes | self.inner_axes)})"
        identity = spell.number(identity_of(fold.combine, fold.dtype))
        return f"tl.where({self.tile.mask}, {text}, {identity})"

    def _reduced(self, combine: str, text: str) -> str:
        spelling = COMBINES[combine].spelling
        if "_combine_" in spelling:
            self.body.combines.add(combine)
        reduced = spelling.format(text, "0" if self.scalar_rows else "1")
        return reduced if self.scalar_rows else f"{reduced}[:, None]"

    # --- pairs ---------------------------------------------------------------------------------

    def finish_pair(self, pair: Pair, first: str, second: str) -> None:
        """Assign a pair's reductions from its state: (maximum, total) or (mean, away)."""
        if isinstance(pair, OnlineSoftmax):
            self.assign_row(pair.maximum, first)
            self.assign_row(pair.total, second)
            return
        self.assign_row(pair.total, f"{first} * {self.number(pair.count)}")
        self.assign_row(pair.away, second)
        if pair.drift is not None:
            self.assign_row(pair.drift, f"{first} * 0.0")

    def _pair_state(self, pair: Pair) -> tuple[str, str]:
        state = (self.fresh("acc"), self.fresh("acc"))
        shape = "()" if self.scalar_rows else self.shape_of(pair.total.axes)
        dtype = spell.triton_type(pair.total.dtype)
        start = 'float("-inf")' if isinstance(pair, OnlineSoftmax) else "0.0"
        for name, value in zip(state, (start, "0.0"), strict=True):
            self.line(f"{name} = tl.full({shape}, {value}, {dtype})")
        return state

    def _accumulate_pair(self, pair: Pair, state: tuple[str, str]) -> None:
        if isinstance(pair, OnlineSoftmax):
            self._accumulate_softmax(pair, state)
        else:
            self._accumulate_moments(pair, state)

    def _accumulate_softmax(self, pair: OnlineSoftmax, state: tuple[str, str]) -> None:
        top, total = state
        scores = self._masked(pair.maximum, self.name_of(pair.scores))
        new, shift, part = self.fresh(), self.fresh(), self.fresh()
        self.line(f"{new} = tl.maximum({top}, {self._reduced('max_number', scores)})")
        # Where all is -inf so far there is nothing to rescale, and exp(-inf - -inf) is NaN.
        self.line(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})')
        self.line(f"{part} = {self._reduced('sum', f'tl.exp({scores} - {shift})')}")
        self.line(f"{total} = {total} * tl.exp({top} - {shift}) + {part}")
        self.line(f"{top} = {new}")

    def _accumulate_moments(self, pair: Moments, state: tuple[str, str]) -> None:
        center, away = state
        sample = self.name_of(pair.sample)
        zeroed = self._masked(pair.total, sample)
        width = spell.size(self.schedule.inner_count)
        count, delta, part = self.fresh(), self.fresh(), self.fresh()
        dtype = spell.triton_type(pair.total.dtype)
        self.line(f"{count} = tl.minimum({width} - start, RBLOCK).to({dtype})")
        self.line(f"{part} = {self._reduced('sum', zeroed)} / {count}")
        self.line(f"{delta} = {part} - {center}")
        squared = self._masked(pair.away, f"({sample} - {part}) * ({sample} - {part})")
        self.line(
            f"{away} = {away} + {self._reduced('sum', squared)} "
            f"+ {delta} * {delta} * (start * {count} / (start + {count}))"
        )
        self.line(f"{center} = {center} + {delta} * ({count} / (start + {count}))")

    def _resident_pair(self, pair: Pair) -> tuple[str, str]:
        """The state of a pair over the tiles that this program holds."""
        if isinstance(pair, OnlineSoftmax):
            top = self._over_tiles(pair.maximum, "max_number", lambda: self.name_of(pair.scores))
            shift = self.fresh()
            self.line(f'{shift} = tl.where({top} == float("-inf"), 0.0, {top})')
            total = self._over_tiles(
                pair.total, "sum", lambda: f"tl.exp({self.name_of(pair.scores)} - {shift})"
            )
            return top, total
        total = self._over_tiles(pair.total, "sum", lambda: self.name_of(pair.sample))
        center = self.fresh()
        self.line(f"{center} = {total} / {self.cross.own_count(pair.total.dtype)}")

        def squared() -> str:
            distance = f"({self.name_of(pair.sample)} - {center})"
            return f"{distance} * {distance}"

        return center, self._over_tiles(pair.away, "sum", squared)

    def _over_tiles(self, fold: Fold, combine: str, text: Callable[[], str]) -> str:
        accumulator = ""
        identity = spell.number(identity_of(combine, fold.dtype))
        for tile in self.resident:
            self.tile = tile
            part = text()
            if self.tile.mask:
                part = f"tl.where({self.tile.mask}, {part}, {identity})"
            if accumulator:
                part = COMBINES[combine].step.format(accumulator, part)
            accumulator = self.fresh("acc")
            self.line(f"{accumulator} = {part}")
        name = self.fresh()
        self.line(f"{name} = {self._reduced(combine, accumulator)}")
        return name
