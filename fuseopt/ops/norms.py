"""Layer, RMS, group, batch and instance norm, as whole ops and as they appear after dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ops.build import mean, moments, reshape, rsqrt, total
from fuseopt.ops.declare import Call, NotExpressible, T, compute_dtype, convert, op, sample

X = T((4, 3, 6))
W = T((6,), low=0.5, high=1.5)
B = T((6,))
IMAGE = T((2, 6, 3, 4))
CW = T((6,), low=0.5, high=1.5)
CB = T((6,))
VARIANCE = T((6,), low=0.2, high=2.0)


def _affine(y: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    if weight is not None:
        y = y * convert(weight, y.dtype)
    return y if bias is None else y + convert(bias, y.dtype)


def _trailing(x: Expr, normalized: Sequence[Any]) -> tuple[int, ...]:
    return tuple(range(x.rank - len(normalized), x.rank))


def _layer_norm(
    x: Expr, over: tuple[int, ...], weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, Expr, Expr]:
    exact = compute_dtype(x.dtype) == x.dtype
    center, away, spread = moments(convert(x, compute_dtype(x.dtype)), over, exact=exact)
    scale = rsqrt(spread + eps)
    return _affine(away * scale, weight, bias), center, scale


@op(
    "aten.layer_norm.default",
    form="reduce",
    samples=[sample(X, [6], W, B), sample(X, [3, 6]), sample(X, [6], None, B, 1e-3)],
)
def layer_norm(
    call: Call,
    x: Expr,
    normalized: Sequence[Any],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Expr:
    """Zero mean and unit variance over the trailing dimensions, then weight and bias."""
    return _layer_norm(x, _trailing(x, normalized), weight, bias, eps)[0]


@op(
    "aten.native_layer_norm.default",
    loose=True,
    form="reduce",
    samples=[sample(X, [6], W, B, 1e-5)],
)
def native_layer_norm(
    call: Call,
    x: Expr,
    normalized: Sequence[Any],
    weight: Expr | None,
    bias: Expr | None,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    """Layer norm with its mean and reciprocal standard deviation."""
    y, center, scale = _layer_norm(x, _trailing(x, normalized), weight, bias, eps)
    # Where a row holds an infinity PyTorch's running mean is NaN, as the deviation is.
    return y, center + scale * 0.0, scale


@op("aten.native_layer_norm_backward.default", loose=True, form="reduce")
def layer_norm_backward(
    call: Call,
    grad: Expr,
    x: Expr,
    normalized: Sequence[Any],
    center: Expr,
    scale: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mask: Sequence[bool],
) -> tuple[Expr | None, ...]:
    """Gradients of layer norm with respect to input, weight and bias.

    With xhat = (x - mean) * rstd and g = grad * weight over rows of n elements,
    dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight and dbias sum over the rows.
    """
    over = _trailing(x, normalized)
    rows = tuple(range(x.rank - len(normalized)))
    dtype = compute_dtype(x.dtype)
    grad, x, center, scale = (convert(t, dtype) for t in (grad, x, center, scale))
    xhat = (x - center) * scale
    scaled = grad if weight is None else grad * convert(weight, dtype)
    dx = scale * (scaled - mean(scaled, over) - xhat * mean(scaled * xhat, over))
    shape = tuple(normalized)
    return (
        dx if mask[0] else None,
        reshape(total(grad * xhat, rows), shape) if mask[1] and weight is not None else None,
        reshape(total(grad, rows), shape) if mask[2] and bias is not None else None,
    )


def _rms_norm(
    x: Expr, over: tuple[int, ...], weight: Expr | None, eps: float | None
) -> tuple[Expr, Expr]:
    limit = torch.finfo(compute_dtype(x.dtype)).eps if eps is None else eps
    x = convert(x, compute_dtype(x.dtype))
    scale = rsqrt(mean(x * x, over) + limit)
    return _affine(x * scale, weight, None), scale


@op(
    "aten.rms_norm.default",
    form="reduce",
    samples=[sample(X, [6], W, 1e-6), sample(X, [3, 6]), sample(X, [6], W)],
)
def rms_norm(
    call: Call,
    x: Expr,
    normalized: Sequence[Any],
    weight: Expr | None = None,
    eps: float | None = None,
) -> Expr:
    """x over the root of its mean square in the trailing dimensions, times weight.

    Without eps PyTorch takes the machine epsilon of the dtype it computes in.
    """
    return _rms_norm(x, _trailing(x, normalized), weight, eps)[0]


@op("aten._fused_rms_norm.default", form="reduce", samples=[sample(X, [6], W, 1e-6)])
def fused_rms_norm(
    call: Call, x: Expr, normalized: Sequence[Any], weight: Expr | None, eps: float | None
) -> tuple[Expr, Expr]:
    """RMS norm with its reciprocal root mean square."""
    return _rms_norm(x, _trailing(x, normalized), weight, eps)


def _group_norm(
    x: Expr, groups: Size, weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, Expr, Expr]:
    batch, channels, *rest = x.shape
    per_group = dims.divide(channels, groups)
    if per_group is None:
        raise NotExpressible(f"{channels} channels in {groups} groups")
    exact = compute_dtype(x.dtype) == x.dtype
    x = convert(x, compute_dtype(x.dtype))
    grouped = reshape(x, (batch, groups, dims.multiply(per_group, dims.product(rest))))
    center, away, spread = moments(grouped, (2,), exact=exact)
    scale = rsqrt(spread + eps)
    normal = reshape(away * scale, x.shape)
    per_channel = (channels, *(1,) * len(rest))
    weight = None if weight is None else reshape(weight, per_channel)
    bias = None if bias is None else reshape(bias, per_channel)
    statistics = (batch, groups)
    return _affine(normal, weight, bias), reshape(center, statistics), reshape(scale, statistics)


@op(
    "aten.group_norm.default",
    form="reduce",
    samples=[sample(IMAGE, 3, CW, CB), sample(IMAGE, 2), sample(T((2, 6)), 3, CW, CB)],
)
def group_norm(
    call: Call,
    x: Expr,
    groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Expr:
    """Zero mean and unit variance over each group of channels, then weight and bias a channel."""
    return _group_norm(x, groups, weight, bias, eps)[0]


@op(
    "aten.native_group_norm.default",
    loose=True,
    form="reduce",
    samples=[sample(IMAGE, CW, CB, 2, 6, 12, 3, 1e-5)],
)
def native_group_norm(
    call: Call,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    batch: Size,
    channels: Size,
    positions: Size,
    groups: int,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    """Group norm with its mean and reciprocal standard deviation."""
    return _group_norm(x, groups, weight, bias, eps)


def _channelwise(x: Expr, statistic: Expr) -> Expr:
    channels = (statistic.shape[0], *(1,) * (x.rank - 2)) if x.rank > 1 else statistic.shape
    return reshape(statistic, channels)


def _batch_norm(
    x: Expr, weight: Expr | None, bias: Expr | None, mean_: Expr, variance: Expr, eps: float
) -> Expr:
    dtype = compute_dtype(x.dtype)
    scale = rsqrt(convert(variance, dtype) + eps)
    x = (convert(x, dtype) - _channelwise(x, convert(mean_, dtype))) * _channelwise(x, scale)
    weight = None if weight is None else _channelwise(x, weight)
    return _affine(x, weight, None if bias is None else _channelwise(x, bias))


@op(
    "aten.batch_norm.default",
    samples=[
        sample(IMAGE, CW, CB, CB, VARIANCE, False, 0.1, 1e-5, True),
        sample(IMAGE, None, None, CB, VARIANCE, False, 0.1, 1e-5, True),
    ],
)
def batch_norm(
    call: Call,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean_: Expr | None,
    variance: Expr | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Expr:
    """Batch norm in evaluation: the running statistics of each channel."""
    if training or mean_ is None or variance is None:
        raise NotExpressible("batch norm in training updates its statistics")
    return _batch_norm(x, weight, bias, mean_, variance, eps)


@op(
    "aten._native_batch_norm_legit_no_training.default",
    samples=[sample(IMAGE, CW, CB, CB, VARIANCE, 0.1, 1e-5)],
)
def batch_norm_no_training(
    call: Call,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean_: Expr,
    variance: Expr,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    """Batch norm in evaluation as it is called after dispatch; its statistics come out empty."""
    return _batch_norm(x, weight, bias, mean_, variance, eps), None, None


@op("aten.native_batch_norm.default", "aten.cudnn_batch_norm.default")
def batch_norm_dispatched(
    call: Call,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean_: Expr | None,
    variance: Expr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    """Batch norm as a device's own op."""
    if training or mean_ is None or variance is None:
        raise NotExpressible("batch norm in training updates its statistics")
    return (_batch_norm(x, weight, bias, mean_, variance, eps), *(None,) * 3)


@op(
    "aten.instance_norm.default",
    form="reduce",
    samples=[sample(IMAGE, CW, CB, None, None, True, 0.1, 1e-5, True)],
)
def instance_norm(
    call: Call,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean_: Expr | None,
    variance: Expr | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Expr:
    """Group norm with one channel a group; running statistics are not updated here."""
    if not use_input_stats or mean_ is not None:
        raise NotExpressible("instance norm with running statistics")
    return _group_norm(x, x.shape[1], weight, bias, eps)[0]
