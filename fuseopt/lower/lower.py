"""From tensor expressions to a loop kernel: choosing axes and giving every value its index.

    y = x / sum(x, -1)   with x [4, 8]
    ->  rows a: 4, columns b: 8;  store y[8a + b] = load x[8a + b] / fold(sum, load x[8a + b], {b})

The largest output gives the axes. A reduction takes the axes that its result does not vary along,
so that what it reads is what the rest of the row reads. Views become index arithmetic; where an
index needs a division, the axis is split and the lowering starts over with finer axes.
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
    mixed_radix,
    within,
)
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.layout import align, covered, run_of
from fuseopt.ir.values import Value, Values
from fuseopt.lower.indexmap import broadcast, flat, reshaped
from fuseopt.ops.declare import compute_dtype

# Beyond the range of float8_e4m3fn hardware saturates, and so do newer releases of PyTorch; older
# ones give NaN.
_nan_beyond_464 = bool(torch.tensor(500.0).to(torch.float8_e4m3fn).isnan())
MOST_SPLITS = 64
MOST_PIECES = 16


class NotLowerable(Exception):  # noqa: N818 - a verdict about a region, handled by selection
    """The expressions do not fit one loop nest. `code` is "different-axes" or "index"."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


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
    extents: dict[str, tuple[Size, ...]] = {}
    for _ in range(MOST_SPLITS):
        try:
            kernel = _Lowering(inputs, outputs, extents, round_like_eager).run()
        except SplitAxis as request:
            _split(extents, request)
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


def _split(extents: dict[str, tuple[Size, ...]], request: SplitAxis) -> None:
    root, _, place = request.axis.name.rpartition("_")
    parts = list(extents[root])
    outer = dims.divide(request.axis.extent, request.inner)
    assert outer is not None
    parts[int(place) : int(place) + 1] = [outer, request.inner]
    extents[root] = tuple(parts)


class _Lowering:
    def __init__(
        self,
        inputs: Sequence[TensorParam],
        outputs: Sequence[Output],
        extents: dict[str, tuple[Size, ...]],
        round_like_eager: bool,
    ) -> None:
        self.used = {position: place for place, position in enumerate(used_inputs(outputs))}
        self.inputs = tuple(inputs[position] for position in self.used)
        self.outputs = outputs
        self.extents = extents
        self.round_like_eager = round_like_eager
        self.values = Values()
        self.axes: list[Axis] = []
        self.columns: tuple[Axis, ...] = ()
        self.done: dict[tuple[object, ...], Value] = {}
        self.visits: dict[int, list[tuple[Index, ...]]] = {}

    def run(self) -> LoopKernel:
        sizes = [dims.product(o.expr.shape) for o in self.outputs]
        main = _largest(sizes)
        stores: dict[int, Store] = {}
        indices = self._make_axes("x", self.outputs[main].expr.shape)
        stores[main] = self._store(main, indices)
        for number, output in enumerate(self.outputs):
            if number != main:
                stores[number] = self._store(number, self._place(output.expr))
        rows = tuple(a for a in self.axes if a not in self.columns)
        params = tuple(TensorParam(o.expr.dtype, o.expr.shape, o.strides) for o in self.outputs)
        ordered = tuple(stores[n] for n in range(len(self.outputs)))
        return LoopKernel(rows, self.columns, self.inputs, params, ordered)

    # --- axes ----------------------------------------------------------------------------------

    def _make_axes(self, kind: str, shape: Sequence[Size]) -> tuple[Index, ...]:
        """Make axes for the dimensions of a shape and return the index along each dimension."""
        found: list[Index] = []
        for number, extent in enumerate(shape):
            if extent == 1:
                found.append(Index())
                continue
            root = f"{kind}{number}"
            parts = self.extents.setdefault(root, (extent,))
            axes = [Axis(f"{root}_{place}", part) for place, part in enumerate(parts)]
            self.axes.extend(axes)
            found.append(mixed_radix(axes))
        return tuple(found)

    def _place(self, output: Expr) -> tuple[Index, ...]:
        """Return where in an output each point of the axes writes."""
        for indices in self.visits.get(id(output), ()):
            if covered(indices, output.shape) is not None:
                return indices
        long = [s for s in output.shape if s != 1]
        rows = [a for a in self.axes if a not in self.columns]
        for axes in (self.axes, rows):
            found = align(long, axes) if axes else None
            if found is not None:
                left = iter(found)
                return tuple(Index() if s == 1 else next(left) for s in output.shape)
        if not long:
            return (Index(),) * output.rank
        raise NotLowerable(
            "different-axes",
            f"an output of shape {dims.text(output.shape)} does not run along the others' axes",
        )

    def _store(self, number: int, indices: tuple[Index, ...]) -> Store:
        output = self.outputs[number]
        value = self.at(output.expr, indices, ())
        where = flat(indices, output.strides)
        idle = [a for a in self.axes if a not in where.axes]
        if any(a in value.axes for a in idle):
            raise NotLowerable("layout", "an output is written at fewer places than it has values")
        guard = tuple(
            self.values.apply(
                "eq",
                self.values.coordinate(axis_index(a)),
                self.values.number(0, torch.int64),
            )
            for a in idle
            if a not in self.columns
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
                self.visits.setdefault(id(e), []).append(indices)
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
        kept: frozenset[Axis] = frozenset().union(*(i.axes for i in indices))
        long = [d for d in e.over if e.arg.shape[d] != 1]
        extents = [e.arg.shape[d] for d in long]
        along = self._reduced_axes(e, extents, kept)
        # A guard along axes that the result does not have is not what keeps it in bounds.
        guard = tuple(g for g in guard if g.axes <= kept)
        inner = list(indices)
        for dim, where in zip(long, along, strict=True):
            inner[dim] = where
        body = self.at(e.arg, tuple(inner), guard)
        return self.values.fold(e.combine, body, self.columns)

    def _reduced_axes(
        self, e: expr.Reduce, extents: list[Size], kept: frozenset[Axis]
    ) -> tuple[Index, ...]:
        count = dims.product(extents)
        if not self.columns:
            idle = [a for a in self.axes if a not in kept]
            run = run_of(idle, count)
            if run is None:
                if idle:
                    raise NotLowerable(
                        "different-axes",
                        f"a reduction over {dims.text(extents)} is spread over axes of "
                        f"{dims.text([a.extent for a in idle])}",
                    )
                before = len(self.axes)
                made = self._make_axes("r", extents)
                self.columns = tuple(self.axes[before:])
                return made
            self.columns = run
        if kept & set(self.columns):
            raise NotLowerable("different-axes", "two reductions run over different axes")
        found = align(extents, self.columns)
        if found is None:
            raise NotLowerable(
                "different-axes",
                f"reductions over {dims.text(extents)} and over "
                f"{dims.text([a.extent for a in self.columns])} in one region",
            )
        return found

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
