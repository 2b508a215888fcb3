"""Checking the chunked loss against a linear layer and PyTorch's cross-entropy, on small sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from fuseopt.events import Verified
from fuseopt.ops.linear_loss import LINEAR_CROSS_ENTROPY, HeadLoss
from fuseopt.verify.compare import Verdict, judge, verified

ROWS, CLASSES, FEATURES, CHUNK = 40, 160, 48, 16
ODD = 3  # classes less, where rows of logits are padded


def check_head(
    key: str, head: HeadLoss, dtype: torch.dtype, device: torch.device, *, has_bias: bool
) -> Verified:
    """Return the verdict on loss and gradients, against the original's in float64."""
    how = "device" if device.type == "cuda" else "cpu"
    wants = (True, True, has_bias) if any(head.wants) else (False, False, False)
    head = replace(head, chunk=CHUNK, padding=ODD if head.padding else 0, wants=wants)
    worst = Verdict(True)
    try:
        for ignored in (0.0, 0.3, 1.0):
            given, target = _draw(head, dtype, device, ignored, has_bias=has_bias)
            ours = _chunked(head, given, target)
            eager = _original(head, given, target)
            truth = _original(head, [t.double() for t in given], target)
            for mine, original, exact in zip(ours, eager, truth, strict=True):
                verdict = judge(mine.to(original.dtype), original, exact)
                if not verdict.passed:
                    return verified(key, how, verdict)
                worst = max(worst, verdict, key=lambda v: v.error)
    except (RuntimeError, NotImplementedError) as error:
        return Verified(key, False, how, detail=f"{type(error).__name__}: {error}".splitlines()[0])
    return verified(key, how, worst)


def _draw(
    head: HeadLoss, dtype: torch.dtype, device: torch.device, ignored: float, *, has_bias: bool
) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    classes = CLASSES - head.padding
    given = [normal(ROWS, FEATURES), normal(classes, FEATURES) * 0.3]
    if has_bias:
        given.append(normal(classes))
    target = torch.randint(0, classes, (ROWS,), generator=generator)
    drop = torch.rand(ROWS, generator=generator) < ignored
    return given, torch.where(drop, head.ignore_index, target).to(device)


def _chunked(
    head: HeadLoss, given: Sequence[torch.Tensor], target: torch.Tensor
) -> list[torch.Tensor]:
    with torch.set_grad_enabled(any(head.wants)):
        leaves = [t.detach().requires_grad_(any(head.wants)) for t in given]
        bias = leaves[2] if len(leaves) > 2 else None
        made = LINEAR_CROSS_ENTROPY(leaves[0], leaves[1], bias, target, *head.arguments())
        return _with_gradients(made[0], leaves)


def _original(
    head: HeadLoss, given: Sequence[torch.Tensor], target: torch.Tensor
) -> list[torch.Tensor]:
    with torch.set_grad_enabled(any(head.wants)):
        leaves = [t.detach().requires_grad_(any(head.wants)) for t in given]
        logits = F.linear(*leaves)
        z = (logits if logits.dtype == torch.float64 else logits.float()) * head.inner
        z = torch.tanh(z) * head.outer if head.squash else z
        loss = F.cross_entropy(
            z,
            target,
            ignore_index=head.ignore_index,
            reduction="mean" if head.mean else "sum",
            label_smoothing=head.smoothing,
        )
        return _with_gradients(loss, leaves)


def _with_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    if not loss.requires_grad:
        return [loss.detach()]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]
