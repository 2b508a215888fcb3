"""From expressions to shadow terms: views become indices, shared values are read by name.

    softmax(x, -1)   ->   exp(x[a, b]) * (sum_r exp(x[a, r]))**-1

A value with several uses is a "let": terms hold a load of it, and algebra and index arithmetic stop
there. This keeps terms small (otherwise each would go back to the inputs), and it keeps a value
that a pattern uses twice in one piece at the site. Exponentials are the exception, for they have to
cancel: a shared one is written out. Where it is itself what a pattern's parameter stands for,
that pulls it apart, so a shadow can also be made with `share_exponentials`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fuseopt.ir import dims, expr
from fuseopt.ir.expr import Expr
from fuseopt.ir.layout import pair_dimensions
from fuseopt.match import constants
from fuseopt.match.erase import Erasure, core, count_uses
from fuseopt.match.folds import fold, fresh_axis, opened, pieces
from fuseopt.match.functions import apply, plain
from fuseopt.match.indices import Axis, Index, along, fixed, joined, looked_up, parted
from fuseopt.match.terms import Literal, Load, Source, Table, Term, skeleton

Indices = tuple[Index, ...]

_BITWISE = frozenset({"and", "or", "xor", "not"})
_EXPONENTIALS = frozenset({"exp", "exp2", "expm1"})


class Shadow:
    """The terms of some erased expressions, in one table.

    roots: all whose uses of values count.
    names: what to call inputs, by position; "i0", "i1", ... by default.
    """

    def __init__(
        self,
        erasure: Erasure,
        roots: Iterable[Expr],
        *,
        share_exponentials: bool = False,
        names: Sequence[str] = (),
        kind: str = "input",
    ) -> None:
        self.table = Table()
        self.erasure = erasure
        self.share_exponentials = share_exponentials
        self.names = names
        self.kind = kind
        self.lets: dict[Expr, Source] = {}
        self.unshared = 0
        self.inputs: dict[Source, Expr] = {}
        self._made: list[tuple[Term, Expr]] = []
        self._values: dict[Any, Expr] = {}
        self._done: dict[tuple[Expr, Indices], Term] = {}
        erased = list(roots)
        self._uses = count_uses(erased)
        for e in expr.walk(erased):
            if self._is_shared(e):  # bottom up, for recursion could be as deep as the network
                self._let(e)

    def axes_of(self, e: Expr) -> tuple[Axis, ...]:
        """Return the axes that the term of an expression is written in, one a dimension."""
        return tuple(Axis(f"a{d}", s) for d, s in enumerate(e.shape))

    def term(self, e: Expr) -> Term:
        """Return the term of an expression, itself written out even where it is shared."""
        return self.written_out(self.erasure.of(e))

    def written_out(self, erased: Expr) -> Term:
        """As `term`, for an erased expression."""
        return self._value(erased, tuple(along(a) for a in self.axes_of(erased)), True)

    def at(self, erased: Expr, indices: Indices) -> Term:
        """Return the term of an erased expression at an index."""
        return self._value(erased, indices, False)

    def constant(self, value: Any) -> constants.Constant:
        """Return what a number, or a size, is among terms."""
        if isinstance(value, (bool, int, float)):
            return float(value)
        return constants.of_size(value)

    # --- values -------------------------------------------------------------------------------

    def _value(self, e: Expr, indices: Indices, open_: bool) -> Term:
        while True:
            moved = _through_view(e, indices)
            if moved is None:
                break
            e, indices = moved
        if not open_ and self._is_shared(e):
            long = [i for i, s in zip(indices, e.shape, strict=True) if s != 1]
            load = self.table.load(self._let(e), long)
            shown = opened(self.table, load)
            return shown if isinstance(shown, (Literal, Load)) else load
        key = (e, indices)
        known = self._done.get(key)
        if known is None:
            known = self._done[key] = self._written_out(e, indices)
            self._made.append((known, e))
        return known

    def value_of(self, term: Term) -> Expr | None:
        """Return the erased expression that a term is the value of, at whatever index.

        None for a term that was put together while matching.
        """
        return self._known_values().get(skeleton(term))

    def is_value(self, term: Term) -> bool:
        """Whether a term is the value of an expression."""
        return isinstance(term, Load) or skeleton(term) in self._known_values()

    def _known_values(self) -> dict[Any, Expr]:
        for term, e in self._made:
            if isinstance(e, (expr.Gather, expr.Pick)):
                self._values[skeleton(term)] = e  # what is looked up, not the table
            else:
                self._values.setdefault(skeleton(term), e)
        self._made.clear()
        return self._values

    def _is_shared(self, e: Expr) -> bool:
        if self._uses.get(e, 0) < 2 or isinstance(e, (expr.Input, expr.Const, expr.Iota)):
            return False
        if not self.share_exponentials and _is_exponential(e):
            self.unshared += 1
            return False
        return True

    def _let(self, e: Expr) -> Source:
        known = self.lets.get(e)
        if known is None:
            number = len(self.lets)
            known = self.table.source("let", e, e.shape, f"v{number}")
            self.lets[e] = known
            params = iter(known.params)
            indices = tuple(Index() if s == 1 else along(next(params)) for s in e.shape)
            self.table.definitions[known] = self._written_out(e, indices)
        return known

    def _written_out(self, e: Expr, indices: Indices) -> Term:
        match e:
            case expr.Input(position=position):
                name = self.names[position] if self.names else f"i{position}"
                source = self.table.source(self.kind, position, e.shape, name)
                self.inputs[source] = e
                long = [i for i, s in zip(indices, e.shape, strict=True) if s != 1]
                return self.table.load(source, long)
            case expr.Const(value=value):
                return self.table.literal(self.constant(value))
            case expr.Iota():
                return self.table.position(indices[0])
            case expr.Map():
                return self._map(e, indices)
            case expr.Cast(arg=arg, dtype=dtype):
                short = str(dtype).removeprefix("torch.")
                return apply(self.table, f"to:{short}", [self.at(arg, indices)])
            case expr.Reduce():
                return self._reduce(e, indices)
            case expr.Cat():
                return self._cat(e, indices)
            case expr.Gather():
                return self._gather(e, indices)
            case expr.Pick(arg=arg, index=index, dim=dim):
                inside = looked_up(self.at(index, indices), arg.shape[dim])
                return self.at(arg, (*indices[:dim], inside, *indices[dim + 1 :]))
            case _:
                raise AssertionError(f"{type(e).__name__} has no shadow")

    def _map(self, e: expr.Map, indices: Indices) -> Term:
        args = [self.at(a, _broadcast(indices, a)) for a in e.args]
        if e.primitive in _BITWISE and e.dtype != torch.bool:
            return plain(self.table, f"bitwise:{e.primitive}", args)
        return apply(self.table, e.primitive, args)

    def _reduce(self, e: expr.Reduce, indices: Indices) -> Term:
        over = {d: fresh_axis(e.arg.shape[d]) for d in e.over}
        inside = tuple(along(over[d]) if d in over else i for d, i in enumerate(indices))
        return fold(self.table, e.combine, tuple(over.values()), self.at(e.arg, inside))

    def _cat(self, e: expr.Cat, indices: Indices) -> Term:
        args: list[Term] = []
        bounds: list[dims.Size] = []
        end: dims.Size = 0
        for arg in e.args:
            moved = indices[e.dim] - fixed(end)
            args.append(self.at(arg, (*indices[: e.dim], moved, *indices[e.dim + 1 :])))
            end = dims.add(end, arg.shape[e.dim])
            bounds.append(end)
        return pieces(self.table, indices[e.dim], bounds, args)

    def _gather(self, e: expr.Gather, indices: Indices) -> Term:
        rank = e.index.rank
        place = self.at(e.index, indices[e.dim : e.dim + rank])
        inside = looked_up(place, e.arg.shape[e.dim])
        return self.at(e.arg, (*indices[: e.dim], inside, *indices[e.dim + rank :]))


def _is_exponential(e: Expr) -> bool:
    """Whether a value is an exponential, or a distance from a maximum on its way to one."""
    if not isinstance(e, expr.Map):
        return False
    if e.primitive == "sub":
        away = core(e.args[1])
        return isinstance(away, expr.Reduce) and away.combine in ("max", "max_number")
    return e.primitive in _EXPONENTIALS


# --- views ----------------------------------------------------------------------------------------


def _broadcast(indices: Indices, operand: Expr) -> Indices:
    trailing = indices[len(indices) - operand.rank :]
    return tuple(
        Index() if size == 1 else i for size, i in zip(operand.shape, trailing, strict=True)
    )


def _through_view(e: Expr, indices: Indices) -> tuple[Expr, Indices] | None:
    """Return what a view shows and the index there, None for what is not a view."""
    match e:
        case expr.Permute(arg=arg, order=order):
            places = {source: place for place, source in enumerate(order)}
            return arg, tuple(indices[places[d]] for d in range(arg.rank))
        case expr.Expand(arg=arg):
            return arg, _broadcast(indices, arg)
        case expr.Slice(arg=arg, dim=dim, start=start, step=step):
            moved = indices[dim] * step + fixed(start)
            return arg, (*indices[:dim], moved, *indices[dim + 1 :])
        case expr.Reshape(arg=arg):
            found: list[Index] = []
            for left, right in pair_dimensions(e.shape, arg.shape):
                flat = joined([indices[d] for d in left], [e.shape[d] for d in left])
                found.extend(parted(flat, [arg.shape[d] for d in right]))
            return arg, tuple(found)
        case _:
            return None
