"""Dropout on a GPU: captured graphs draw new masks at each replay, and gradients use the same."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fuseopt
from fuseopt.events import NotReplayed, RolledBack
from fuseopt.ops.dropout import DRAW_SEEDS, KEEP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def chain(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x + bias), 0.3, True) + residual


def inputs(rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x and bias from 0.5 on: what is kept changes the sum with the residual in every dtype."""
    made = [torch.rand(s, device="cuda") + 0.5 for s in ((rows, columns), (columns,))]
    made.append(torch.randn(rows, columns, device="cuda"))
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1024, 1023])
def test_gradients_are_zero_where_the_output_was_dropped(dtype, columns):
    call = fuseopt.optimize(chain, strict=True)
    x, bias, residual = inputs(512, columns, dtype)
    upstream = torch.rand_like(x) + 0.5  # sums over rows do not cancel

    y = call(x, bias, residual)
    gradients = torch.autograd.grad(y, [x, bias, residual], upstream)

    kept = (y != residual).detach()
    assert abs(float(kept.float().mean()) - 0.7) < 0.01
    given = [t.detach().double().requires_grad_() for t in (x, bias, residual)]
    wanted = F.gelu(given[0] + given[1]) * kept / 0.7 + given[2]
    expected = torch.autograd.grad(wanted, given, upstream.double())
    torch.testing.assert_close(y, wanted.to(dtype))
    for gradient, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, want.to(dtype))
    assert not call.log.of(RolledBack)


def test_masks_are_those_of_the_operator():
    call = fuseopt.optimize(lambda x: F.dropout(x * 1, 0.4, True), strict=True)
    x = torch.ones(300, 1000, device="cuda")

    with torch.no_grad():
        call(x)
        torch.manual_seed(5)
        y = call(x)
    torch.manual_seed(5)
    (seed,) = DRAW_SEEDS(1, x.device)

    assert torch.equal(y != 0, KEEP(seed, list(x.shape), 0.4))
    assert torch.equal(KEEP(seed.cpu(), list(x.shape), 0.4), (y != 0).cpu())


def test_replays_draw_new_masks():
    call = fuseopt.optimize(
        lambda x: F.dropout(x * 1, 0.5, True), mode="reduce-overhead", strict=True
    )
    x = torch.ones(256, 1024, device="cuda")

    with torch.no_grad():
        masks = [call(x) != 0 for _ in range(6)]

    assert not call.log.of(NotReplayed)
    for number, mask in enumerate(masks):
        assert 0.48 < float(mask.float().mean()) < 0.52
        assert not any(torch.equal(mask, other) for other in masks[:number])


def test_a_captured_training_step_draws_new_masks_that_both_directions_share():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.5)).cuda()
    call = fuseopt.optimize(model, strict=True)
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    ones = torch.ones(64, 256, device="cuda")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(call(x), [x, model[0].bias], ones)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(x)
        _, bias = torch.autograd.grad(y, [x, model[0].bias], ones)

    masks = []
    for _ in range(4):
        graph.replay()
        kept = y != 0
        hidden = F.linear(x, model[0].weight, model[0].bias).detach().requires_grad_()
        (wanted,) = torch.autograd.grad((F.gelu(hidden) * kept * 2).sum(), [hidden])
        torch.testing.assert_close(bias, wanted.sum(0), rtol=1e-3, atol=1e-3)
        masks.append(kept)

    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(masks))


def test_a_checkpoint_drops_the_same_when_it_runs_again():
    call = fuseopt.optimize(chain, strict=True)
    x, bias, residual = inputs(256, 512, torch.float32)

    for _ in range(2):
        y = checkpoint(call, x, bias, residual, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), [x])
        assert torch.equal(gradient != 0, y != residual)


def test_the_random_state_of_the_device_is_that_of_one_call():
    call = fuseopt.optimize(chain, strict=True)
    given = inputs(64, 512, torch.float32)

    torch.manual_seed(3)
    call(*given)
    first = torch.cuda.get_rng_state()
    torch.manual_seed(3)
    call(*given)

    assert torch.equal(first, torch.cuda.get_rng_state())


def test_no_mask_is_saved():
    call = fuseopt.optimize(chain, strict=True)
    x, bias, residual = inputs(8192, 4096, torch.bfloat16)
    call(x, bias, residual)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    y = call(x, bias, residual)

    kept_bytes = torch.cuda.memory_allocated() - before
    assert kept_bytes < y.numel() * y.itemsize + (1 << 20)
