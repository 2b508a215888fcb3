"""Elementwise losses and their derivatives, written in pieces.

loss = mse_loss(x, t)                   ->  d = x - t; loss = mean(d * d)
dx = mse_loss_backward(g, x, t)         ->  dx = (x - t) * 2 * (g / n)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fuseopt.graph.pieces import Pieces, composite, dtype_of
from fuseopt.ops.declare import T, compute_dtype, sample

aten = torch.ops.aten
NONE, MEAN = 0, 1
X = T((4, 6))
ROW = T((6,))
ONE = T((), low=0.5, high=2.0)
PART = T((4, 6), low=0.05, high=0.95)
SIGNS = T((4, 6), low=-1.0, high=1.0)
WEIGHT = T((6,), low=0.2, high=2.0)


def _operands(p: Pieces, *operands: fx.Node) -> list[fx.Node]:
    """Operands in the dtype that the op computes in."""
    dtype = dtype_of(operands[0])
    for operand in operands[1:]:
        dtype = torch.promote_types(dtype, dtype_of(operand))
    return [p.to(x, compute_dtype(dtype)) for x in operands]


def _reduced(p: Pieces, loss: fx.Node, reduction: int) -> fx.Node:
    if reduction == NONE:
        return loss
    return p(aten.mean.default if reduction == MEAN else aten.sum.default, loss)


def _share(p: Pieces, grad: fx.Node, x: fx.Node, reduction: int) -> fx.Node:
    """The gradient of each element's loss."""
    grad = p.to(grad, dtype_of(x))
    return p.div(grad, p.numel(x)) if reduction == MEAN else grad


def _difference(p: Pieces, x: fx.Node, target: fx.Node) -> fx.Node:
    x, target = _operands(p, x, target)
    return p.sub(x, target)


@composite("aten.mse_loss.default", samples=[sample(X, X), sample(X, ROW, 0), sample(X, X, 2)])
def mse_loss(p: Pieces, x: fx.Node, target: fx.Node, reduction: int = MEAN) -> Any:
    """The square of the difference."""
    apart = _difference(p, x, target)
    return _reduced(p, p.mul(apart, apart), reduction)


@composite(
    "aten.mse_loss_backward.default",
    samples=[sample(ONE, X, X, 1), sample(X, X, X, 0), sample(ONE, X, X, 2)],
)
def mse_loss_backward(p: Pieces, grad: fx.Node, x: fx.Node, target: fx.Node, reduction: int) -> Any:
    """Twice the difference."""
    apart = _difference(p, x, target)
    return p.mul(p.mul(apart, 2.0), _share(p, grad, apart, reduction))


@composite(
    "aten.smooth_l1_loss.default", samples=[sample(X, X), sample(X, X, 0, 0.5), sample(X, X, 2)]
)
def smooth_l1_loss(
    p: Pieces, x: fx.Node, target: fx.Node, reduction: int = MEAN, beta: float = 1.0
) -> Any:
    """A parabola of curvature 1 / beta within beta, straight beyond."""
    apart = p.absolute(_difference(p, x, target))
    if beta == 0:
        return _reduced(p, apart, reduction)
    inside = p.mul(p.mul(apart, apart), 0.5 / beta)
    near = p(aten.lt.Scalar, apart, beta)
    return _reduced(p, p.where(near, inside, p.sub(apart, 0.5 * beta)), reduction)


@composite(
    "aten.smooth_l1_loss_backward.default",
    samples=[sample(ONE, X, X, 1, 1.0), sample(X, X, X, 0, 0.5), sample(ONE, X, X, 1, 0.0)],
)
def smooth_l1_loss_backward(
    p: Pieces, grad: fx.Node, x: fx.Node, target: fx.Node, reduction: int, beta: float
) -> Any:
    """The difference over beta, kept between -1 and 1."""
    apart = _difference(p, x, target)
    if beta == 0:
        slope = p(aten.sign.default, apart)
    else:
        slope = p(aten.clamp.default, p.mul(apart, 1.0 / beta), -1.0, 1.0)
    return p.mul(slope, _share(p, grad, apart, reduction))


@composite("aten.huber_loss.default", samples=[sample(X, X), sample(X, X, 0, 0.5), sample(X, X, 2)])
def huber_loss(
    p: Pieces, x: fx.Node, target: fx.Node, reduction: int = MEAN, delta: float = 1.0
) -> Any:
    """Half the square within delta, straight beyond."""
    apart = p.absolute(_difference(p, x, target))
    near = p(aten.le.Scalar, apart, delta)
    inside = p.mul(p.mul(apart, apart), 0.5)
    outside = p.mul(p.sub(apart, 0.5 * delta), delta)
    return _reduced(p, p.where(near, inside, outside), reduction)


@composite(
    "aten.huber_loss_backward.default",
    samples=[sample(ONE, X, X, 1, 1.0), sample(X, X, X, 0, 0.5)],
)
def huber_loss_backward(
    p: Pieces, grad: fx.Node, x: fx.Node, target: fx.Node, reduction: int, delta: float
) -> Any:
    """The difference, kept between -delta and delta."""
    apart = _difference(p, x, target)
    slope = p(aten.clamp.default, apart, -delta, delta)
    return p.mul(slope, _share(p, grad, apart, reduction))


@composite(
    "aten.binary_cross_entropy.default",
    samples=[sample(PART, PART), sample(PART, PART, WEIGHT, 0)],
)
def binary_cross_entropy(
    p: Pieces, x: fx.Node, target: fx.Node, weight: Any = None, reduction: int = MEAN
) -> Any:
    """-(t * log(x) + (1 - t) * log(1 - x)), logarithms kept above -100."""
    x, target = _operands(p, x, target)
    yes = p(aten.clamp_min.default, p.log(x), -100.0)
    no = p(aten.clamp_min.default, p.log1p(p.neg(x)), -100.0)
    loss = p.sub(p.mul(p.sub(target, 1.0), no), p.mul(target, yes))
    return _reduced(p, _weighted(p, loss, weight), reduction)


def _weighted(p: Pieces, loss: fx.Node, weight: Any) -> fx.Node:
    return loss if weight is None else p.mul(loss, p.to(weight, dtype_of(loss)))


@composite(
    "aten.binary_cross_entropy_backward.default",
    samples=[sample(ONE, PART, PART), sample(PART, PART, PART, WEIGHT, 0)],
)
def binary_cross_entropy_backward(
    p: Pieces,
    grad: fx.Node,
    x: fx.Node,
    target: fx.Node,
    weight: Any = None,
    reduction: int = MEAN,
) -> Any:
    """(x - t) / (x * (1 - x)), the denominator kept above 1e-12."""
    x, target = _operands(p, x, target)
    below = p(aten.clamp_min.default, p.mul(p(aten.rsub.Scalar, x, 1.0), x), 1e-12)
    slope = p.mul(p.sub(x, target), _share(p, grad, x, reduction))
    return _weighted(p, p.div(slope, below), weight)


@composite(
    "aten.binary_cross_entropy_with_logits.default",
    samples=[
        sample(X, PART, None, None, 1),
        sample(X, PART, WEIGHT, ROW, 0),
        sample(X, PART, None, WEIGHT, 2),
    ],
)
def binary_cross_entropy_with_logits(
    p: Pieces,
    x: fx.Node,
    target: fx.Node,
    weight: Any = None,
    positive: Any = None,
    reduction: int = MEAN,
) -> Any:
    """(1 - t) * x + (1 + (p - 1) * t) * log(1 + e ** -x), without overflow."""
    x, target = _operands(p, x, target)
    tail = p.log1p(p.exp(p.neg(p.absolute(x))))
    softened = p.sub(tail, p(aten.clamp_max.default, x, 0.0))
    if positive is not None:
        more = p.sub(p.to(positive, dtype_of(x)), 1.0)
        softened = p.mul(softened, p.add(p.mul(more, target), 1.0))
    loss = p.add(p.mul(p(aten.rsub.Scalar, target, 1.0), x), softened)
    return _reduced(p, _weighted(p, loss, weight), reduction)


@composite("aten.soft_margin_loss.default", samples=[sample(X, SIGNS), sample(X, SIGNS, 0)])
def soft_margin_loss(p: Pieces, x: fx.Node, target: fx.Node, reduction: int = MEAN) -> Any:
    """log(1 + e ** (-t * x))."""
    x, target = _operands(p, x, target)
    return _reduced(p, p.log1p(p.exp(p.neg(p.mul(target, x)))), reduction)


@composite(
    "aten.soft_margin_loss_backward.default",
    samples=[sample(ONE, X, SIGNS, 1), sample(X, X, SIGNS, 0)],
)
def soft_margin_loss_backward(
    p: Pieces, grad: fx.Node, x: fx.Node, target: fx.Node, reduction: int
) -> Any:
    """-t * sigmoid(-t * x)."""
    x, target = _operands(p, x, target)
    share = p(aten.sigmoid.default, p.neg(p.mul(target, x)))
    return p.mul(p.neg(p.mul(target, share)), _share(p, grad, x, reduction))
