"""Views: other indices for the same values, without a kernel of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ops.build import cat, permute, reshape, select, slice_
from fuseopt.ops.declare import Call, Definition, NotExpressible, Sample, T, expand, op, sample

X = T((4, 6))
CUBE = T((2, 3, 4))
LAST = 2**63 - 1


def view(*targets: str, samples: Sequence[Sample] = ()) -> Callable[[Definition], Definition]:
    """Declare a view op."""
    return op(*targets, form="view", samples=samples)


@view(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.view_as.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    samples=[sample(CUBE, [6, 4])],
)
def reshape_(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """The same elements in row-major order under the output's shape."""
    return reshape(x, call.shape)


@view("aten.alias.default", "aten.detach.default", "aten.positive.default", samples=[sample(X)])
def alias(call: Call, x: Expr) -> Expr:
    """The same tensor."""
    return x


@view("aten.permute.default", samples=[sample(CUBE, [2, 0, 1])])
def permute_(call: Call, x: Expr, order: Sequence[int]) -> Expr:
    """Dimensions in another order."""
    return permute(x, order)


@view(
    "aten.transpose.int",
    "aten.swapaxes.default",
    "aten.swapdims.default",
    samples=[sample(CUBE, 0, -1)],
)
def transpose(call: Call, x: Expr, a: int, b: int) -> Expr:
    """Two dimensions exchanged."""
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


@view("aten.t.default", "aten.numpy_T.default", "aten.mT.default", samples=[sample(X)])
def t(call: Call, x: Expr) -> Expr:
    """The (last two) dimensions in reverse order."""
    if call.target == "aten.mT.default":
        return transpose(call, x, -2, -1)
    return permute(x, tuple(reversed(range(x.rank))))


@view("aten.movedim.int", samples=[sample(CUBE, 0, 2)])
def movedim(call: Call, x: Expr, source: int, destination: int) -> Expr:
    """One dimension moved to another place."""
    order = [d for d in range(x.rank) if d != source % x.rank]
    order.insert(destination % x.rank, source % x.rank)
    return permute(x, order)


@view(
    "aten.expand.default",
    "aten.expand_as.default",
    "aten.broadcast_to.default",
    samples=[sample(T((3, 1)), [2, 3, 4])],
)
def expand_(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """Dimensions of size one repeated."""
    return expand(x, call.shape)


@view("aten.slice.Tensor", samples=[sample(X, 1, 2, 5), sample(X, 1, -4, LAST, 2)])
def slice_tensor(
    call: Call, x: Expr, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Expr:
    """Every step-th element along a dimension."""
    return slice_(x, dim, _start(start, x.shape[dim]), call.shape[dim % x.rank], step)


def _start(start: Any, extent: Size) -> Any:
    """Where a slice begins: counted from the end where negative, and inside the dimension."""
    start = _from_end(0 if start is None else start, extent)
    if isinstance(start, int) and isinstance(extent, int):
        return min(max(start, 0), extent)
    return start


@view("aten.narrow.default", samples=[sample(X, 1, 2, 3)])
def narrow(call: Call, x: Expr, dim: int, start: Any, length: Size) -> Expr:
    """A run of elements along a dimension."""
    return slice_(x, dim, _from_end(start, x.shape[dim]), length)


@view("aten.select.int", samples=[sample(X, 1, 2), sample(X, 0, -1)])
def select_(call: Call, x: Expr, dim: int, position: Any) -> Expr:
    """One element along a dimension, which disappears."""
    return select(x, dim, _from_end(position, x.shape[dim]))


def _from_end(position: Any, extent: Size) -> Size:
    if isinstance(position, int) and position < 0:
        return dims.add(extent, position)
    return position


@view(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    samples=[sample(X, 2, 1)],
)
def split(call: Call, x: Expr, sizes: Any, dim: int = 0) -> tuple[Expr, ...]:
    """Runs of elements along a dimension, one after another."""
    parts: list[Expr] = []
    start: Size = 0
    for part in call.outputs:
        length = part.shape[dim % x.rank]
        parts.append(slice_(x, dim, start, length))
        start = dims.add(start, length)
    return tuple(parts)


@view("aten.unbind.int", samples=[sample(X, 1)])
def unbind(call: Call, x: Expr, dim: int = 0) -> tuple[Expr, ...]:
    """Every element along a dimension, which disappears."""
    return tuple(select(x, dim, i) for i in range(len(call.outputs)))


# --- rearrangements that PyTorch copies for ----------------------------------------------------


@op("aten.flip.default", samples=[sample(CUBE, [0, 2])])
def flip(call: Call, x: Expr, dim: Sequence[int]) -> Expr:
    """Elements in reverse order along dimensions."""
    for d in dim:
        extent = x.shape[d]
        x = slice_(x, d, dims.add(extent, -1), extent, -1)
    return x


@op("aten.roll.default", samples=[sample(X, [2], [1]), sample(CUBE, [1, -1], [0, 2])])
def roll(call: Call, x: Expr, shifts: Any, dim: Any = ()) -> Expr:
    """Elements moved along dimensions, those that fall off coming in at the other end."""
    if not dim:
        raise NotExpressible("roll of the flattened tensor")
    for shift, d in zip(shifts, dim, strict=True):
        extent = x.shape[d]
        if not isinstance(extent, int) or not isinstance(shift, int):
            raise NotExpressible("roll by or over a symbolic size")
        start = -shift % extent
        if start:
            x = cat([slice_(x, d, start, extent - start), slice_(x, d, 0, start)], d)
    return x


@op("aten.repeat.default", samples=[sample(X, [2, 3]), sample(X, [2, 1, 3])])
def repeat(call: Call, x: Expr, repeats: Sequence[Any]) -> Expr:
    """The tensor tiled along each dimension."""
    lead = len(repeats) - x.rank
    sizes = (*(1,) * lead, *x.shape)
    inner = [s for size in sizes for s in (1, size)]
    outer = [s for r, size in zip(repeats, sizes, strict=True) for s in (r, size)]
    return reshape(expand(reshape(x, tuple(inner)), tuple(outer)), call.shape)


@op(
    "aten.cat.default",
    "aten.concat.default",
    samples=[sample([X, T((4, 2))], 1), sample([X, X], 0)],
)
def cat_(call: Call, parts: Sequence[Expr], dim: int = 0) -> Expr:
    """Tensors one after another along a dimension, promoted to one dtype."""
    rank = len(call.shape)
    given = [p for p in parts if p.rank == rank]  # PyTorch lets empty 1-D tensors through
    return cat(call.promoted(*given), dim)


@op("aten.stack.default", samples=[sample([X, X, X], 1), sample([X, X], -1)])
def stack(call: Call, parts: Sequence[Expr], dim: int = 0) -> Expr:
    """Tensors side by side along a new dimension."""
    dim %= len(call.shape)
    promoted = call.promoted(*parts)
    shape = (*promoted[0].shape[:dim], 1, *promoted[0].shape[dim:])
    return cat([reshape(p, shape) for p in promoted], dim)


@op("aten.constant_pad_nd.default", samples=[sample(X, [1, 2], 0.5), sample(X, [0, 0, -1, 2])])
def constant_pad(call: Call, x: Expr, pad: Sequence[Any], value: Any = 0) -> Expr:
    """x with numbers around it; a negative width cuts."""
    for i in range(len(pad) // 2):
        d = x.rank - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        if not isinstance(before, int) or not isinstance(after, int):
            raise NotExpressible("padding by a symbolic size")
        start, cut = max(-before, 0), max(-before, 0) + max(-after, 0)
        x = slice_(x, d, start, dims.add(x.shape[d], -cut))
        parts = [_filler(call, x, d, before, value), x, _filler(call, x, d, after, value)]
        x = cat([p for p in parts if p is not None], d)
    return x


@op("aten.pad.default", samples=[sample(X, [1, 2]), sample(X, [1, 2], "constant", 0.5)])
def pad(
    call: Call, x: Expr, pad: Sequence[Any], mode: str = "constant", value: float | None = None
) -> Expr:
    """Constant padding as it is called before dispatch."""
    if mode != "constant":
        raise NotExpressible(f"padding of mode {mode}")
    return constant_pad(call, x, pad, value or 0)


def _filler(call: Call, x: Expr, dim: int, width: int, value: Any) -> Expr | None:
    if width <= 0:
        return None
    shape = (*x.shape[:dim], width, *x.shape[dim + 1 :])
    return expand(call.number(value, x.dtype), shape)


@op(
    "aten.slice_scatter.default",
    samples=[sample(X, T((4, 2)), 1, 2, 4), sample(X, T((3, 6)), 0, -9, 3)],
)
def slice_scatter(
    call: Call,
    x: Expr,
    source: Expr,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Expr:
    """x with a run of elements along a dimension replaced."""
    extent = x.shape[dim]
    start = _start(start, extent)
    if step != 1 or not isinstance(start, int):
        raise NotExpressible("slice_scatter with a step or a symbolic start")
    after = dims.add(start, source.shape[dim])
    (source,) = call.as_dtype(x.dtype, source)
    parts = [
        slice_(x, dim, 0, start) if start else None,
        source,
        slice_(x, dim, after, dims.add(extent, -after)),
    ]
    return cat([p for p in parts if p is not None], dim)


@op("aten.select_scatter.default", samples=[sample(X, T((4,)), 1, 2)])
def select_scatter(call: Call, x: Expr, source: Expr, dim: int, position: Any) -> Expr:
    """x with one element along a dimension replaced."""
    dim %= x.rank
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    start = _from_end(position, x.shape[dim])
    return slice_scatter(call, x, reshape(source, shape), dim, start)


@op("aten.slice_backward.default", samples=[sample(T((4, 2)), [4, 6], 1, 2, 4, 1)])
def slice_backward(
    call: Call, grad: Expr, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: int
) -> Expr:
    """A gradient at its place in zeros."""
    zeros = expand(call.number(0, grad.dtype), tuple(sizes))
    return slice_scatter(call, zeros, grad, dim, start, end, step)


@op("aten.select_backward.default", samples=[sample(T((4,)), [4, 6], 1, 2)])
def select_backward(call: Call, grad: Expr, sizes: Sequence[Any], dim: int, position: Any) -> Expr:
    """The gradient of one element along a dimension at its place in zeros."""
    zeros = expand(call.number(0, grad.dtype), tuple(sizes))
    return select_scatter(call, zeros, grad, dim, position)
