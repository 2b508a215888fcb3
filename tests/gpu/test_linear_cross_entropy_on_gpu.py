"""The chunked loss on a GPU: memory and time of loss and head, next to PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fuseopt.patterns.linear_cross_entropy import LinearCrossEntropy

import fuseopt
from fuseopt.events import RolledBack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RULE = "linear_cross_entropy"
ROWS, CLASSES, FEATURES = 8192, 128256, 2048


def loss_of(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    logits = F.linear(x, w).float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), t)


def draw(rows: int, classes: int, features: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, features, device="cuda", dtype=dtype).requires_grad_()
    w = (torch.randn(classes, features, device="cuda", dtype=dtype) * 0.02).requires_grad_()
    t = torch.randint(0, classes, (rows,), device="cuda")
    t[::7] = -100
    return [x, w, t]


def gradients(call: Callable[..., torch.Tensor], x, w, t) -> list[torch.Tensor]:
    loss = call(x, w, t)
    return [loss.detach(), *torch.autograd.grad(loss, [x, w])]


def peak(call: Callable[..., torch.Tensor], *given: torch.Tensor) -> int:
    """Bytes that a call and its gradients take beyond what was there."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients(call, *given)
    return torch.cuda.max_memory_allocated() - before


def seconds(call: Callable[..., torch.Tensor], *given: torch.Tensor) -> float:
    """The least time of several calls with their gradients."""
    times = []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gradients(call, *given)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gradients_are_exact(dtype):
    given = draw(1000, 5000, 256, dtype)
    call = fuseopt.optimize(loss_of, rules=[LinearCrossEntropy])

    found = gradients(call, *given)

    assert not call.log.of(RolledBack)
    call.report.assert_fused(RULE)
    wide = [t.detach().double().requires_grad_() for t in given[:2]]
    exact = gradients(lambda x, w, t: F.cross_entropy(F.linear(x, w), t), *wide, given[2])
    eager = gradients(loss_of, *given)
    for ours, theirs, truth in zip(found, eager, exact, strict=True):
        scale = truth.abs().max()
        error, original = ((t.double() - truth).abs().max() / scale for t in (ours, theirs))
        assert error <= 2 * original + (1e-5 if dtype == torch.float32 else 1e-2)


def test_a_large_vocabulary_takes_a_quarter_of_the_memory_and_no_more_time():
    given = draw(ROWS, CLASSES, FEATURES, torch.bfloat16)
    call = fuseopt.optimize(loss_of)
    gradients(call, *given)  # compiles and checks
    gradients(call, *given)

    assert not call.log.of(RolledBack)
    call.report.assert_fused(RULE)
    (region,) = [r for r in call.report.regions if r.rule == RULE]
    ours, theirs = peak(call, *given), peak(loss_of, *given)
    assert theirs >= 4 * ours
    assert abs((theirs - ours) - region.memory_saved) < 0.25 * theirs
    assert seconds(call, *given) <= 1.05 * seconds(loss_of, *given)


def test_the_host_does_not_wait_for_the_device():
    given = draw(4096, 5000, 256, torch.bfloat16)
    call = fuseopt.optimize(loss_of, rules=[LinearCrossEntropy])
    gradients(call, *given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(call, *given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
