"""Tensor expressions: what a group of ATen operations computes, before loops are chosen.

An expression has a shape and a dtype and is one of a dozen forms. Operations are defined by
building expressions (`fuseopt.ops`), so `F.silu(x)` of a bfloat16 tensor becomes

    cast(bf16, mul(cast(f32, x), div(1, add(1, exp(neg(cast(f32, x)))))))

Floating-point arithmetic runs on float32 or float64 only; 16-bit floats exist where values are
read, written or rounded. Equal expressions of one `Arena` are the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.primitives import PRIMITIVES

Scalar = bool | int | float
Shape = tuple[Size, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """Base of all forms. `shape` holds sizes, `dtype` is what PyTorch would report."""

    arena: Arena = field(repr=False)
    shape: Shape
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions this one is made of."""
        return ()

    def __add__(self, other: Operand) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply("div", other, self)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return apply("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return apply("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return apply("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return apply("xor", self, other)

    def __invert__(self) -> Expr:
        return apply("not", self)


@dataclass(frozen=True, slots=True, eq=False)
class Input(Expr):
    """A tensor that is read from memory: number `position` of the region's inputs."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """The same number everywhere. An integer may be a size expression."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Iota(Expr):
    """The coordinate along the only dimension: 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True, eq=False)
class Map(Expr):
    """A primitive applied elementwise; operands broadcast as in PyTorch."""

    primitive: str
    args: tuple[Expr, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The broadcast operands."""
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Expr):
    """A dtype conversion. `explicit`: the user wrote it, as against an op storing its result."""

    arg: Expr
    explicit: bool

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The value converted."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(Expr):
    """A reduction over `over`, whose dimensions stay with size 1. combine: see `ir.combine`."""

    combine: str
    arg: Expr
    over: tuple[int, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The value reduced."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Permute(Expr):
    """Dimension i of the result is dimension order[i] of the operand."""

    arg: Expr
    order: tuple[int, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The tensor viewed."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Reshape(Expr):
    """The same elements in row-major order under another shape."""

    arg: Expr

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The tensor viewed."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Slice(Expr):
    """Element i along `dim` is element start + step*i of the operand; step may be negative."""

    arg: Expr
    dim: int
    start: Size
    step: int

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The tensor viewed."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Expand(Expr):
    """Dimensions of size one (and missing leading ones) repeated."""

    arg: Expr

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The tensor viewed."""
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Cat(Expr):
    """Tensors one after another along `dim`."""

    args: tuple[Expr, ...]
    dim: int

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The pieces in order."""
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Expr):
    """`arg` with dimension `dim` replaced by `index`'s dimensions: out[..i..] = arg[.. index[i] ..]

    `index` holds integers; negative ones count from the end where `wraps`.
    """

    arg: Expr
    index: Expr
    dim: int
    wraps: bool

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The table and the index."""
        return (self.arg, self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Pick(Expr):
    """`torch.gather`: out[.., i, ..] = arg[.., index[.., i, ..], ..] along `dim`, equal ranks."""

    arg: Expr
    index: Expr
    dim: int

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The table and the index."""
        return (self.arg, self.index)


Operand = Expr | Scalar
FormT = TypeVar("FormT", bound=Expr)


class Arena:
    """Makes expressions; equal ones are made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Expr] = {}

    def make(
        self, form: type[FormT], shape: Iterable[Size], dtype: torch.dtype, *rest: Any
    ) -> FormT:
        """Return the expression of this form, shape, dtype and fields."""
        shape = tuple(shape)
        key = (form, shape, dtype, *map(_key, rest))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = form(self, shape, dtype, *rest)
        return made  # type: ignore[return-value]

    def input(self, position: int, shape: Iterable[Size], dtype: torch.dtype) -> Input:
        """Return the region's input number `position`."""
        return self.make(Input, shape, dtype, position)

    def const(self, value: Scalar | Size, dtype: torch.dtype, shape: Iterable[Size] = ()) -> Const:
        """Return a constant; a number is converted to the dtype's kind."""
        return self.make(Const, shape, dtype, as_number(value, dtype))

    def iota(self, extent: Size, dtype: torch.dtype = torch.int64) -> Iota:
        """Return 0, 1, ..., extent - 1."""
        return self.make(Iota, (extent,), dtype)


def _key(value: Any) -> Any:
    # 0.0 == -0.0 == False and 1 == 1.0 == True, but they are different constants.
    if isinstance(value, (bool, int, float)):
        return (type(value), repr(value))
    return value


def as_number(value: Any, dtype: torch.dtype) -> Any:
    """Return a Python number of the dtype's kind; size expressions pass unchanged."""
    if not isinstance(value, (bool, int, float)):
        return value
    if dtype == torch.bool:
        return bool(value)
    if not dtype.is_floating_point:
        return int(value)
    # As a literal a number of 32 bits or more is rounded by what reads it.
    return rounded(value, dtype) if dtype.itemsize < 4 else float(value)


def rounded(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """Return a number as a tensor of this dtype holds it."""
    if not dtype.is_floating_point or dtype == torch.float64:
        return value
    return torch.tensor(value, dtype=torch.float64).to(dtype).item()


def apply(primitive: str, *args: Operand) -> Expr:
    """Return a primitive of expressions and numbers; numbers take the expressions' dtype."""
    first = 1 if primitive == "where" else 0
    exprs = [a for a in args[first:] if isinstance(a, Expr)]
    if not exprs:
        raise AssertionError(f"{primitive} of numbers alone has no dtype: {args}")
    dtype = exprs[0].dtype
    arena = exprs[0].arena
    if any(e.dtype != dtype for e in exprs):
        raise AssertionError(f"{primitive} of {', '.join(str(e.dtype) for e in exprs)}")
    made = tuple(a if isinstance(a, Expr) else arena.const(a, dtype) for a in args)
    shape = broadcast_shapes([e.shape for e in made])
    result = torch.bool if PRIMITIVES[primitive].gives_bool else dtype
    return arena.make(Map, shape, result, primitive, made)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that operands broadcast to; sizes known to differ are a ValueError."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size == 1:
                continue
            if result[i] != 1 and not dims.same(result[i], size):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            result[i] = size
    return tuple(result)


def walk(roots: Iterable[Expr]) -> list[Expr]:
    """Return every expression below the roots, operands before users, each once."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        expr, expanded = stack.pop()
        if expanded:
            order.append(expr)
        elif id(expr) not in seen:
            seen.add(id(expr))
            stack.append((expr, True))
            stack.extend((o, False) for o in reversed(expr.operands))
    return order
