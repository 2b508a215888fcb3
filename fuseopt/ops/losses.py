"""Cross-entropy, one loss a row."""

from __future__ import annotations

from fuseopt.ir.combine import kind_of
from fuseopt.ir.expr import Expr, Gather, Pick
from fuseopt.ops.build import count, differs, exp, log, reduce, reshape, total, where
from fuseopt.ops.declare import Call, NotExpressible, T, compute_dtype, convert, op, sample

LOGITS = T((5, 7))
CLASSES = T((5,), "i", 0, 7)
WEIGHT = T((7,), low=0.2, high=2.0)


@op(
    "aten.cross_entropy_loss.default",
    form="reduce",
    samples=[
        sample(LOGITS, CLASSES, None, 0),
        sample(LOGITS, CLASSES, None, 0, 3),
        sample(LOGITS, CLASSES, WEIGHT, 0, 3, 0.1),
        sample(T((2, 7, 3)), T((2, 3), "i", 0, 7), WEIGHT, 0),
    ],
)
def cross_entropy(
    call: Call,
    x: Expr,
    target: Expr,
    weight: Expr | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Expr:
    """Cross-entropy of logits against class numbers along dimension 1, without reduction.

    loss = w[t] * (log(sum(e ** x)) - x[t]); with smoothing s it is (1 - s) times that and s / n of
    the sum over all n classes. Rows whose target is `ignore_index` give zero.
    """
    if reduction != 0:
        raise NotExpressible("a reduced loss is split in rows and their sum before this")
    if kind_of(target.dtype) != "i":
        raise NotExpressible("class probabilities as targets")
    dim = 1 if x.rank > 1 else 0
    x = convert(x, compute_dtype(x.dtype))
    top = reduce("max_number", x, (dim,))
    normal = log(total(exp(x - top), (dim,))) + top
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    kept = differs(target, ignore_index)
    inside = where(kept, target, 0)
    picked = x.arena.make(Pick, shape, x.dtype, x, reshape(inside, shape), dim)
    loss = normal - picked
    scale: Expr | None = None
    if weight is not None:
        weight = convert(weight, x.dtype)
        scale = x.arena.make(Gather, target.shape, x.dtype, weight, inside, 0, False)
        loss = loss * reshape(scale, shape)
    if label_smoothing:
        loss = _smoothed(x, normal, loss, weight, dim, label_smoothing)
    return where(kept, reshape(loss, target.shape), 0.0)


def _smoothed(
    x: Expr, normal: Expr, loss: Expr, weight: Expr | None, dim: int, smoothing: float
) -> Expr:
    apart = normal - x
    if weight is not None:
        apart = apart * reshape(weight, (weight.shape[0], *(1,) * (x.rank - dim - 1)))
    classes = x.arena.const(count(x, (dim,)), x.dtype)
    spread = total(apart, (dim,)) * (x.arena.const(smoothing, x.dtype) / classes)
    return loss * (1.0 - smoothing) + spread
