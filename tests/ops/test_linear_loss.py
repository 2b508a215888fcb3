"""The chunked loss with padded rows of logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fuseopt.ops.linear_loss import HeadLoss, loss_by_chunks, row_losses
from fuseopt.verify.head import check_head

SETTINGS = [
    HeadLoss(chunk=16),
    HeadLoss(chunk=16, smoothing=0.1, mean=False),
    HeadLoss(chunk=16, inner=0.1, outer=20.0, squash=True),
]


@pytest.mark.parametrize("head", SETTINGS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_padding_changes_no_result(head, has_bias) -> None:
    g = torch.Generator().manual_seed(0)
    head = replace(head, wants=(True, True, has_bias))
    x, w = torch.randn(40, 24, generator=g), torch.randn(61, 24, generator=g)
    b = torch.randn(61, generator=g) if has_bias else None
    t = torch.randint(0, 61, (40,), generator=g)
    t[::5] = head.ignore_index
    plain = loss_by_chunks(head, x, w, b, t)
    padded = loss_by_chunks(replace(head, padding=3), x, w, b, t)
    for one, other in zip(plain, padded, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other)


def test_the_slopes_of_padding_are_zero() -> None:
    head = HeadLoss(padding=5)
    logits = torch.randn(4, 32)
    _, slope = row_losses(head, logits, torch.tensor([0, 5, 26, -100]))
    assert slope is not None
    assert slope.shape == logits.shape
    assert not slope[:, 27:].any()


@pytest.mark.parametrize("head", SETTINGS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_padded_heads_pass_their_check(head, has_bias) -> None:
    verdict = check_head(
        "key", replace(head, padding=47), torch.float32, torch.device("cpu"), has_bias=has_bias
    )
    assert verdict.passed, verdict.detail
