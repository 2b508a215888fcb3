"""Declaring ops: which ATen overloads an op answers to and what it computes, in primitives.

    @op("aten.silu.default")
    def silu(call, x):
        (x,) = call.floats(x)
        return x / (1.0 + exp(-x))

A definition receives a `Call` and the op's arguments with expressions in place of tensors, and
returns one expression per output. `call.floats` and `call.promoted` bring operands to the dtype
that PyTorch computes in; the result is converted to the dtype of the op's output, and marked as a
place where the original rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseopt.ir import dims
from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Arena, Cast, Const, Expand, Expr, Shape, rounded

SUPPORTED_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,  # e5m2 has infinities, which hardware conversions saturate away
    }
)
NARROW_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn})


class NotExpressible(Exception):  # noqa: N818 - a verdict about one call, handled by the lifter
    """This call of a declared op has arguments that its definition does not cover."""


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape and dtype of an op's output."""

    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class T:
    """A tensor in a sample call: shape, dtype kind ("f", "i", "b") and range of values."""

    shape: tuple[int, ...]
    kind: str = "f"
    low: float = -4.0
    high: float = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Arguments of one example call, with `T` in place of tensors. Tests are made from these."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def sample(*args: Any, **kwargs: Any) -> Sample:
    """Return an example call."""
    return Sample(args, kwargs)


# Takes a Call, then the positional arguments of the ATen schema and its keyword-only ones by name.
Definition = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """One declared op.

    targets: the ATen overloads it answers to, such as "aten.add.Tensor".
    form: "pointwise", "reduce", "view" (no kernel of its own), "create" or "index".
    define: the definition; see the module's docstring.
    samples: example calls, per target that they suit (the first target by default).
    loose: for an input with infinities it gives NaN on one of PyTorch's devices and an infinity on
        another, by the order in which they compute.
    """

    targets: tuple[str, ...]
    form: str
    define: Definition
    samples: tuple[Sample, ...]
    loose: bool = False


OPS: dict[str, OpDef] = {}


def op(
    *targets: str,
    form: str = "pointwise",
    samples: Sequence[Sample] = (),
    loose: bool = False,
) -> Callable[[Definition], Definition]:
    """Declare the decorated definition for the given ATen overloads."""

    def declare(define: Definition) -> Definition:
        made = OpDef(targets, form, define, tuple(samples), loose)
        for target in targets:
            if target in OPS:
                raise AssertionError(f"{target} is declared twice")
            OPS[target] = made
        return define

    return declare


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op: where expressions are made, and what PyTorch says its outputs are."""

    arena: Arena
    target: str
    outputs: tuple[TensorMeta, ...]

    @property
    def shape(self) -> Shape:
        """Shape of the first output."""
        return self.outputs[0].shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the first output."""
        return self.outputs[0].dtype

    def number(self, value: Any, dtype: torch.dtype | None = None) -> Const:
        """Return a constant of the given dtype (by default the output's)."""
        dtype = dtype or self.dtype
        if not fits(value, dtype):
            raise NotExpressible(f"{value} does not fit {dtype}")
        return self.arena.const(value, dtype)

    def promoted(self, *args: Any) -> tuple[Expr, ...]:
        """Bring operands to the dtype that PyTorch's type promotion computes in."""
        return self.as_dtype(compute_dtype(result_type(args)), *args)

    def held(self, *args: Any) -> tuple[Expr, ...]:
        """As `promoted`, each operand rounded to the promoted dtype before it is made wider.

        For ops whose result shows the rounding whole: in float16, 0.1 == 0.1.
        """
        dtype = result_type(args)
        return self.as_dtype(compute_dtype(dtype), *(self._rounded(a, dtype) for a in args))

    def _rounded(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Expr):
            return convert(as_stored(value), dtype, explicit=True)
        is_number = isinstance(value, (int, float)) and dtype in NARROW_FLOATS
        return rounded(value, dtype) if is_number else value

    def floats(self, *args: Any) -> tuple[Expr, ...]:
        """As `promoted`, with integers and bools taken to the default floating-point dtype."""
        dtype = result_type(args)
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        return self.as_dtype(compute_dtype(dtype), *args)

    def as_dtype(self, dtype: torch.dtype, *args: Any) -> tuple[Expr, ...]:
        """Convert operands (expressions and numbers) to one dtype."""
        return tuple(self._operand(a, dtype) for a in args)

    def _operand(self, value: Any, dtype: torch.dtype) -> Expr:
        if isinstance(value, Expr):
            return convert(value, dtype)
        if kind_of(dtype) == "i" and not fits(value, dtype):
            raise NotExpressible(f"{value} does not fit {dtype}")
        if isinstance(value, complex):
            raise NotExpressible("complex number")
        return self.arena.const(value, dtype)


def convert(value: Expr, dtype: torch.dtype, *, explicit: bool = False) -> Expr:
    """Return the value in another dtype. See `Cast` for `explicit`."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and isinstance(value.value, (bool, int, float)):
        return value.arena.const(rounded(value.value, value.dtype), dtype, value.shape)
    return value.arena.make(Cast, value.shape, dtype, value, explicit)


def as_stored(value: Expr) -> Expr:
    """Return the value rounded to its own dtype, as it is where a kernel stores it."""
    wide = compute_dtype(value.dtype)
    return (
        value if wide == value.dtype else convert(convert(value, wide), value.dtype, explicit=True)
    )


def fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype's range holds a number; PyTorch raises for most that are beyond it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return True
    if kind_of(dtype) == "b":
        return True
    limits = torch.finfo(dtype) if kind_of(dtype) == "f" else torch.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def expand(value: Expr, shape: Shape) -> Expr:
    """Return the value broadcast to a shape."""
    if dims.same_shape(value.shape, shape):
        return value
    return value.arena.make(Expand, shape, value.dtype, value)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that kernels compute in: float32 for the narrower floats."""
    return torch.float32 if dtype in NARROW_FLOATS else dtype


def result_type(args: Sequence[Any]) -> torch.dtype:
    """Return PyTorch's promoted dtype of expressions and Python numbers.

    Tensors with dimensions decide; zero-dimensional tensors, and after them numbers, count only
    where they are of a higher kind (bool < integer < floating point).
    """
    ranked: list[list[torch.dtype]] = [[], [], []]
    for arg in args:
        if isinstance(arg, Expr):
            ranked[0 if arg.shape else 1].append(arg.dtype)
        elif isinstance(arg, bool):
            ranked[2].append(torch.bool)
        elif isinstance(arg, float):
            ranked[2].append(torch.get_default_dtype())
        elif arg is not None:
            ranked[2].append(torch.int64)
    result: torch.dtype | None = None
    for group in ranked:
        for dtype in group[1:]:
            group[0] = torch.promote_types(group[0], dtype)
        if group and (result is None or _category(group[0]) > _category(result)):
            result = group[0]
    if result is None:
        raise NotExpressible("no operand has a dtype")
    return result


def _category(dtype: torch.dtype) -> int:
    return "bif".index(kind_of(dtype))
