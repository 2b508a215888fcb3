"""Expressions with what does not matter to their meaning erased, and who uses each value.

    cast(bf16, mul(cast(f32, x), 2.0))   ->   mul(x, 2.0)

Conversions between floating-point dtypes disappear, operands of commutative primitives are put in
one order; then equal subexpressions are one, also where their authors wrote different casts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuseopt.ir import expr
from fuseopt.ir.expr import Arena, Cast, Expr, Map, walk
from fuseopt.ir.primitives import PRIMITIVES

VIEWS = (expr.Permute, expr.Reshape, expr.Slice, expr.Expand)


class Erasure:
    """The erased forms of expressions, made in one arena."""

    def __init__(self) -> None:
        self.arena = Arena()
        self._done: dict[Expr, Expr] = {}
        self._numbers: dict[Expr, int] = {}

    def of(self, root: Expr) -> Expr:
        """Return the erased form of an expression."""
        known = self._done.get(root)
        if known is not None:
            return known
        for e in walk([root]):
            if e not in self._done:
                made = self._done[e] = self._erased(e)
                self._numbers.setdefault(made, len(self._numbers))
        return self._done[root]

    def number(self, erased: Expr) -> int:
        """Return when an erased expression was first met."""
        return self._numbers[erased]

    def _erased(self, e: Expr) -> Expr:
        dtype = _plain(e.dtype)
        if isinstance(e, Cast):
            arg = self._done[e.arg]
            return arg if arg.dtype == dtype else self.arena.make(Cast, e.shape, dtype, arg, True)
        if isinstance(e, Map) and PRIMITIVES[e.primitive].commutative:
            args = sorted((self._done[a] for a in e.args), key=self._numbers.__getitem__)
            return self.arena.make(Map, e.shape, dtype, e.primitive, tuple(args))
        fields = [self._field(getattr(e, name)) for name in own_fields(e)]
        return self.arena.make(type(e), e.shape, dtype, *fields)

    def _field(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self._done[value]
        if isinstance(value, tuple):
            return tuple(map(self._field, value))
        return value


def own_fields(e: Expr) -> list[str]:
    """Return the names of a form's fields beside arena, shape and dtype, in order."""
    return [name for name in type(e).__slots__ if name not in ("arena", "shape", "dtype")]


def _plain(dtype: torch.dtype) -> torch.dtype:
    wide = dtype.is_floating_point and dtype.itemsize >= 2  # rounding to 8 bits is meant
    return torch.float32 if wide else dtype


def core(erased: Expr) -> Expr:
    """Return the value that an expression is a view of."""
    while isinstance(erased, VIEWS):
        erased = erased.operands[0]
    return erased


def count_uses(roots: Iterable[Expr]) -> dict[Expr, int]:
    """Return how often each value is used, views looked through. Roots themselves are no uses."""
    uses: dict[Expr, int] = {}
    for e in walk(roots):
        if isinstance(e, VIEWS):
            continue
        for operand in e.operands:
            value = core(operand)
            uses[value] = uses.get(value, 0) + 1
    return uses
