"""Cross-entropy of a linear layer by chunks of rows: the logits of all rows never exist at once.

    loss, share, dx, dw, db = linear_cross_entropy(x, w, b, target, ...)
    gradient of x = dx * share * gradient of loss          (of w and b likewise)

For each chunk: its logits, the losses of its rows and the slopes of these, then what the slopes add
to the gradients. Three matrix products, as forward and backward pass have in all, and nothing is
computed twice. Slopes are those of the sum of the losses, between -1 and 1 whatever the number of
rows, so that 16-bit ones do not underflow; `share` is what the loss divides by, found on the
device. Gradients of weight and bias are added up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from fuseopt.ops.declare import compute_dtype


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """What is computed from the logits.

    They become inner * logits, or outer * tanh(inner * logits) where `squash` is set; then comes
    cross-entropy with class numbers. mean: over the rows that are not ignored; else their sum.
    chunk: rows at a time. padding: columns of zeros added to a chunk's logits, so that products
    find aligned rows. wants: whether gradients of hidden, weight and bias are needed.
    """

    ignore_index: int = -100
    smoothing: float = 0.0
    inner: float = 1.0
    outer: float = 1.0
    squash: bool = False
    mean: bool = True
    chunk: int = 1024
    padding: int = 0
    wants: tuple[bool, bool, bool] = (True, True, False)

    def arguments(self) -> tuple[Any, ...]:
        """Return what the operator takes after its tensors."""
        numbers = (self.ignore_index, self.smoothing, self.inner, self.outer)
        return (*numbers, self.squash, self.mean, self.chunk, self.padding, list(self.wants))

    @classmethod
    def of(cls, arguments: tuple[Any, ...]) -> HeadLoss:
        """The inverse of `arguments`."""
        ignore_index, smoothing, inner, outer, squash, mean, chunk, padding, wants = arguments
        of_hidden, of_weight, of_bias = wants
        wants = (of_hidden, of_weight, of_bias)
        return cls(ignore_index, smoothing, inner, outer, squash, mean, chunk, padding, wants)


# Logits and class numbers of a chunk -> the losses of its rows and, where wanted, their slopes.
Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


def row_losses(
    head: HeadLoss, logits: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the losses of rows of logits [rows, classes] and the slopes, in the logits' dtype.

    Rows that are ignored have loss and slope zero, whatever their logits; columns that are padding
    have slope zero.
    """
    columns = logits.shape[1]
    classes = columns - head.padding
    places = torch.arange(columns, device=logits.device, dtype=torch.int32).unsqueeze(0)
    z = logits.to(compute_dtype(logits.dtype))
    z = z if head.inner == 1.0 else z * head.inner
    bent = torch.tanh(z) if head.squash else z
    x = bent * head.outer if head.squash else z
    shown = torch.where(places < classes, x, -math.inf) if head.padding else x
    top = shown.amax(1, keepdim=True)
    normal = torch.log(torch.exp(shown - top).sum(1, keepdim=True)) + top
    kept = (target != head.ignore_index).unsqueeze(1)
    inside = torch.where(kept, target.unsqueeze(1), 0)
    loss = normal - x.gather(1, inside)
    if head.smoothing:
        sum_of_x = (torch.where(places < classes, x, 0.0) if head.padding else x).sum(1, True)
        loss = loss * (1.0 - head.smoothing) + (normal - sum_of_x / classes) * head.smoothing
    loss = torch.where(kept, loss, 0.0).squeeze(1)
    if not any(head.wants):
        return loss, None
    hit = places == inside.to(torch.int32)
    slope = torch.exp(shown - normal) - torch.where(hit, 1.0 - head.smoothing, 0.0)
    if head.smoothing:
        slope = slope - head.smoothing / classes
    if head.squash:
        slope = slope * (1.0 - bent * bent) * (head.inner * head.outer)
    elif head.inner != 1.0:
        slope = slope * head.inner
    counts = kept & (places < classes) if head.padding else kept
    return loss, torch.where(counts, slope, 0.0).to(logits.dtype)


def loss_by_chunks(
    head: HeadLoss,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    step: Step | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return loss, share and the gradients of the sum of losses that are wanted, else empty ones.

    hidden: [rows, features]. weight: [classes, features]. target: [rows]. step: `row_losses`, or a
    kernel for it; it is always given a whole chunk, of which it need not compute ignored rows.
    """
    rows, classes = hidden.shape[0], weight.shape[0] + head.padding
    if head.padding:
        weight = F.pad(weight, (0, 0, 0, head.padding))
        bias = None if bias is None else F.pad(bias, (0, head.padding))
    step = step or (lambda logits, target: row_losses(head, logits, target))
    missing = -rows % head.chunk
    classes_of_rows = F.pad(target, (0, missing), value=head.ignore_index)
    wide = compute_dtype(hidden.dtype)
    losses = hidden.new_empty(rows + missing, dtype=wide)
    # The last chunk may have rows that no product writes: they must be numbers.
    logits = (hidden.new_zeros if missing else hidden.new_empty)((head.chunk, classes))
    made = _Gradients(head, hidden, weight, bias)
    slope: torch.Tensor | None = None
    for start in range(0, rows, head.chunk):
        x = hidden[start : start + head.chunk]
        _product(x, weight, bias, logits[: x.shape[0]])
        end = start + head.chunk
        del slope  # the chunk before it is done with: only one chunk's exist at a time
        losses[start:end], slope = step(logits, classes_of_rows[start:end])
        if slope is not None:
            made.add(start, x, slope[: x.shape[0]])
    del logits, slope  # before the sum of the weight's gradient is rounded to a second tensor
    loss, share = losses.sum(), losses.new_ones(())
    if head.mean:
        count = (target != head.ignore_index).sum().to(wide)
        loss = loss / count
        share = torch.where(count == 0, 0.0, 1.0 / count)
    return (loss, share, *made.results())


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


class _Gradients:
    """The gradients of the sum of losses, added up chunk by chunk."""

    def __init__(
        self,
        head: HeadLoss,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        self.weight = weight
        self.classes = weight.shape[0] - head.padding
        self.wants_weight = head.wants[1]
        self.hidden = torch.empty_like(hidden) if head.wants[0] else hidden.new_empty(0)
        self.of_weight: torch.Tensor | None = None
        wide = compute_dtype(weight.dtype)
        self.of_bias = None
        if head.wants[2] and bias is not None:
            self.of_bias = bias.new_zeros(bias.shape, dtype=wide)

    def add(self, start: int, x: torch.Tensor, slope: torch.Tensor) -> None:
        """Add what a chunk of rows, from `start` on, contributes."""
        if self.hidden.numel():
            torch.mm(slope, self.weight, out=self.hidden[start : start + x.shape[0]])
        if self.wants_weight:
            self.of_weight = add_product(self.of_weight, slope.t(), x)
        if self.of_bias is not None:
            self.of_bias += slope.sum(0, dtype=self.of_bias.dtype)

    def results(self) -> tuple[torch.Tensor, ...]:
        """The gradients of hidden, weight and bias; an empty tensor where one is not wanted."""
        kept = kept_dtype(self.weight.dtype)
        none = self.hidden.new_empty(0, dtype=kept)
        of_weight, of_bias = self.of_weight, self.of_bias
        return (
            self.hidden,
            none if of_weight is None else of_weight[: self.classes].to(kept),
            none.clone() if of_bias is None else of_bias[: self.classes].to(kept),
        )


def kept_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of a sum wait for their share.

    Sums over many rows may be too large for float16, though their share is not.
    """
    return torch.float32 if dtype == torch.float16 else dtype


def add_product(to: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return `to` + a @ b in float32 (float64 of float64), in the memory of `to`."""
    wide = compute_dtype(a.dtype)
    if a.dtype == wide or a.device.type != "cuda":
        a, b = a.to(wide), b.to(wide)
        return torch.mm(a, b) if to is None else torch.addmm(to, a, b, out=to)
    if to is None:
        return torch.mm(a, b, out_dtype=wide)
    return torch.addmm(to, a, b, out_dtype=wide, out=to)


# --- the operator ---------------------------------------------------------------------------------

_library = torch.library.Library("fuseopt", "FRAGMENT")
_NAME = "fuseopt::linear_cross_entropy"
_library.define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "
    "int ignore_index, float smoothing, float inner, float outer, bool squash, bool mean, "
    "int chunk, int padding, bool[3] wants) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _compute(hidden: Any, weight: Any, bias: Any, target: Any, *rest: Any) -> Any:
    return loss_by_chunks(HeadLoss.of(rest), hidden, weight, bias, target)


def _fake(hidden: Any, weight: Any, bias: Any, target: Any, *rest: Any) -> Any:
    of_hidden, of_weight, of_bias = HeadLoss.of(rest).wants
    wide, kept = compute_dtype(hidden.dtype), kept_dtype(weight.dtype)
    return (
        hidden.new_empty((), dtype=wide),
        hidden.new_empty((), dtype=wide),
        torch.empty_like(hidden) if of_hidden else hidden.new_empty(0),
        hidden.new_empty(weight.shape if of_weight else (0,), dtype=kept),
        hidden.new_empty(bias.shape if of_bias else (0,), dtype=kept),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, share, *slopes = output
    ctx.save_for_backward(share, *slopes)
    ctx.wants = inputs[-1]
    ctx.dtypes = [None if t is None else t.dtype for t in inputs[:3]]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "linear_cross_entropy keeps gradients and no logits, so it cannot be differentiated "
            "twice; compute the loss outside the optimised function where you need that"
        )
    share, *slopes = ctx.saved_tensors
    if gradient is None:
        return (None,) * 13
    scale = gradient * share
    gradients = [
        (slope.to(scale.dtype) * scale).to(dtype) if wanted else None
        for slope, dtype, wanted in zip(slopes, ctx.dtypes, ctx.wants, strict=True)
    ]
    return (*gradients, *(None,) * 10)


_library.impl("linear_cross_entropy", _compute, "CompositeExplicitAutograd")
torch.library.register_fake(_NAME, _fake, lib=_library)
torch.library.register_autograd(_NAME, _backward, setup_context=_setup, lib=_library)

LINEAR_CROSS_ENTROPY: OpOverload = torch.ops.fuseopt.linear_cross_entropy.default
