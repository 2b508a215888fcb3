"""Softmax, log-softmax and the losses that end in it, written in pieces.

    y = _log_softmax(x); loss, total = nll_loss_forward(y, t)
    dy = nll_loss_backward(g, y, t, total); dx = _log_softmax_backward_data(dy, y)

    ->  top = amax(x); normal = log(sum(exp(x - top)))            one number each for a row
        loss = sum(where(t != ignored, top + normal - x[t])) / count
        dx = where(column == t, -g / count, 0) - exp(x - top - normal) * (-g / count)

The forward graph reads the logits once and keeps the two numbers of a row; the backward graph
computes the probabilities again from the logits. The sum of `dy` along a row is one number known
without reading it, so that the gradient takes one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fuseopt.graph.pieces import Pieces, composite, dtype_of, is_backward, value_of
from fuseopt.graph.row_sums import sum_along
from fuseopt.ops.declare import T, sample

aten = torch.ops.aten
MEAN = 1
X = T((4, 6))
CUBE = T((3, 4, 6))
LOGS = T((4, 6), low=-6.0, high=-0.1)
CLASSES = T((4,), "i", 0, 6)
WEIGHT = T((6,), low=0.2, high=2.0)
MAPS = T((2, 6, 3, 4), low=-6.0, high=-0.1)
MAP_CLASSES = T((2, 3, 4), "i", 0, 6)
ONE = T((), low=0.5, high=2.0)


@composite("aten._softmax.default", samples=[sample(X, -1, False), sample(CUBE, 1, False)])
def softmax(p: Pieces, x: fx.Node, dim: int, half_to_float: bool) -> Any:
    """The exponentials of a row over their sum."""
    if not value_of(x).dim():
        return NotImplemented
    given, x = x, p.wide(x)
    shifted = p.sub(x, p.amax(x, [dim]))
    grown = p.exp(shifted)
    y = p.div(grown, p.sum(grown, [dim]))
    # The backward graph reads the result, which is as large as what it was computed from, unless
    # that was narrower.
    if p.is_needed_later() and _bytes(p.origin) > _bytes(_before_widening(given)):
        for node in (shifted, grown, y):
            p.again(node)
    return y


def _before_widening(x: fx.Node) -> fx.Node:
    return x.args[0] if x.target is aten._to_copy.default else x  # type: ignore[return-value]


def _bytes(x: fx.Node) -> int:
    return dtype_of(x).itemsize


@composite(
    "aten._softmax_backward_data.default",
    samples=[sample(X, T((4, 6), low=0.0, high=0.3), -1, torch.float32)],
)
def softmax_backward(p: Pieces, grad: fx.Node, y: fx.Node, dim: int, _: torch.dtype) -> Any:
    """y * (grad - sum(grad * y)), from the result y."""
    if not value_of(y).dim():
        return NotImplemented
    grad, y = p.wide(grad), p.wide(y)
    return p.mul(y, p.sub(grad, p.sum(p.mul(grad, y), [dim])))


@composite("aten._log_softmax.default", samples=[sample(X, -1, False), sample(CUBE, 1, False)])
def log_softmax(p: Pieces, x: fx.Node, dim: int, half_to_float: bool) -> Any:
    """x less the logarithm of the sum of its exponentials."""
    if not value_of(x).dim():
        return NotImplemented
    x = p.wide(x)
    # Two numbers a row and not their sum, which has lost the small digits where logits are large.
    shifted = p.sub(x, p.amax(x, [dim]))
    y = p.sub(shifted, p.log(p.sum(p.exp(shifted), [dim])))
    if p.is_needed_later():
        p.again(shifted)
        p.again(y)
    return y


@composite("aten._log_softmax_backward_data.default", samples=[sample(X, LOGS, -1, torch.float32)])
def log_softmax_backward(p: Pieces, grad: fx.Node, y: fx.Node, dim: int, _: torch.dtype) -> Any:
    """grad - e ** y * sum(grad), from the result y."""
    if not value_of(y).dim():
        return NotImplemented
    total = sum_along(p, grad, dim % value_of(grad).dim())
    shares = p.again(p.exp(p.unrounded(y)))
    return p.sub(p.unrounded(grad), p.mul(shares, p.wide(total)))


@composite(
    "aten.nll_loss_forward.default",
    samples=[
        sample(LOGS, CLASSES, None, 0, -100),
        sample(LOGS, CLASSES, WEIGHT, 1, 3),
        sample(LOGS, CLASSES, WEIGHT, 2, -100),
        sample(T((6,)), T((), "i", 0, 6), None, 1, -100),
    ],
)
@composite(
    "aten.nll_loss2d_forward.default",
    samples=[
        sample(MAPS, MAP_CLASSES, WEIGHT, 0, 3),
        sample(MAPS, MAP_CLASSES, WEIGHT, 1, 3),
    ],
)
def nll_loss(
    p: Pieces, y: fx.Node, target: fx.Node, weight: Any, reduction: int, ignored: int
) -> Any:
    """-w[t] * y[t] for each row whose class is not ignored; with the sum of the weights."""
    dim = min(1, value_of(y).dim() - 1)
    scores = p.unrounded(y)
    kept, inside, scale = _rows(p, target, weight, ignored, dtype_of(scores))
    picked = p.squeeze(p(aten.gather.default, scores, dim, p.unsqueeze(inside, dim)), [dim])
    loss = p.neg(picked if scale is None else p.mul(picked, scale))
    rows = p.where(kept, loss, 0.0)
    if not reduction:
        return rows, p(aten.full.default, [], 0.0, dtype=dtype_of(scores), device=_device(y))
    counted = p.to(kept, dtype_of(scores)) if scale is None else p.where(kept, scale, 0.0)
    total = p(aten.sum.default, counted)
    loss = p(aten.sum.default, rows)
    return p.div(loss, total) if reduction == MEAN else loss, total


@composite(
    "aten.nll_loss_backward.default",
    samples=[
        sample(T((4,)), LOGS, CLASSES, None, 0, 3, ONE),
        sample(ONE, LOGS, CLASSES, WEIGHT, 1, 3, ONE),
        sample(ONE, LOGS, CLASSES, WEIGHT, 2, -100, ONE),
    ],
)
@composite(
    "aten.nll_loss2d_backward.default",
    samples=[
        sample(T((2, 3, 4)), MAPS, MAP_CLASSES, WEIGHT, 0, 3, ONE),
        sample(ONE, MAPS, MAP_CLASSES, None, 1, 3, ONE),
    ],
)
def nll_loss_backward(
    p: Pieces,
    grad: fx.Node,
    y: fx.Node,
    target: fx.Node,
    weight: Any,
    reduction: int,
    ignored: int,
    total: fx.Node,
) -> Any:
    """-w[t] * grad in the column of the class, zero in the others and in rows that are ignored."""
    rank = value_of(y).dim()
    dim = min(1, rank - 1)
    grad = p.wide(grad)
    kept, inside, scale = _rows(p, target, weight, ignored, dtype_of(grad))
    step = p.neg(p.div(grad, p.unrounded(total)) if reduction == MEAN else grad)
    # Not before the mask: where all rows are ignored the mean is over nothing, but the rows' zero.
    value = p.where(kept, step if scale is None else p.mul(step, scale), 0.0)
    value, inside = p.unsqueeze(value, dim), p.unsqueeze(inside, dim)
    columns = p(aten.arange.default, p.size(y, dim), device=_device(y))
    chosen = p(aten.eq.Tensor, p.along(columns, dim, rank), inside)
    made = p.where(chosen, value, 0.0)
    p.known.sums[made, dim] = value
    return made


def _rows(
    p: Pieces, target: fx.Node, weight: Any, ignored: int, dtype: torch.dtype
) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    """Of each row: whether it counts, a class that exists in any case, and the class's weight."""
    kept = p(aten.ne.Scalar, target, ignored)
    inside = p.where(kept, p.to(target, torch.int64), 0)
    if is_backward(p.origin) or p.is_needed_later():
        p.again(kept)
        p.again(inside)
    if weight is None:
        return kept, inside, None
    return kept, inside, p(aten.index.Tensor, p.to(weight, dtype), [inside])


def _device(x: fx.Node) -> torch.device:
    return value_of(x).device
