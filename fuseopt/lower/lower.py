"""From tensor expressions to a loop kernel: choosing axes and giving every value its index.

    y = x / sum(x, -1)   with x [4, 8]
    ->  rows a: 4, columns b: 8;  store y[8a + b] = load x[8a + b] / fold(sum, load x[8a + b], {b})

The largest output gives the axes. A reduction takes the axes that its result does not vary along,
so that what it reads is what the rest of the row reads; one kernel has one run of such axes, and
totals, which run over rows as well. Views become index arithmetic; where an index needs a division,
the axis is split and the lowering starts over with finer axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuseopt.ir import dims, expr
from fuseopt.ir.check import UnprovenError, check
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ir.index import (
    Axis,
    Index,
    SplitAxis,
    axis_index,
    indirect,
    within,
)
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.layout import align
from fuseopt.ir.values import Fold, Value, Values, walk
from fuseopt.lower.indexmap import broadcast, flat, reshaped
from fuseopt.lower.nest import Nest, NotLowerable, axes_in_order, split
from fuseopt.lower.totals import kept_shape, pays, totals_of
from fuseopt.ops.declare import compute_dtype

# Beyond the range of float8_e4m3fn hardware saturates, and so do newer releases of PyTorch; older
# ones give NaN.
_nan_beyond_464 = bool(torch.tensor(500.0).to(torch.float8_e4m3fn).isnan())
MOST_SPLITS = 64
MOST_PIECES = 16
LONGEST_ROW = 16384  # elements of a row that a program can hold, sums over rows besides


@dataclass(frozen=True, slots=True)
class Output:
    """A value the kernel writes, with the layout it is written in."""

    expr: Expr
    strides: tuple[Size, ...]


def lower(
    inputs: Sequence[TensorParam], outputs: Sequence[Output], *, round_like_eager: bool = False
) -> LoopKernel:
    """Return the loop kernel that computes the outputs.

    inputs: layout of each input position; the kernel takes those of `used_inputs`, in order.
    round_like_eager: round to 16 bits wherever the original stored an intermediate; conversions
        that the user wrote round in any case.
    Raises `NotLowerable`.
    """
    totals = totals_of([o.expr for o in outputs])
    plans: list[dict[int, expr.Reduce]] = [{}]
    if totals:
        plans.insert(0 if any(map(pays, totals.values())) else 1, totals)
    refusals = []
    for plan in plans:
        try:
            return _lower(inputs, outputs, plan, round_like_eager)
        except NotLowerable as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _lower(
    inputs: Sequence[TensorParam],
    outputs: Sequence[Output],
    totals: dict[int, expr.Reduce],
    round_like_eager: bool,
) -> LoopKernel:
    extents: dict[str, tuple[Size, ...]] = {}
    for _ in range(MOST_SPLITS):
        try:
            kernel = _Lowering(inputs, outputs, extents, totals, round_like_eager).run()
        except SplitAxis as request:
            split(extents, request)
            continue
        try:
            check(kernel)
        except UnprovenError as error:
            raise NotLowerable("index", str(error)) from None
        return kernel
    raise NotLowerable("index", "the views of this region do not settle on common axes")


def used_inputs(outputs: Sequence[Output]) -> tuple[int, ...]:
    """Return the input positions that the outputs depend on, in order."""
    below = expr.walk(o.expr for o in outputs)
    return tuple(sorted({e.position for e in below if isinstance(e, expr.Input)}))


class _Lowering:
    def __init__(
        self,
        inputs: Sequence[TensorParam],
        outputs: Sequence[Output],
        extents: dict[str, tuple[Size, ...]],
        totals: dict[int, expr.Reduce],
        round_like_eager: bool,
    ) -> None:
        self.used = {position: place for place, position in enumerate(used_inputs(outputs))}
        self.inputs = tuple(inputs[position] for position in self.used)
        self.outputs = outputs
        self.nest = Nest(extents)
        self.totals = totals
        self.summed: dict[int, tuple[Index, ...]] = {}  # where totals read their operands
        self.round_like_eager = round_like_eager
        self.values = Values()
        self.done: dict[tuple[object, ...], Value] = {}

    def run(self) -> LoopKernel:
        domains = [self._domain(number) for number in range(len(self.outputs))]
        main = _largest([dims.product(e.shape) for e in domains])
        stores: dict[int, Store] = {}
        indices = self.nest.make_axes("x", domains[main].shape)
        # Totals take their axes from what the others visit, and so come last.
        order = sorted(range(len(self.outputs)), key=lambda n: (n in self.totals, n != main))
        for number in order:
            total = self.totals.get(number)
            if total is not None:
                where = indices if number == main else self.nest.place(total.arg)
                stores[number] = self._store(number, self._place_total(number, total, where))
            else:
                where = indices if number == main else self.nest.place(domains[number])
                stores[number] = self._store(number, where)
        for number, store in stores.items():
            self._check_totals(number, store)
        if len({stores[n].index.axes for n in self.totals}) > 1:
            raise NotLowerable("different-axes", "sums over rows that keep different axes")
        params = tuple(TensorParam(o.expr.dtype, o.expr.shape, o.strides) for o in self.outputs)
        ordered = tuple(stores[n] for n in range(len(self.outputs)))
        return LoopKernel(self.nest.rows, self.nest.columns, self.inputs, params, ordered)

    def _domain(self, number: int) -> Expr:
        """What gives the points that an output is computed from."""
        total = self.totals.get(number)
        return self.outputs[number].expr if total is None else total.arg

    # --- totals --------------------------------------------------------------------------------

    def _place_total(
        self, number: int, total: expr.Reduce, where: tuple[Index, ...]
    ) -> tuple[Index, ...]:
        """Return where an output below a total writes, its operand being read at `where`."""
        self.summed[id(total)] = where
        kept = [i for d, i in enumerate(where) if d not in total.over and total.shape[d] != 1]
        output = self.outputs[number].expr
        long = [n for n in output.shape if n != 1]
        if len(long) != len(kept) or not all(map(dims.same, long, kept_shape(total))):
            axes = [a for i in kept for a in axes_in_order(i)]
            aligned = align(long, axes)
            if aligned is None:
                raise NotLowerable("different-axes", "a sum over rows is written in another order")
            kept = list(aligned)
        left = iter(kept)
        return tuple(Index() if n == 1 else next(left) for n in output.shape)

    def _total(self, e: expr.Reduce, indices: tuple[Index, ...]) -> Value:
        where = self.summed[id(e)]
        moved = [
            i != w for d, (i, w) in enumerate(zip(indices, where, strict=True)) if e.shape[d] != 1
        ]
        if any(moved):
            raise NotLowerable("different-axes", "a sum over rows is used along other axes")
        value = self.at(e.arg, where, ())
        kept: frozenset[Axis] = frozenset().union(*(i.axes for i in indices))
        reached: frozenset[Axis] = frozenset().union(*(i.axes for i in where))
        over = tuple(a for a in self.nest.axes if a in reached and a not in kept)
        columns = set(self.nest.columns)
        missed = [a for a in self.nest.axes if a not in reached and a not in columns]
        if (
            missed
            or over == self.nest.columns
            or any(columns & part not in (set(), columns) for part in (reached, kept))
        ):
            raise NotLowerable("different-axes", "a sum over rows does not run over whole rows")
        if columns & set(over) and not columns <= value.axes:
            raise NotLowerable("different-axes", "a sum over rows counts each of them often")
        if columns and not dims.is_nonnegative(
            LONGEST_ROW + -dims.product(a.extent for a in columns)
        ):
            raise NotLowerable("different-axes", f"sums over rows of more than {LONGEST_ROW}")
        return self.values.fold(e.combine, value, over)

    def _check_totals(self, number: int, store: Store) -> None:
        """Refuse a total that something larger than it is computed from."""
        values = walk([store.value])
        found = [v for v in values if isinstance(v, Fold) and v.over != self.nest.columns]
        if not found:
            return
        above = {id(v) for v in found}
        for value in values:  # operands come first
            if any(id(o) in above for o in value.operands):
                above.add(id(value))
                if isinstance(value, Fold) or not value.axes <= found[0].axes:
                    reason = "a sum over rows is needed before it is complete"
                    raise NotLowerable("different-axes", reason)
        if number not in self.totals:
            reason = "a sum over rows is needed where it is not complete"
            raise NotLowerable("different-axes", reason)

    def _store(self, number: int, indices: tuple[Index, ...]) -> Store:
        output = self.outputs[number]
        value = self.at(output.expr, indices, ())
        where = flat(indices, output.strides)
        idle = [a for a in self.nest.axes if a not in where.axes]
        if any(a in value.axes for a in idle):
            raise NotLowerable("layout", "an output is written at fewer places than it has values")
        guard = tuple(
            self.values.apply(
                "eq",
                self.values.coordinate(axis_index(a)),
                self.values.number(0, torch.int64),
            )
            for a in idle
            if a not in self.nest.columns and number not in self.totals
        )
        return Store(number, where, value, guard)

    # --- values --------------------------------------------------------------------------------

    def at(self, e: Expr, indices: tuple[Index, ...], guard: tuple[Value, ...]) -> Value:
        """Return the value of an expression at an index; off guard it may be anything."""
        key = (id(e), indices, guard)
        known = self.done.get(key)
        if known is None:
            known = self.done[key] = self._at(e, indices, guard)
            if not guard:
                self.nest.visits.setdefault(id(e), []).append(indices)
        return known

    def _at(self, e: Expr, indices: tuple[Index, ...], guard: tuple[Value, ...]) -> Value:
        match e:
            case expr.Input():
                return self._load(e, indices, guard)
            case expr.Const():
                return self.values.number(e.value, compute_dtype(e.dtype))
            case expr.Iota():
                return self.values.convert(
                    self.values.coordinate(indices[0]), compute_dtype(e.dtype)
                )
            case expr.Map():
                args = [self.at(a, broadcast(indices, a), guard) for a in e.args]
                return self.values.apply(e.primitive, *args)
            case expr.Cast():
                return self._cast(e, self.at(e.arg, indices, guard))
            case expr.Reduce():
                return self._reduce(e, indices, guard)
            case expr.Cat():
                return self._cat(e, indices, guard)
            case expr.Gather():
                return self._gather(e, indices, guard)
            case expr.Pick():
                return self._pick(e, indices, guard)
            case _:
                return self.at(e.operands[0], self._view(e, indices), guard)

    def _view(self, e: Expr, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        match e:
            case expr.Permute(order=order):
                places = {source: place for place, source in enumerate(order)}
                return tuple(indices[places[d]] for d in range(e.arg.rank))
            case expr.Expand():
                return broadcast(indices, e.arg)
            case expr.Slice(dim=dim, start=start, step=step):
                moved = indices[dim] * step + start
                return (*indices[:dim], moved, *indices[dim + 1 :])
            case expr.Reshape():
                return reshaped(indices, e.shape, e.arg.shape)
            case _:
                raise AssertionError(f"{type(e).__name__} is not a view")

    def _load(self, e: expr.Input, indices: tuple[Index, ...], guard: tuple[Value, ...]) -> Value:
        param = self.used[e.position]
        where = flat(indices, self.inputs[param].strides)
        # A guard along axes that the index does not have is not what keeps it in bounds.
        guard = tuple(g for g in guard if g.axes <= where.axes)
        loaded = self.values.load(param, e.dtype, where, guard)
        return self.values.convert(loaded, compute_dtype(e.dtype))

    def _cast(self, e: expr.Cast, value: Value) -> Value:
        value = self.values.convert(value, compute_dtype(e.dtype))
        if e.dtype == torch.float8_e4m3fn and _nan_beyond_464:
            value = self._nan_beyond(value, 464.0)
        narrow = compute_dtype(e.dtype) != e.dtype
        if narrow and e.arg.dtype != e.dtype and (e.explicit or self.round_like_eager):
            return self.values.round(value, e.dtype)
        return value

    def _nan_beyond(self, value: Value, largest: float) -> Value:
        magnitude = self.values.apply("abs", value)
        beyond = self.values.apply("gt", magnitude, self.values.number(largest, value.dtype))
        nan = self.values.number(math.nan, value.dtype)
        return self.values.apply("where", beyond, nan, value)

    def _reduce(
        self, e: expr.Reduce, indices: tuple[Index, ...], guard: tuple[Value, ...]
    ) -> Value:
        if id(e) in self.summed:
            return self._total(e, indices)
        kept: frozenset[Axis] = frozenset().union(*(i.axes for i in indices))
        long = [d for d in e.over if e.arg.shape[d] != 1]
        extents = [e.arg.shape[d] for d in long]
        along = self.nest.reduced_axes(extents, kept)
        # A guard along axes that the result does not have is not what keeps it in bounds.
        guard = tuple(g for g in guard if g.axes <= kept)
        inner = list(indices)
        for dim, where in zip(long, along, strict=True):
            inner[dim] = where
        body = self.at(e.arg, tuple(inner), guard)
        return self.values.fold(e.combine, body, self.nest.columns)

    def _cat(self, e: expr.Cat, indices: tuple[Index, ...], guard: tuple[Value, ...]) -> Value:
        if len(e.args) > MOST_PIECES:
            raise NotLowerable("index", f"concatenation of {len(e.args)} tensors")
        along = indices[e.dim]
        pieces: list[tuple[Expr, Size, Size]] = []
        start: Size = 0
        for arg in e.args:
            end = dims.add(start, arg.shape[e.dim])
            if within(along + -start, arg.shape[e.dim]):
                return self._piece(e, arg, start, indices, guard)
            pieces.append((arg, start, end))
            start = end
        position = self.values.coordinate(along)
        result: Value | None = None
        for number, (arg, start, end) in reversed(list(enumerate(pieces))):
            conditions = list(guard)
            below = self._compare("lt", position, end)
            if number:
                conditions.append(self._compare("ge", position, start))
            if number < len(pieces) - 1:
                conditions.append(below)
            piece = self._piece(e, arg, start, indices, tuple(conditions))
            result = piece if result is None else self.values.apply("where", below, piece, result)
        assert result is not None
        return result

    def _piece(
        self,
        e: expr.Cat,
        arg: Expr,
        start: Size,
        indices: tuple[Index, ...],
        guard: tuple[Value, ...],
    ) -> Value:
        moved = indices[e.dim] + -start
        return self.at(arg, (*indices[: e.dim], moved, *indices[e.dim + 1 :]), guard)

    def _compare(self, primitive: str, position: Value, bound: Size) -> Value:
        return self.values.apply(primitive, position, self.values.number(bound, torch.int64))

    def _gather(
        self, e: expr.Gather, indices: tuple[Index, ...], guard: tuple[Value, ...]
    ) -> Value:
        rank = e.index.rank
        picked = self.at(e.index, indices[e.dim : e.dim + rank], guard)
        extent = e.arg.shape[e.dim]
        picked = self.values.convert(picked, torch.int64)
        if e.wraps:
            low = self._compare("lt", picked, 0)
            moved = self.values.apply("add", picked, self.values.number(extent, torch.int64))
            picked = self.values.apply("where", low, moved, picked)
        where = (*indices[: e.dim], indirect(picked, extent), *indices[e.dim + rank :])
        return self.at(e.arg, where, guard)

    def _pick(self, e: expr.Pick, indices: tuple[Index, ...], guard: tuple[Value, ...]) -> Value:
        picked = self.values.convert(self.at(e.index, indices, guard), torch.int64)
        inside = indirect(picked, e.arg.shape[e.dim])
        return self.at(e.arg, (*indices[: e.dim], inside, *indices[e.dim + 1 :]), guard)


def _largest(sizes: Sequence[Size]) -> int:
    best = 0
    for number, size in enumerate(sizes):
        smaller = dims.add(size, -sizes[best])
        if dims.is_nonnegative(smaller):
            best = number
    return best
