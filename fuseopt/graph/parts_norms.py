"""Layer, RMS, group and batch norm and their derivatives, written in pieces.

    y, mean, scale = native_layer_norm(x, w, b)     ->  variance, mean = var_mean(x)
                                                        scale = rsqrt(variance + eps)
                                                        y = (x - mean) * scale * w + b

With xhat = (x - mean) * scale and g = grad * w over the n elements that share a statistic,
dx = scale * (g - mean(g) - xhat * mean(g * xhat)); dw and db are sums of grad * xhat and grad.
Statistics are float32, one number a row; y and xhat may be computed again from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fuseopt.graph.pieces import Pieces, composite, dtype_of, sizes, value_of
from fuseopt.ir import dims
from fuseopt.ops.declare import T, sample

aten = torch.ops.aten
X = T((4, 3, 6))
W = T((6,), low=0.5, high=1.5)
B = T((6,))
CENTER = T((4, 3, 1), low=-1.0, high=1.0)
SCALE = T((4, 3, 1), low=0.5, high=2.0)
IMAGE = T((2, 6, 3, 4))
VARIANCE = T((6,), low=0.2, high=2.0)
PER_GROUP = T((2, 3), low=0.5, high=2.0)
ALL = [True, True, True]


def _affine(p: Pieces, y: fx.Node, weight: Any, bias: Any) -> fx.Node:
    if weight is not None:
        y = p.mul(y, p.to(weight, dtype_of(y)))
    return y if bias is None else p.add(y, p.to(bias, dtype_of(y)))


def _trailing(x: fx.Node, normalized: Sequence[Any]) -> tuple[list[int], list[int]]:
    rank = value_of(x).dim()
    first = rank - len(normalized)
    return list(range(first)), list(range(first, rank))


@composite(
    "aten.native_layer_norm.default",
    samples=[
        sample(X, [6], W, B, 1e-5),
        sample(X, [3, 6], None, None, 1e-3),
        sample(X, [6], None, B, 1e-5),
    ],
)
def layer_norm(
    p: Pieces, x: fx.Node, normalized: Sequence[Any], weight: Any, bias: Any, eps: float
) -> Any:
    """Zero mean and unit variance over the trailing dimensions; with mean and 1 / deviation."""
    x = p.wide(x)
    center, spread = p.moments(x, _trailing(x, normalized)[1])
    scale = p.rsqrt(p.add(spread, eps))
    return _affine(p, p.mul(p.sub(x, center), scale), weight, bias), center, scale


@composite(
    "aten.native_layer_norm_backward.default",
    samples=[
        sample(X, X, [6], CENTER, SCALE, W, B, ALL),
        sample(X, X, [6], CENTER, SCALE, None, None, [True, False, False]),
        sample(X, X, [6], CENTER, SCALE, W, B, [False, True, True]),
    ],
)
def layer_norm_backward(
    p: Pieces,
    grad: fx.Node,
    x: fx.Node,
    normalized: Sequence[Any],
    center: fx.Node,
    scale: fx.Node,
    weight: Any,
    bias: Any,
    mask: Sequence[bool],
) -> Any:
    """Gradients with respect to input, weight and bias."""
    rows, over = _trailing(x, normalized)
    grad, x, scale = p.wide(grad), p.wide(x), p.unrounded(scale)
    xhat = p.mul(p.sub(x, p.unrounded(center)), scale)
    dx = _toward_input(p, grad, xhat, scale, weight, over) if mask[0] else None
    dw, db = _toward_weights(p, grad, xhat, rows, weight, bias, mask[1:])
    return dx, dw, db


def _toward_input(
    p: Pieces, grad: fx.Node, xhat: fx.Node, scale: fx.Node, weight: Any, over: list[int]
) -> fx.Node:
    if weight is not None:
        grad = p.mul(grad, p.to(weight, dtype_of(grad)))
    along = p.mul(xhat, p.mean(p.mul(grad, xhat), over))
    return p.mul(scale, p.sub(p.sub(grad, p.mean(grad, over)), along))


def _toward_weights(
    p: Pieces,
    grad: fx.Node,
    xhat: fx.Node,
    rows: list[int],
    weight: Any,
    bias: Any,
    mask: Sequence[bool],
) -> tuple[fx.Node | None, fx.Node | None]:
    """Sums over the dimensions that weight and bias do not have, which are dropped."""
    dw = p.mul(grad, xhat) if mask[0] and weight is not None else None
    db = grad if mask[1] and bias is not None else None
    return _dropped(p, dw, rows), _dropped(p, db, rows)


def _dropped(p: Pieces, x: fx.Node | None, rows: list[int]) -> fx.Node | None:
    return x if x is None or not rows else p(aten.sum.dim_IntList, x, rows)


@composite(
    "aten._fused_rms_norm.default",
    samples=[sample(X, [6], W, 1e-6), sample(X, [3, 6], None, None)],
)
def rms_norm(p: Pieces, x: fx.Node, normalized: Sequence[Any], weight: Any, eps: Any) -> Any:
    """x over the root of its mean square in the trailing dimensions; with 1 / that root."""
    x = p.wide(x)
    limit = torch.finfo(dtype_of(x)).eps if eps is None else eps
    scale = p.rsqrt(p.add(p.mean(p.mul(x, x), _trailing(x, normalized)[1]), limit))
    return _affine(p, p.mul(x, scale), weight, None), scale


@composite(
    "aten._fused_rms_norm_backward.default",
    samples=[
        sample(X, X, [6], SCALE, W, [True, True]),
        sample(X, X, [6], SCALE, None, [True, False]),
    ],
)
def rms_norm_backward(
    p: Pieces,
    grad: fx.Node,
    x: fx.Node,
    normalized: Sequence[Any],
    scale: fx.Node,
    weight: Any,
    mask: Sequence[bool],
) -> Any:
    """Gradients with respect to input and weight: as for layer norm, without the mean."""
    rows, over = _trailing(x, normalized)
    grad, scale = p.wide(grad), p.unrounded(scale)
    xhat = p.mul(p.wide(x), scale)
    dw, _ = _toward_weights(p, grad, xhat, rows, weight, None, [mask[1], False])
    if not mask[0]:
        return None, dw
    if weight is not None:
        grad = p.mul(grad, p.to(weight, dtype_of(grad)))
    return p.mul(scale, p.sub(grad, p.mul(xhat, p.mean(p.mul(grad, xhat), over)))), dw


# --- group norm --------------------------------------------------------------------------------


def _grouped(p: Pieces, x: fx.Node, groups: int) -> fx.Node:
    """[batch, channels, ...] as [batch, groups, channels of a group, ...]."""
    batch, channels, *rest = (p.size(x, d) for d in range(value_of(x).dim()))
    return p.view(x, [batch, groups, channels // groups, *rest])


def _within(x: fx.Node) -> list[int]:
    return list(range(2, value_of(x).dim()))


def _channels(p: Pieces, weight: fx.Node, rank: int) -> fx.Node:
    """A vector along dimension 1."""
    for _ in range(rank - 2):
        weight = p.unsqueeze(weight, -1)
    return weight


@composite(
    "aten.native_group_norm.default",
    samples=[
        sample(IMAGE, W, B, 2, 6, 12, 3, 1e-5),
        sample(T((2, 6)), None, None, 2, 6, 1, 2, 1e-5),
    ],
)
def group_norm(
    p: Pieces,
    x: fx.Node,
    weight: Any,
    bias: Any,
    batch: Any,
    channels: Any,
    positions: Any,
    groups: int,
    eps: float,
) -> Any:
    """Zero mean and unit variance in each group of channels; with mean and 1 / deviation."""
    if not isinstance(sizes(x)[1], int):
        return NotImplemented
    rank = value_of(x).dim()
    shape = [p.size(x, d) for d in range(rank)]
    grouped = _grouped(p, p.wide(x), groups)
    over = _within(grouped)
    center, spread = p.moments(grouped, over)
    scale = p.rsqrt(p.add(spread, eps))
    normal = p.view(p.mul(p.sub(grouped, center), scale), shape)
    weight = None if weight is None else _channels(p, weight, rank)
    bias = None if bias is None else _channels(p, bias, rank)
    statistics = (p.squeeze(center, over), p.squeeze(scale, over))
    return _affine(p, normal, weight, bias), *statistics


@composite(
    "aten.native_group_norm_backward.default",
    samples=[
        sample(IMAGE, IMAGE, PER_GROUP, PER_GROUP, W, 2, 6, 12, 3, ALL),
        sample(IMAGE, IMAGE, PER_GROUP, PER_GROUP, None, 2, 6, 12, 3, [True, False, False]),
    ],
)
def group_norm_backward(
    p: Pieces,
    grad: fx.Node,
    x: fx.Node,
    center: fx.Node,
    scale: fx.Node,
    weight: Any,
    batch: Any,
    channels: Any,
    positions: Any,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Gradients with respect to input, weight and bias."""
    if not isinstance(sizes(x)[1], int):
        return NotImplemented
    rank = value_of(x).dim()
    shape = [p.size(x, d) for d in range(rank)]
    grad, grouped = p.wide(grad), _grouped(p, p.wide(x), groups)
    over = _within(grouped)
    center, scale = (_spread(p, p.unrounded(t), len(over)) for t in (center, scale))
    xhat = p.mul(p.sub(grouped, center), scale)
    rows = [0, *range(2, rank)]
    flat = p.view(xhat, shape)
    dw, db = _toward_weights(p, grad, flat, rows, grad, grad, mask[1:])
    if not mask[0]:
        return None, dw, db
    if weight is not None:
        grad = p.mul(grad, _channels(p, p.to(weight, dtype_of(grad)), rank))
    dx = _toward_input(p, _grouped(p, grad, groups), xhat, scale, None, over)
    return p.view(dx, shape), dw, db


def _spread(p: Pieces, statistic: fx.Node, count: int) -> fx.Node:
    for _ in range(count):
        statistic = p.unsqueeze(statistic, -1)
    return statistic


# --- batch norm --------------------------------------------------------------------------------


def _all_but_channels(x: fx.Node) -> list[int]:
    return [d for d in range(value_of(x).dim()) if d != 1]


@composite(
    "aten._native_batch_norm_legit_functional.default",
    samples=[
        sample(IMAGE, W, B, B, VARIANCE, True, 0.1, 1e-5),
        sample(T((4, 6)), None, None, B, VARIANCE, True, 0.3, 1e-5),
    ],
)
def batch_norm(
    p: Pieces,
    x: fx.Node,
    weight: Any,
    bias: Any,
    mean_: fx.Node,
    variance: fx.Node,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm by the batch's statistics, and the running statistics moved towards these."""
    if not training:
        return NotImplemented
    y, center, scale, spread = _batch_normal(p, x, weight, bias, eps)
    over = _all_but_channels(x)
    count = dims.product(sizes(x)[d] for d in over)
    if isinstance(count, int):
        unbiased = p.mul(spread, count / max(count - 1, 1))
    else:
        wide = p.wide(x)
        unbiased = p(aten.var.correction, wide, over, correction=1)
    moved = (
        _moved(p, mean_, center, momentum),
        _moved(p, variance, unbiased, momentum),
    )
    return y, center, scale, *moved


@composite(
    "aten._native_batch_norm_legit.no_stats",
    samples=[sample(IMAGE, W, B, True, 0.1, 1e-5)],
)
def batch_norm_without_statistics(
    p: Pieces,
    x: fx.Node,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm by the batch's statistics."""
    return _batch_normal(p, x, weight, bias, eps)[:3]


def _batch_normal(
    p: Pieces, x: fx.Node, weight: Any, bias: Any, eps: float
) -> tuple[fx.Node, fx.Node, fx.Node, fx.Node]:
    """The normalised values, and mean, 1 / deviation and variance of each channel."""
    rank = value_of(x).dim()
    x = p.wide(x)
    over = _all_but_channels(x)
    center, spread = p.moments(x, over)
    scale = p.rsqrt(p.add(spread, eps))
    weight = None if weight is None else _channels(p, weight, rank)
    bias = None if bias is None else _channels(p, bias, rank)
    y = _affine(p, p.mul(p.sub(x, center), scale), weight, bias)
    return y, p.squeeze(center, over), p.squeeze(scale, over), p.squeeze(spread, over)


def _moved(p: Pieces, running: fx.Node, seen: fx.Node, momentum: float) -> fx.Node:
    return p.add(p.mul(p.wide(running), 1.0 - momentum), p.mul(seen, momentum))


@composite(
    "aten.native_batch_norm_backward.default",
    samples=[
        sample(IMAGE, IMAGE, W, B, VARIANCE, B, VARIANCE, True, 1e-5, ALL),
        sample(IMAGE, IMAGE, None, None, None, B, VARIANCE, True, 1e-5, [True, False, False]),
        sample(IMAGE, IMAGE, W, B, VARIANCE, None, None, False, 1e-5, ALL),
    ],
)
def batch_norm_backward(
    p: Pieces,
    grad: fx.Node,
    x: fx.Node,
    weight: Any,
    mean_: Any,
    variance: Any,
    center: Any,
    scale: Any,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    """Gradients with respect to input, weight and bias; in evaluation statistics are constants."""
    if (center if training else mean_) is None:
        return NotImplemented
    rank = value_of(x).dim()
    grad, x = p.wide(grad), p.wide(x)
    over = _all_but_channels(x)
    if training:
        center, scale = p.unrounded(center), p.unrounded(scale)
    else:
        center, scale = p.wide(mean_), p.rsqrt(p.add(p.wide(variance), eps))
    center, scale = _channels(p, center, rank), _channels(p, scale, rank)
    xhat = p.mul(p.sub(x, center), scale)
    dw, db = _toward_weights(p, grad, xhat, over, grad, grad, mask[1:])
    if not mask[0]:
        return None, dw, db
    if weight is not None:
        weight = _channels(p, weight, rank)
    if training:
        return _toward_input(p, grad, xhat, scale, weight, over), dw, db
    return _affine(p, p.mul(grad, scale), weight, None), dw, db
