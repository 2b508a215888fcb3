"""Losses computed element by element, their mean or their sum."""

from __future__ import annotations

from fuseopt.ir.expr import Expr
from fuseopt.ops.build import absolute, equal, exp, log, log1p, maximum, mean, minimum, total, where
from fuseopt.ops.build import drop as without
from fuseopt.ops.declare import Call, T, convert, op, sample

MEAN = 1
X = T((4, 6))
ROW = T((6,))
PART = T((4, 6), low=0.05, high=0.95)
SIGNS = T((4, 6), low=-1.0, high=1.0)
WEIGHT = T((6,), low=0.2, high=2.0)


def _reduced(loss: Expr, reduction: int) -> Expr:
    """The losses (0), their mean (1) or their sum (2)."""
    if not reduction:
        return loss
    over = tuple(range(loss.rank))
    combined = mean(loss, over) if reduction == MEAN else total(loss, over)
    return without(combined, over, keepdim=False)


def _weighted(loss: Expr, weight: Expr | None) -> Expr:
    return loss if weight is None else loss * convert(weight, loss.dtype)


def _difference(call: Call, x: Expr, target: Expr) -> Expr:
    x, target = call.floats(x, target)
    return x - target


@op(
    "aten.mse_loss.default",
    form="reduce",
    samples=[sample(X, X), sample(X, ROW, 0), sample(X, X, 2)],
)
def mse_loss(call: Call, x: Expr, target: Expr, reduction: int = MEAN) -> Expr:
    """The square of the difference."""
    apart = _difference(call, x, target)
    return _reduced(apart * apart, reduction)


@op("aten.l1_loss.default", form="reduce", samples=[sample(X, X), sample(X, ROW, 0)])
def l1_loss(call: Call, x: Expr, target: Expr, reduction: int = MEAN) -> Expr:
    """The absolute value of the difference."""
    return _reduced(absolute(_difference(call, x, target)), reduction)


@op(
    "aten.smooth_l1_loss.default",
    form="reduce",
    samples=[sample(X, X), sample(X, X, 0, 0.5), sample(X, X, 2, 0.0)],
)
def smooth_l1_loss(
    call: Call, x: Expr, target: Expr, reduction: int = MEAN, beta: float = 1.0
) -> Expr:
    """A parabola of curvature 1 / beta within beta, straight beyond."""
    apart = absolute(_difference(call, x, target))
    if beta == 0:
        return _reduced(apart, reduction)
    inside = apart * apart * (0.5 / beta)
    return _reduced(where(apart < beta, inside, apart - 0.5 * beta), reduction)


@op("aten.huber_loss.default", form="reduce", samples=[sample(X, X), sample(X, X, 0, 0.5)])
def huber_loss(
    call: Call, x: Expr, target: Expr, reduction: int = MEAN, delta: float = 1.0
) -> Expr:
    """Half the square within delta, straight beyond."""
    apart = absolute(_difference(call, x, target))
    outside = (apart - 0.5 * delta) * delta
    return _reduced(where(apart <= delta, apart * apart * 0.5, outside), reduction)


@op(
    "aten.binary_cross_entropy.default",
    form="reduce",
    samples=[sample(PART, PART), sample(PART, PART, WEIGHT, 0)],
)
def binary_cross_entropy(
    call: Call, x: Expr, target: Expr, weight: Expr | None = None, reduction: int = MEAN
) -> Expr:
    """-(t * log(x) + (1 - t) * log(1 - x)), logarithms kept above -100."""
    x, target = call.floats(x, target)
    no = maximum(log1p(-x), -100.0)
    loss = (target - 1.0) * no - target * maximum(log(x), -100.0)
    return _reduced(_weighted(loss, weight), reduction)


@op(
    "aten.binary_cross_entropy_with_logits.default",
    form="reduce",
    samples=[sample(X, PART), sample(X, PART, WEIGHT, ROW, 0), sample(X, PART, None, WEIGHT, 2)],
)
def binary_cross_entropy_with_logits(
    call: Call,
    x: Expr,
    target: Expr,
    weight: Expr | None = None,
    positive: Expr | None = None,
    reduction: int = MEAN,
) -> Expr:
    """(1 - t) * x + (1 + (p - 1) * t) * log(1 + e ** -x), without overflow."""
    x, target = call.floats(x, target)
    softened = log1p(exp(-absolute(x))) - minimum(x, 0.0)
    if positive is not None:
        softened = softened * ((convert(positive, x.dtype) - 1.0) * target + 1.0)
    return _reduced(_weighted((1.0 - target) * x + softened, weight), reduction)


@op("aten.soft_margin_loss.default", form="reduce", samples=[sample(X, SIGNS), sample(X, SIGNS, 0)])
def soft_margin_loss(call: Call, x: Expr, target: Expr, reduction: int = MEAN) -> Expr:
    """log(1 + e ** (-t * x))."""
    x, target = call.floats(x, target)
    return _reduced(log1p(exp(-(target * x))), reduction)


@op(
    "aten.kl_div.default",
    form="reduce",
    samples=[sample(X, PART), sample(X, X, 0, log_target=True), sample(X, PART, 2)],
)
def kl_div(
    call: Call, x: Expr, target: Expr, reduction: int = MEAN, *, log_target: bool = False
) -> Expr:
    """t * (log(t) - x), zero where t is; with log_target e ** t * (t - x)."""
    x, target = call.floats(x, target)
    if log_target:
        return _reduced(exp(target) * (target - x), reduction)
    spread = where(equal(target, 0.0), 0.0, target * log(target))
    return _reduced(spread - target * x, reduction)
