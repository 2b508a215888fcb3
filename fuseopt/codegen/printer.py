"""Printing a loop kernel under a schedule as a Triton function.

A value is computed where its axes say: once per program where it does not vary along the inner
tile dimension, else once per tile. A resident or pointwise kernel is straight-line code. A looped
one walks the row once for every pass of `plan_passes`, then once more to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.passes import Moments, OnlineSoftmax, Pair, Pass, plan_passes
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir import dims
from fuseopt.ir.combine import COMBINES, identity_of
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index, Indirect, Quotient
from fuseopt.ir.kernel import LoopKernel, Store
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.ir.values import (
    Apply,
    Convert,
    Coordinate,
    Fold,
    Load,
    Number,
    Round,
    Value,
)


@dataclass(slots=True)
class Body:
    """The statements of a kernel, and which facilities they use."""

    lines: list[str] = field(default_factory=list)
    combines: set[str] = field(default_factory=set)
    libdevice: bool = False
    asserts: bool = False


def print_body(kernel: LoopKernel, schedule: Schedule, *, interpreted: bool = False) -> Body:
    """Return the statements of the kernel's function, indented by four spaces.

    interpreted: spell NVIDIA's math functions as calls that Triton's interpreter can run.
    """
    return _Printer(kernel, schedule, interpreted).run()


class _Printer:
    def __init__(self, kernel: LoopKernel, schedule: Schedule, interpreted: bool) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.interpreted = interpreted
        self.body = Body()
        self.indent = 1
        self.inner_axes = frozenset(schedule.inner)
        self.outer_axes = frozenset(schedule.outer)
        self.scalar_rows = schedule.outer_block == 1
        self.axis_names: dict[Axis, str] = {}
        self.row_names: dict[int, str] = {}
        self.tile_names: dict[int, str] = {}
        self.counter = 0
        self.outer_mask = ""
        self.inner_mask = ""

    # --- the whole -----------------------------------------------------------------------------

    def run(self) -> Body:
        self._coordinates()
        if self.schedule.looped:
            for walk in plan_passes(self.kernel):
                self._pass(walk)
            self._finish()
        else:
            if self.schedule.inner:
                self._inner_coordinates(self._inner_start())
            self._values(root for s in self.kernel.stores for root in _roots(s))
            for store in self.kernel.stores:
                self._store(store)
        return self.body

    def line(self, text: str) -> None:
        self.body.lines.append("    " * self.indent + text)

    def fresh(self, prefix: str = "v") -> str:
        self.counter += 1
        return f"{prefix}{self.counter - 1}"

    # --- coordinates and masks -----------------------------------------------------------------

    def _coordinates(self) -> None:
        s = self.schedule
        program = "tl.program_id(0)"
        if s.wide_outer:
            program += ".to(tl.int64)"
        self.line(f"program = {program}")
        tile = "program"
        if self._grid_over_inner():
            blocks = f"tl.cdiv({spell.size(s.inner_count)}, RBLOCK)"
            self.line(f"row_tile = program // {blocks}")
            tile = "row_tile"
        if self.scalar_rows:
            self.line(f"x = {tile}")
        else:
            shape = "[:, None]" if s.inner else ""
            self.line(f"x = {tile} * XBLOCK + tl.arange(0, XBLOCK){shape}")
            if not _divides(s.outer_block, s.outer_count):
                self.line(f"xmask = x < {spell.size(s.outer_count)}")
                self.outer_mask = "xmask"
        self._axis_variables("x", s.outer)

    def _grid_over_inner(self) -> bool:
        s = self.schedule
        whole = isinstance(s.inner_count, int) and s.inner_count <= s.inner_block
        return bool(s.inner) and not s.looped and not self.kernel.columns and not whole

    def _inner_start(self) -> str:
        if not self._grid_over_inner():
            return ""
        blocks = f"tl.cdiv({spell.size(self.schedule.inner_count)}, RBLOCK)"
        return f"(program % {blocks}) * RBLOCK + "

    def _inner_coordinates(self, start: str) -> None:
        s = self.schedule
        shape = "" if self.scalar_rows else "[None, :]"
        wide = ".to(tl.int64)" if s.wide_inner else ""
        self.line(f"r = {start}tl.arange(0, RBLOCK){wide}{shape}")
        if not _divides(s.inner_block, s.inner_count):
            self.line(f"rmask = r < {spell.size(s.inner_count)}")
            self.inner_mask = "rmask"
        self._axis_variables("r", s.inner)

    def _axis_variables(self, name: str, axes: tuple[Axis, ...]) -> None:
        """Take a flat coordinate apart, the last axis fastest."""
        if len(axes) == 1:
            self.axis_names[axes[0]] = name
            return
        below: Size = 1
        for place, axis in reversed(list(enumerate(axes))):
            variable = f"{name}{place}"
            text = name if below == 1 else f"({name} // {spell.size(below)})"
            if place:
                text = f"{text} % {spell.size(axis.extent)}"
            self.line(f"{variable} = {text}")
            self.axis_names[axis] = variable
            below = dims.multiply(below, axis.extent)

    def mask_for(self, axes: frozenset[Axis]) -> list[str]:
        """The tile masks that an access along these axes needs."""
        found = []
        if self.outer_mask and axes & self.outer_axes:
            found.append(self.outer_mask)
        if self.inner_mask and axes & self.inner_axes:
            found.append(self.inner_mask)
        return found

    def shape_of(self, axes: frozenset[Axis]) -> str:
        """The block shape that varies along these axes."""
        s = self.schedule
        if self.scalar_rows:
            return "[RBLOCK]"
        if not s.inner:
            return "[XBLOCK]"
        rows = "XBLOCK" if axes & self.outer_axes else "1"
        return f"[{rows}, {'RBLOCK' if axes & self.inner_axes else '1'}]"

    # --- looped rows ---------------------------------------------------------------------------

    def _pass(self, walk: Pass) -> None:
        sources = [f.arg for f in walk.single]
        sources += [p.scores if isinstance(p, OnlineSoftmax) else p.sample for p in walk.pairs]
        self._row_values(sources)
        singles = [(f, self._accumulator(f)) for f in walk.single]
        pairs = [(p, self._pair_state(p)) for p in walk.pairs]
        self._open_loop()
        self._values(sources)
        for fold, accumulator in singles:
            self._accumulate(fold, accumulator)
        for pair, state in pairs:
            self._accumulate_pair(pair, state)
        self._close_loop()
        for fold, accumulator in singles:
            self._row_assign(fold, self._reduced(fold, accumulator))
        for pair, state in pairs:
            self._finish_pair(pair, state)

    def _finish_pair(self, pair: Pair, state: tuple[str, str]) -> None:
        if isinstance(pair, OnlineSoftmax):
            self._row_assign(pair.maximum, state[0])
            self._row_assign(pair.total, state[1])
            return
        self._row_assign(pair.total, f"{state[0]} * {self._number(pair.count)}")
        self._row_assign(pair.away, state[1])
        if pair.drift is not None:
            self._row_assign(pair.drift, f"{state[0]} * 0.0")

    def _finish(self) -> None:
        roots = [root for s in self.kernel.stores for root in _roots(s)]
        self._row_values(roots)
        tiled = [s for s in self.kernel.stores if s.axes & self.inner_axes]
        for store in self.kernel.stores:
            if store not in tiled:
                self._store(store)
        if tiled:
            self._open_loop()
            self._values(root for s in tiled for root in _roots(s))
            for store in tiled:
                self._store(store)
            self._close_loop()

    def _open_loop(self) -> None:
        self.line(f"for start in range(0, {spell.size(self.schedule.inner_count)}, RBLOCK):")
        self.indent += 1
        self._inner_coordinates("start + ")

    def _close_loop(self) -> None:
        self.indent -= 1
        self.tile_names.clear()

    def _accumulator(self, fold: Fold) -> str:
        name = self.fresh("acc")
        identity = spell.number(identity_of(fold.combine, fold.dtype))
        shape = self.shape_of(fold.axes | self.inner_axes)
        self.line(f"{name} = tl.full({shape}, {identity}, {spell.triton_type(fold.dtype)})")
        return name

    def _accumulate(self, fold: Fold, accumulator: str) -> None:
        masked = self._masked(fold, self.name_of(fold.arg))
        step = COMBINES[fold.combine].step.format(accumulator, masked)
        self.line(f"{accumulator} = {step}")

    def _pair_state(self, pair: Pair) -> tuple[str, str]:
        state = (self.fresh("acc"), self.fresh("acc"))
        fold = pair.total
        shape = "()" if self.scalar_rows else self.shape_of(fold.axes)
        dtype = spell.triton_type(fold.dtype)
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
        high = self._tile_reduced("max_number", scores)
        self.line(f"{new} = tl.maximum({top}, {high})")
        # Where all is -inf so far there is nothing to rescale, and exp(-inf - -inf) is NaN.
        self.line(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})')
        self.line(f"{part} = {self._tile_reduced('sum', f'tl.exp({scores} - {shift})')}")
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
        self.line(f"{part} = {self._tile_reduced('sum', zeroed)} / {count}")
        self.line(f"{delta} = {part} - {center}")
        squared = self._masked(pair.away, f"({sample} - {part}) * ({sample} - {part})")
        self.line(
            f"{away} = {away} + {self._tile_reduced('sum', squared)} "
            f"+ {delta} * {delta} * (start * {count} / (start + {count}))"
        )
        self.line(f"{center} = {center} + {delta} * ({count} / (start + {count}))")

    # --- values --------------------------------------------------------------------------------

    def _row_values(self, roots: Iterable[Value]) -> None:
        """Compute, outside any loop, what the roots need that does not vary along the tile."""
        for value in self._needed(roots):
            if not value.axes & self.inner_axes:
                self._emit(value)

    def _values(self, roots: Iterable[Value]) -> None:
        for value in self._needed(roots):
            self._emit(value)

    def _needed(self, roots: Iterable[Value]) -> list[Value]:
        """What is not computed yet below the roots, operands first."""
        order: list[Value] = []
        seen: set[int] = set()
        stack = [(root, False) for root in reversed(list(roots))]
        while stack:
            value, expanded = stack.pop()
            if expanded:
                order.append(value)
            elif id(value) not in seen and not self._known(value):
                seen.add(id(value))
                stack.append((value, True))
                stack.extend((o, False) for o in reversed(self._computed_from(value)))
        return order

    def _computed_from(self, value: Value) -> tuple[Value, ...]:
        """The operands that need a name; coordinates that print as indices do not."""
        inline = isinstance(value, Convert) or (
            isinstance(value, Apply)
            and PRIMITIVES[value.primitive].gives_bool
            and all(isinstance(a, (Coordinate, Number)) for a in value.args)
        )
        if not inline:
            return value.operands
        below: list[Value] = []
        for operand in value.operands:
            below.extend(operand.operands if isinstance(operand, Coordinate) else (operand,))
        return tuple(below)

    def _known(self, value: Value) -> bool:
        return id(value) in self.row_names or id(value) in self.tile_names

    def name_of(self, value: Value) -> str:
        known = self.tile_names.get(id(value)) or self.row_names.get(id(value))
        assert known is not None, f"{value} is used before it is computed"
        return known

    def _emit(self, value: Value) -> None:
        varies = bool(value.axes & self.inner_axes)
        names = self.tile_names if varies else self.row_names
        if isinstance(value, Number):
            names[id(value)] = self._number(value)
            return
        name = self.fresh()
        self.line(f"{name} = {self._text(value)}")
        names[id(value)] = name

    def _row_assign(self, value: Value, text: str) -> None:
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.row_names[id(value)] = name

    def _number(self, value: Number) -> str:
        if isinstance(value.value, (bool, int, float)):
            return spell.number(value.value)
        return f"{spell.size(value.value)}.to({spell.triton_type(value.dtype)})"

    def _text(self, value: Value) -> str:
        match value:
            case Load():
                return self._load(value)
            case Coordinate(index=index):
                return f"({self.index(index)}).to(tl.int64)"
            case Convert(dtype=dtype, arg=Coordinate(index=index)) if dtype != torch.bool:
                return f"({self.index(index)}).to({spell.triton_type(dtype)})"
            case Apply(primitive=name, args=args):
                return self._apply(name, args)
            case Convert(dtype=dtype, arg=arg):
                text = self._typed(arg)
                if dtype == torch.bool:
                    return f"({text} != 0)"
                return f"{text}.to({spell.triton_type(dtype)})"
            case Round(dtype=dtype, arg=arg, to=to):
                narrow = f"{self._typed(arg)}.to({spell.triton_type(to)})"
                return f"{narrow}.to({spell.triton_type(dtype)})"
            case Fold():
                return self._reduced(value, self._masked(value, self._typed(value.arg)))
            case _:
                raise AssertionError(f"unknown value {value}")

    def _apply(self, name: str, args: tuple[Value, ...]) -> str:
        primitive = PRIMITIVES[name]
        if primitive.gives_bool and all(isinstance(a, (Coordinate, Number)) for a in args):
            return primitive.spelling.format(*map(self._compared, args))
        numbers_only = all(isinstance(a, Number) for a in args[1 if name == "where" else 0 :])
        texts = [self._typed(a) if numbers_only else self.name_of(a) for a in args]
        if primitive.needs_libdevice:
            self.body.libdevice = True
            if self.interpreted:
                return f"_host({name!r}, {', '.join(self._typed(a) for a in args)})"
            texts = [self._typed(a) for a in args]
        return primitive.spelling.format(*texts)

    def _compared(self, value: Value) -> str:
        """An operand of a comparison between coordinates: the index itself, 64 bits not needed."""
        return (
            f"({self.index(value.index)})"
            if isinstance(value, Coordinate)
            else (self.name_of(value))
        )

    def _typed(self, value: Value) -> str:
        """A number as a Triton scalar of its dtype; any other value by its name."""
        if isinstance(value, Number) and isinstance(value.value, (bool, int, float)):
            return f"tl.full((), {spell.number(value.value)}, {spell.triton_type(value.dtype)})"
        return self.name_of(value)

    def _masked(self, fold: Fold, text: str) -> str:
        """The operand of a reduction as a full tile, the identity outside the row."""
        varies = fold.arg.axes & self.inner_axes
        if not self.inner_mask:
            if varies:
                return text
            return f"tl.broadcast_to({text}, {self.shape_of(fold.axes | self.inner_axes)})"
        identity = spell.number(identity_of(fold.combine, fold.dtype))
        return f"tl.where({self.inner_mask}, {text}, {identity})"

    def _reduced(self, fold: Fold, text: str) -> str:
        return self._tile_reduced(fold.combine, text)

    def _tile_reduced(self, combine: str, text: str) -> str:
        spelling = COMBINES[combine].spelling
        if "_combine_" in spelling:
            self.body.combines.add(combine)
        reduced = spelling.format(text, "0" if self.scalar_rows else "1")
        return reduced if self.scalar_rows else f"{reduced}[:, None]"

    # --- memory --------------------------------------------------------------------------------

    def _load(self, load: Load) -> str:
        address = self._address(f"in{load.param}", load.index)
        mask = [self.name_of(g) for g in load.guard] + self.mask_for(load.axes)
        self._check_indirect(load.index, mask)
        if not mask:
            return f"tl.load({address})"
        return f"tl.load({address}, {' & '.join(mask)}, other=0)"

    def _check_indirect(self, index: Index, mask: list[str]) -> None:
        for atom, _ in index.terms:
            if isinstance(atom, Indirect):
                self.body.asserts = True
                value = self.name_of(atom.value)
                inside = f"({value} >= 0) & ({value} < {spell.size(atom.extent)})"
                outside = "".join(f" | ~({m})" for m in mask)
                self.line(f"tl.device_assert(({inside}){outside}, 'index out of range')")
                mask.append(inside)

    def _store(self, store: Store) -> None:
        needed = store.axes
        address = self._address(f"out{store.param}", store.index)
        mask = [self.name_of(g) for g in store.guard] + self.mask_for(needed)
        spread = needed - store.index.axes
        if not self.scalar_rows and spread & (self.outer_axes | self.inner_axes):
            address = f"tl.broadcast_to({address}, {self.shape_of(needed)})"
        elif self.scalar_rows and spread & self.inner_axes:
            address = f"tl.broadcast_to({address}, [RBLOCK])"
        masked = f", {' & '.join(mask)}" if mask else ""
        self.line(f"tl.store({address}, {self._typed(store.value)}{masked})")

    def _address(self, base: str, index: Index) -> str:
        """Pointer plus offset, the part that is the same for the whole tile first."""
        rows = Index(index.const)
        tile = Index()
        for term in index.terms:
            if Index(0, (term,)).axes & self.inner_axes:
                tile = tile + Index(0, (term,))
            else:
                rows = rows + Index(0, (term,))
        text = base
        if rows.terms or rows.const:
            text = f"{text} + ({self.index(rows)})"
        if tile.terms:
            text = f"{text} + ({self.index(tile)})"
        return text

    def index(self, index: Index) -> str:
        """An index as an integer expression."""
        parts = [spell.times(self._atom(atom), c) for atom, c in index.terms]
        if index.const != 0 or not parts:
            parts.append(spell.size(index.const))
        return " + ".join(parts)

    def _atom(self, atom: object) -> str:
        match atom:
            case Axis():
                return self.axis_names[atom]
            case Indirect(value, _):
                return self.name_of(value)
            case Quotient(inner, divisor):
                return f"(({self.index(inner)}) // {spell.size(divisor)})"
            case _:
                inner, divisor = atom.index, atom.divisor  # type: ignore[attr-defined]
                return f"(({self.index(inner)}) % {spell.size(divisor)})"


def _roots(store: Store) -> tuple[Value, ...]:
    found: list[Value] = [*store.guard, store.value]
    found.extend(a.value for a, _ in store.index.terms if isinstance(a, Indirect))
    return tuple(found)


def _divides(block: int, count: Size) -> bool:
    return isinstance(count, int) and count % block == 0
