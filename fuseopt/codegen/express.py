"""Expressing values, indices and memory accesses as Triton expressions, one statement a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.fast import fast_spelling, fast_values, flushed_exponentials
from fuseopt.codegen.random import bits_by_place, draws_by_place
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index, Indirect, Quotient
from fuseopt.ir.kernel import LoopKernel, Store
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.ir.values import Apply, Convert, Coordinate, Load, Number, Round, Value


@dataclass(slots=True)
class Body:
    """The statements of a kernel, and which facilities they use."""

    lines: list[str] = field(default_factory=list)
    combines: set[str] = field(default_factory=set)
    libdevice: bool = False
    asserts: bool = False
    slots: int = 0


@dataclass(slots=True)
class Tile:
    """One tile of a row: its coordinates, its mask ("" when none is needed), what is computed."""

    axis_names: dict[Axis, str] = field(default_factory=dict)
    mask: str = ""
    names: dict[int, str] = field(default_factory=dict)


class Expressions:
    """Computes values at most once each: per program, or per tile where they vary inside it.

    interpreted: spell NVIDIA's math functions as calls that Triton's interpreter can run.
    """

    def __init__(self, kernel: LoopKernel, schedule: Schedule, *, interpreted: bool) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.fast = fast_values(kernel)
        self.flushed = flushed_exponentials(kernel, self.fast)
        self.interpreted = interpreted
        self.body = Body()
        self.indent = 1
        self.inner_axes = frozenset(schedule.inner)
        self.outer_axes = frozenset(schedule.outer)
        self.scalar_rows = schedule.outer_block == 1
        self.axis_names: dict[Axis, str] = {}
        self.outer_mask = ""
        self.row_names: dict[int, str] = {}
        self.tile = Tile()
        self.counter = 0

    def line(self, text: str) -> None:
        """Add a statement."""
        self.body.lines.append("    " * self.indent + text)

    def fresh(self, prefix: str = "v") -> str:
        """Return a new name."""
        self.counter += 1
        return f"{prefix}{self.counter - 1}"

    # --- shapes and masks ----------------------------------------------------------------------

    def masks_for(self, axes: frozenset[Axis]) -> list[str]:
        """The tile masks that an access along these axes needs."""
        found = []
        if self.outer_mask and axes & self.outer_axes:
            found.append(self.outer_mask)
        if self.tile.mask and axes & self.inner_axes:
            found.append(self.tile.mask)
        return found

    def shape_of(self, axes: frozenset[Axis]) -> str:
        """The block shape that varies along these axes."""
        if self.scalar_rows:
            return "[RBLOCK]"
        if not self.schedule.inner:
            return "[XBLOCK]"
        rows = "XBLOCK" if axes & self.outer_axes else "1"
        return f"[{rows}, {'RBLOCK' if axes & self.inner_axes else '1'}]"

    # --- values --------------------------------------------------------------------------------

    def compute_rows(self, roots: Iterable[Value]) -> None:
        """Compute, outside any tile, what the roots need that does not vary inside one."""
        for value in self._needed(roots):
            if not value.axes & self.inner_axes:
                self._emit(value)

    def compute(self, roots: Iterable[Value]) -> None:
        """Compute the roots in the current tile."""
        for value in self._needed(roots):
            self._emit(value)

    def assign_row(self, value: Value, text: str) -> None:
        """Give a value that is the same for the whole row."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.row_names[id(value)] = name

    def name_of(self, value: Value) -> str:
        """The name of a value that is computed already."""
        known = self.tile.names.get(id(value)) or self.row_names.get(id(value))
        assert known is not None, f"{value} is used before it is computed"
        return known

    def number(self, value: Number) -> str:
        """A constant as a literal, a size as an expression."""
        if isinstance(value.value, (bool, int, float)):
            return spell.number(value.value, value.dtype)
        return f"{spell.size(value.value)}.to({spell.triton_type(value.dtype)})"

    def typed(self, value: Value) -> str:
        """A number as a Triton scalar of its dtype; any other value by its name."""
        if isinstance(value, Number) and isinstance(value.value, (bool, int, float)):
            literal = spell.number(value.value, value.dtype)
            return f"tl.full((), {literal}, {spell.triton_type(value.dtype)})"
        return self.name_of(value)

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
                stack.extend((o, False) for o in reversed(_named_operands(value)))
        return order

    def _known(self, value: Value) -> bool:
        return id(value) in self.row_names or id(value) in self.tile.names

    def _emit(self, value: Value) -> None:
        varies = bool(value.axes & self.inner_axes)
        names = self.tile.names if varies else self.row_names
        if isinstance(value, Number):
            names[id(value)] = self.number(value)
            return
        name = self.fresh()
        self.line(f"{name} = {self._text(value)}")
        names[id(value)] = name

    def _text(self, value: Value) -> str:
        match value:
            case Load():
                return self._load(value)
            case Coordinate(index=index):
                return f"({self.index(index)}).to(tl.int64)"
            case Convert(dtype=dtype, arg=Coordinate(index=index)) if dtype != torch.bool:
                return f"({self.index(index)}).to({spell.triton_type(dtype)})"
            case Apply(args=(seed, Coordinate(index=index))) if draws_by_place(value):
                return bits_by_place(self.name_of(seed), index, self.index)
            case Apply():
                return self._apply(value)
            case Convert(dtype=dtype, arg=Round(arg=arg)) if _is_rounded_already(value):
                return f"{self.typed(arg)}.to({spell.triton_type(dtype)})"
            case Convert(dtype=dtype, arg=arg):
                text = self.typed(arg)
                if dtype == torch.bool:
                    return f"({text} != 0)"
                return f"{text}.to({spell.triton_type(dtype)})"
            case Round(dtype=dtype, arg=arg, to=to):
                narrow = f"{self.typed(arg)}.to({spell.triton_type(to)})"
                return f"{narrow}.to({spell.triton_type(dtype)})"
            case _:
                raise AssertionError(f"{value} has no expression of its own")

    def _apply(self, value: Apply) -> str:
        name, args = value.primitive, value.args
        primitive = PRIMITIVES[name]
        if primitive.gives_bool and all(isinstance(a, (Coordinate, Number)) for a in args):
            return primitive.spelling.format(*map(self._compared, args))
        compared = args[1 if name == "where" else 0 :]
        # An operator takes a literal in its other operand's type; a function makes it 32 bits wide.
        # A comparison makes a floating-point one 32 bits wide as well.
        operator = primitive.spelling.startswith("(")
        if primitive.gives_bool and compared[0].dtype == torch.float64:
            operator = False
        literal = operator or compared[0].dtype in _LITERALS
        numbers_only = all(isinstance(a, Number) for a in compared)
        spelled = self.name_of if literal and not numbers_only else self.typed
        texts = [spelled(a) for a in args]
        if id(value) in self.flushed:
            return f"_exp({texts[0]})"
        if id(value) in self.fast:
            quick = fast_spelling(value, texts, self.inner_axes)
            if quick is not None:
                return quick
        if name == "neg" and not value.dtype.is_floating_point:
            return f"(0 - {texts[0]})"  # an unsigned operand takes no negative one
        if primitive.needs_libdevice:
            self.body.libdevice = True
            texts = [self.typed(a) for a in args]
            if self.interpreted:
                return f"_host({name!r}, {', '.join(texts)})"
        return primitive.spelling.format(*texts)

    def _compared(self, value: Value) -> str:
        """An operand of a comparison between coordinates: the index itself, 64 bits not needed."""
        if isinstance(value, Coordinate):
            return f"({self.index(value.index)})"
        return self.name_of(value)

    # --- memory --------------------------------------------------------------------------------

    def _load(self, load: Load) -> str:
        address = self._address(f"in{load.param}", load.index)
        mask = [self.name_of(g) for g in load.guard] + self.masks_for(load.axes)
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

    def store(self, store: Store) -> None:
        """Write a value that is computed."""
        needed = store.axes
        address = self._address(f"out{store.param}", store.index)
        mask = [self.name_of(g) for g in store.guard] + self.masks_for(needed)
        spread = needed - store.index.axes
        if not self.scalar_rows and spread & (self.outer_axes | self.inner_axes):
            address = f"tl.broadcast_to({address}, {self.shape_of(needed)})"
        elif self.scalar_rows and spread & self.inner_axes:
            address = f"tl.broadcast_to({address}, [RBLOCK])"
        masked = f", {' & '.join(mask)}" if mask else ""
        self.line(f"tl.store({address}, {self.typed(store.value)}{masked})")

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
                return self.tile.axis_names.get(atom) or self.axis_names[atom]
            case Indirect(value, _):
                return self.name_of(value)
            case Quotient(inner, divisor):
                return f"(({self.index(inner)}) // {spell.size(divisor)})"
            case _:
                inner, divisor = atom.index, atom.divisor  # type: ignore[attr-defined]
                return f"(({self.index(inner)}) % {spell.size(divisor)})"


_LITERALS = (torch.bool, torch.int32, torch.int64, torch.float32)


def roots_of(store: Store) -> tuple[Value, ...]:
    """Return the values that a store needs."""
    indirect = (a.value for a, _ in store.index.terms if isinstance(a, Indirect))
    return (*store.guard, store.value, *indirect)


def _is_rounded_already(value: Convert) -> bool:
    """Whether a conversion is of a value rounded to the same dtype."""
    return isinstance(value.arg, Round) and value.arg.to == value.dtype


def divides(block: int, count: Size) -> bool:
    """Whether blocks of this size fill a dimension without a remainder."""
    return isinstance(count, int) and count % block == 0


def _named_operands(value: Value) -> tuple[Value, ...]:
    """The operands that need a name; coordinates that print as indices do not."""
    compares = (
        isinstance(value, Apply)
        and PRIMITIVES[value.primitive].gives_bool
        and all(isinstance(a, (Coordinate, Number)) for a in value.args)
    )
    if isinstance(value, Convert) and _is_rounded_already(value):
        value = value.arg
    inline = compares or isinstance(value, Convert) or draws_by_place(value)
    if not inline:
        return value.operands
    below: list[Value] = []
    for operand in value.operands:
        below.extend(operand.operands if isinstance(operand, Coordinate) else (operand,))
    return tuple(below)
