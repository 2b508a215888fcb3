"""Evaluates shadow terms with PyTorch in float64: the meaning that tests hold them to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseopt.ir.combine import COMBINES
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.match.constants import Polynomial
from fuseopt.match.indices import Axis, Index, Looked, Quotient, Remainder
from fuseopt.match.terms import (
    Add,
    Apply,
    Exp,
    Fold,
    Literal,
    Load,
    Log,
    Mul,
    Pieces,
    Position,
    Table,
    Term,
)

Points = Mapping[Axis, torch.Tensor]


class Evaluation:
    """read: gives the tensor of an input source, its dimensions of size one left out."""

    def __init__(self, table: Table, read: Callable[[Any], torch.Tensor]) -> None:
        self.table = table
        self.read = read

    def over(self, term: Term, axes: tuple[Axis, ...]) -> torch.Tensor:
        """The values of a term at all points of some axes."""
        long = [a for a in axes if a.extent != 1]
        points = {}
        for place, axis in enumerate(long):
            shape = [1] * len(long)
            shape[place] = axis.extent
            points[axis] = torch.arange(axis.extent).reshape(shape)
        value = self.at(term, points)
        full = torch.broadcast_to(value, [a.extent for a in long])
        return full.reshape([a.extent for a in axes])

    def at(self, term: Term, points: Points) -> torch.Tensor:
        """The values of a term at points that broadcast."""
        return getattr(self, f"_{type(term).__name__.lower()}")(term, points)

    def _literal(self, term: Literal, points: Points) -> torch.Tensor:
        assert not isinstance(term.value, Polynomial), f"{term} is not a number"
        return torch.tensor(term.value, dtype=torch.float64)

    def _position(self, term: Position, points: Points) -> torch.Tensor:
        return torch.as_tensor(self.index(term.index, points))

    def _load(self, term: Load, points: Points) -> torch.Tensor:
        where = [torch.as_tensor(self.index(i, points)) for i in term.where]
        if term.source in self.table.definitions:
            inside = dict(zip(term.source.params, where, strict=True))
            return self.at(self.table.definitions[term.source], inside)
        values = self.read(term.source)
        # Of a piece that is not taken, the index may lie outside.
        near = [w.long().clamp(0, n - 1) for w, n in zip(where, values.shape, strict=True)]
        return values[tuple(near)] if near else values

    def _add(self, term: Add, points: Points) -> torch.Tensor:
        return term.const + sum(c * self.at(t, points) for t, c in term.parts)

    def _mul(self, term: Mul, points: Points) -> torch.Tensor:
        result = torch.tensor(term.coefficient, dtype=torch.float64)
        for base, power in term.factors:
            result = result * self.at(base, points) ** power
        return result

    def _exp(self, term: Exp, points: Points) -> torch.Tensor:
        return torch.exp(self.at(term.exponent, points))

    def _log(self, term: Log, points: Points) -> torch.Tensor:
        return torch.log(self.at(term.arg, points))

    def _fold(self, term: Fold, points: Points) -> torch.Tensor:
        rank, more = max((p.dim() for p in points.values()), default=0), len(term.over)
        inner = {a: p.reshape(*p.shape, *(1,) * more) for a, p in points.items()}
        for place, axis in enumerate(term.over):
            shape = [1] * (rank + more)
            shape[rank + place] = axis.extent
            inner[axis] = torch.arange(axis.extent).reshape(shape)
        body = self.at(term.body, inner)
        full = torch.broadcast_shapes(*(p.shape for p in inner.values()), body.shape)
        body = torch.broadcast_to(body, full)
        if term.combine in ("any", "all"):
            body = body.bool()
        dims = tuple(range(body.dim() - more, body.dim()))
        result = COMBINES[term.combine].function(body, dims)
        return result.reshape(result.shape[: result.dim() - more]).double()

    def _pieces(self, term: Pieces, points: Points) -> torch.Tensor:
        place = torch.as_tensor(self.index(term.selector, points))
        result = self.at(term.args[-1], points)
        for bound, arg in reversed(list(zip(term.bounds[:-1], term.args[:-1], strict=True))):
            result = torch.where(place < bound, self.at(arg, points), result)
        return result

    def _apply(self, term: Apply, points: Points) -> torch.Tensor:
        args = torch.broadcast_tensors(*(self.at(a, points) for a in term.args))
        if term.name.startswith("to:"):
            dtype = getattr(torch, term.name.removeprefix("to:"))
            return args[0].to(torch.float64 if dtype.is_floating_point else dtype)
        name = term.name.removeprefix("bitwise:")
        if name in ("and", "or", "xor", "not") and name == term.name:
            args = [a.bool() for a in args]
        elif name == "where":
            args = [args[0].bool(), *(a.double() for a in args[1:])]
        elif name in ("maximum", "minimum", "lt", "eq"):
            args = [a.double() for a in args]
        return PRIMITIVES[name].function(*args)

    def index(self, index: Index, points: Points) -> Any:
        total: Any = index.const
        for atom, coefficient in index.terms:
            total = total + self.atom(atom, points) * coefficient
        return total

    def atom(self, atom: Any, points: Points) -> Any:
        match atom:
            case Axis():
                return points[atom]
            case Quotient(inner, divisor):
                return torch.as_tensor(self.index(inner, points)) // divisor
            case Remainder(inner, divisor):
                return torch.as_tensor(self.index(inner, points)) % divisor
            case Looked(value, _):
                return self.at(value, points).long()
        raise AssertionError(atom)
