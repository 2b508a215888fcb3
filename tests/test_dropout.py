"""Dropout end to end: kernels draw the mask, the same one in both directions, anew each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from regions import random
from torch import nn
from torch.utils.checkpoint import checkpoint

import fuseopt
from fuseopt.events import FellBack, Reason, RolledBack

SHAPE = (64, 32)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> Iterator[None]:
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dropout"))
    yield
    torch._dynamo.reset()


def optimised(function: Callable[..., Any]) -> Any:
    return fuseopt.optimize(function, strict=True)


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return random(*shape, dtype=dtype, seed=seed).requires_grad_()


def seeded(seed: int, call: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(seed)
    return call(*args)


def test_a_chain_with_a_dropout_is_one_kernel_in_each_direction():
    def chain(x, bias, residual):
        return F.dropout(F.gelu(x + bias), 0.3, True) + residual

    call = optimised(chain)
    x, bias, residual = leaf(*SHAPE), leaf(32), leaf(*SHAPE, seed=1)
    upstream = random(*SHAPE, seed=2)

    y = call(x, bias, residual)
    gradients = torch.autograd.grad(y, [x, bias, residual], upstream)

    kept = (y != residual).detach()
    wanted = torch.where(kept, F.gelu(x + bias) / 0.7, 0.0) + residual
    torch.testing.assert_close(y, wanted)
    expected = torch.autograd.grad(wanted, [x, bias, residual], upstream)
    torch.testing.assert_close(gradients, expected)
    assert [r.graph for r in call.report.regions] == [0, 1]
    assert not call.log.of(RolledBack)
    assert "native_dropout" not in call.source()


def test_what_is_kept_is_scaled_exactly_and_as_often_as_asked():
    call = optimised(lambda x: F.dropout(x * 2, 0.1, True))
    x = torch.ones(256, 1024, requires_grad=True)

    y = call(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x])

    assert y.unique().tolist() == [0.0, torch.tensor(2.0 * (1.0 / 0.9)).item()]
    # Nine in ten of 262144: the standard deviation is 154.
    assert abs(int((y != 0).sum()) - 0.9 * y.numel()) < 5 * 154
    assert torch.equal(gradient, y)


def test_each_call_drops_others_and_a_seed_repeats_them():
    call = optimised(lambda x: F.dropout(x.exp(), 0.5, True))
    x = leaf(*SHAPE)

    first, second = seeded(7, call, x), call(x)
    again, after = seeded(7, call, x), call(x)

    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert torch.equal(second, after)


def test_the_first_call_leaves_the_random_state_of_one_call():
    """It runs the original operations as well, which draw the same seeds."""
    call = optimised(lambda x: F.dropout(x.exp(), 0.5, True))

    seeded(7, call, leaf(*SHAPE))
    checked = torch.get_rng_state()
    seeded(7, call, leaf(*SHAPE))

    assert torch.equal(checked, torch.get_rng_state())


def test_dropouts_of_one_graph_differ():
    call = optimised(lambda x: (F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)))

    one, other = call(torch.ones(SHAPE, requires_grad=True))

    assert not torch.equal(one, other)


def test_layers_share_a_kernel():
    def layers(x, w):
        for _ in range(3):
            x = F.dropout(F.relu(x @ w), 0.2, True)
        return x

    call = optimised(layers)
    call(leaf(16, 16), leaf(16, 16, seed=1)).sum().backward()

    forward = [r for r in call.report.regions if r.graph == 0]
    assert len(forward) == 3
    assert len({r.key for r in forward}) == 1


@pytest.mark.parametrize(("p", "value"), [(0.0, 3.0), (1.0, 0.0)])
def test_dropping_nothing_and_everything(p, value):
    call = optimised(lambda x: F.dropout(x * 3, p, True) + 0)
    x = torch.ones(SHAPE, requires_grad=True)

    y = call(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x])

    assert y.unique().tolist() == [value]
    assert gradient.unique().tolist() == [value]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype):
    call = optimised(lambda x: F.dropout(x * 2, 0.3, True))
    x = leaf(*SHAPE, dtype=dtype)

    y = call(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x])

    torch.testing.assert_close(y, torch.where(y != 0, x * 2 / 0.7, 0.0))
    assert torch.equal(gradient != 0, y != 0)


def test_modules_follow_their_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 32))
    call = optimised(model)
    x = random(*SHAPE)

    one, other = call(x), call(x)
    model.eval()

    assert not torch.equal(one, other)
    torch.testing.assert_close(call(x), model(x))


def test_a_dropout_in_place_is_fused_as_well():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5, inplace=True))
    call = optimised(model)

    y = call(random(*SHAPE))
    (gradient,) = torch.autograd.grad(y.sum(), [model[0].bias])

    torch.testing.assert_close(gradient, (y != 0).sum(0) * 2.0)
    assert "draw_seeds" in call.source()


def test_without_gradients():
    call = optimised(lambda x: F.dropout(x.exp(), 0.5, True))
    x = random(*SHAPE)
    with torch.no_grad():
        y, again, other = seeded(7, call, x), seeded(7, call, x), call(x)

    assert [r.graph for r in call.report.regions] == [0]
    assert torch.equal(y, again)
    assert not torch.equal(y, other)
    torch.testing.assert_close(y, torch.where(y != 0, x.exp() * 2, 0.0))


def block(x, w):
    return F.dropout(F.gelu(x @ w), 0.5, True)


def assert_gradients_of_block(y, gradients, x, w):
    kept = (y != 0).detach()
    wanted = torch.autograd.grad((F.gelu(x @ w) * kept * 2).sum(), [x, w])
    torch.testing.assert_close(gradients, wanted)
    assert 0.3 < kept.float().mean() < 0.7


def test_a_checkpoint_inside_drops_the_same_when_it_runs_again():
    call = optimised(lambda x, w: checkpoint(block, x, w, use_reentrant=False) + 0.0)
    x, w = leaf(*SHAPE), leaf(32, 32, seed=1)

    for _ in range(2):
        y = call(x, w)
        assert_gradients_of_block(y, torch.autograd.grad(y.sum(), [x, w]), x, w)


def test_a_checkpoint_around_drops_the_same_when_it_runs_again():
    call = optimised(block)
    x, w = leaf(*SHAPE), leaf(32, 32, seed=1)

    for _ in range(2):
        y = checkpoint(call, x, w, use_reentrant=False)
        assert_gradients_of_block(y, torch.autograd.grad(y.sum(), [x, w]), x, w)


def test_sizes_that_vary():
    call = fuseopt.optimize(block, strict=True, dynamic=True)
    w = leaf(32, 32, seed=1)

    for rows in (48, 20):
        x = leaf(rows, 32)
        y = call(x, w)
        assert_gradients_of_block(y, torch.autograd.grad(y.sum(), [x, w]), x, w)


def test_attention_keeps_its_own_dropout():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).exp() * 2

    call = fuseopt.optimize(attention)
    q = leaf(1, 2, 8, 16)

    with torch.no_grad():
        call(q, q, q)

    assert "scaled_dot_product_attention" in call.source()
    assert "dropout_seeds" not in call.source()


def test_without_a_device_for_kernels_the_numbers_are_those_of_pytorch(monkeypatch):
    monkeypatch.delenv("FUSEOPT_INTERPRET")
    call = optimised(block)
    x, w = leaf(*SHAPE), leaf(32, 32, seed=1)

    ours, theirs = (seeded(3, f, x, w) for f in (call, block))

    assert torch.equal(ours, theirs)
    given = (torch.autograd.grad(y.sum(), [x, w]) for y in (ours, theirs))
    torch.testing.assert_close(*given)
    assert {e.code for e in call.log.of(FellBack)} == {Reason.NO_DEVICE}


def test_a_transformer_s_layer_trains():
    """Each of its four dropouts joins what is around it, in both directions."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, activation="gelu", batch_first=True)
    call = optimised(layer)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    x = random(2, 16, 32)
    losses = []

    for _ in range(8):
        loss = (call(x) - x.roll(1, 0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert losses[-1] < losses[0]
    assert "draw_seeds(4, " in call.source()
    assert "dropout_keep" not in call.source()
    assert "native_dropout" not in call.source()
    assert not call.log.of(RolledBack)
