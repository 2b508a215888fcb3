"""Kernel values: what one point of a loop nest computes, as a DAG without statements or names.

The lowering turns tensor expressions into values once the loop axes are known. A value knows the
axes it varies along, which decides where the printer computes it. Equal values of one `Values`
are the same object, so a tensor read twice at the same index is one load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis, Index
from fuseopt.ir.primitives import PRIMITIVES


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Base of all values. `axes` are the loop axes the value varies along."""

    dtype: torch.dtype
    axes: frozenset[Axis]

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values this one is computed from."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Load(Value):
    """Element `index` (in elements, from the data pointer) of input `param`; zero off guard."""

    param: int
    index: Index
    guard: tuple[Value, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """The guard and what the index reads from memory."""
        return (*self.guard, *index_values(self.index))


@dataclass(frozen=True, slots=True, eq=False)
class Coordinate(Value):
    """The integer value of an index."""

    index: Index

    @property
    def operands(self) -> tuple[Value, ...]:
        """What the index reads from memory."""
        return index_values(self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Number(Value):
    """A constant: a Python number, or a size expression."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Value):
    """A primitive of `fuseopt.ir.primitives`."""

    primitive: str
    args: tuple[Value, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """The arguments in order."""
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Convert(Value):
    """The operand in another dtype."""

    arg: Value

    @property
    def operands(self) -> tuple[Value, ...]:
        """The value converted."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Round(Value):
    """The operand rounded to the precision of the narrower float `to`, dtype unchanged."""

    arg: Value
    to: torch.dtype

    @property
    def operands(self) -> tuple[Value, ...]:
        """The value rounded."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Fold(Value):
    """The operand combined over all points of the axes `over`."""

    combine: str
    arg: Value
    over: tuple[Axis, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """The value reduced."""
        return (self.arg,)


ValueT = TypeVar("ValueT", bound=Value)


class Values:
    """Makes values; equal ones are made once, and arithmetic on constants is left to the target."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Value] = {}

    def load(
        self, param: int, dtype: torch.dtype, index: Index, guard: tuple[Value, ...] = ()
    ) -> Value:
        """Return element `index` of an input; zero where a guard is false."""
        axes = index.axes.union(*(g.axes for g in guard))
        return self._make(Load, dtype, axes, param, index, guard)

    def coordinate(self, index: Index) -> Value:
        """Return an index as an int64 value."""
        if index.is_constant:
            return self.number(index.const, torch.int64)
        return self._make(Coordinate, torch.int64, index.axes, index)

    def number(self, value: Any, dtype: torch.dtype) -> Value:
        """Return a constant."""
        return self._make(Number, dtype, frozenset(), value)

    def apply(self, primitive: str, *args: Value) -> Value:
        """Return a primitive of operands that share a dtype."""
        declared = PRIMITIVES[primitive]
        first = args[1] if primitive == "where" else args[0]
        compared = args[1:] if primitive == "where" else args
        if any(a.dtype != first.dtype for a in compared) or len(args) != declared.arity:
            given = ", ".join(str(a.dtype) for a in args)
            raise AssertionError(f"{primitive} does not take operands of {given}")
        if first.dtype == torch.int64:
            folded = self._index_arithmetic(primitive, args)
            if folded is not None:
                return folded
        dtype = torch.bool if declared.gives_bool else first.dtype
        return self._make(Apply, dtype, _union(args), primitive, args)

    def _index_arithmetic(self, primitive: str, args: tuple[Value, ...]) -> Value | None:
        """Sums and multiples of coordinates are coordinates, which print and compare as indices."""
        if primitive not in ("add", "sub", "mul"):
            return None
        left, right = (_as_index(a) for a in args)
        if left is None or right is None:
            return None
        if primitive == "mul":
            if not (left.is_constant or right.is_constant):
                return None
            product = left * right.const if right.is_constant else right * left.const
            return self.coordinate(product)
        return self.coordinate(left + (right if primitive == "add" else right * -1))

    def convert(self, arg: Value, dtype: torch.dtype) -> Value:
        """Return the operand in another dtype."""
        if arg.dtype == dtype:
            return arg
        return self._make(Convert, dtype, arg.axes, arg)

    def round(self, arg: Value, to: torch.dtype) -> Value:
        """Return the operand rounded to the precision of `to`."""
        return self._make(Round, arg.dtype, arg.axes, arg, to)

    def fold(self, combine: str, arg: Value, over: tuple[Axis, ...]) -> Value:
        """Return the operand reduced over axes."""
        return self._make(Fold, arg.dtype, arg.axes - set(over), combine, arg, over)

    def _make(
        self, form: type[ValueT], dtype: torch.dtype, axes: frozenset[Axis], *rest: Any
    ) -> ValueT:
        key = (form, dtype, axes, *map(_key, rest))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = form(dtype, axes, *rest)
        return made  # type: ignore[return-value]


def _as_index(value: Value) -> Index | None:
    if isinstance(value, Coordinate):
        return value.index
    if isinstance(value, Number) and not isinstance(value.value, (bool, float)):
        return Index(value.value)
    return None


def index_values(index: Index) -> tuple[Value, ...]:
    """Return the values that an index reads from memory."""
    found: list[Value] = []
    for atom, _ in index.terms:
        if hasattr(atom, "value"):
            found.append(atom.value)
        elif hasattr(atom, "index"):
            found.extend(index_values(atom.index))
    return tuple(found)


def sizes_of(value: Value) -> Iterator[Size]:
    """Every size that a value itself is made of, its operands apart."""
    match value:
        case Load() | Coordinate():
            yield from value.index.sizes()
        case Number() if not isinstance(value.value, float):
            yield value.value
        case Fold():
            yield from (axis.extent for axis in value.over)


def walk(roots: Iterable[Value]) -> list[Value]:
    """Return every value below the roots, operands before users, each once."""
    order: list[Value] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        value, expanded = stack.pop()
        if expanded:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack.extend((o, False) for o in reversed(value.operands))
    return order


def _union(args: tuple[Value, ...]) -> frozenset[Axis]:
    return frozenset().union(*(a.axes for a in args))


def _key(value: Any) -> Any:
    # 0.0 == -0.0 == False and 1 == 1.0 == True, but they are different constants.
    if isinstance(value, (bool, int, float)):
        return (type(value), repr(value))
    return value
