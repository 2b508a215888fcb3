"""Training through `fuseopt.optimize`, by the interpreter: gradients against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuseopt
from fuseopt.events import FellBack, NotFused, Reason, RegionFused, RolledBack

ROWS, WORDS = 12, 50


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def step(function: Callable[..., Any], args: list[Any]) -> list[torch.Tensor]:
    """Results, then the gradients of inputs and parameters, of one training step."""
    args = [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in args
    ]
    out = function(*args)
    shares = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view(out.shape)
    (out * shares).sum().backward()
    grads = [a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    own = function.parameters() if isinstance(function, nn.Module) else ()
    return [out.detach(), *grads, *(p.grad for p in own)]


def in_float64(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def assert_trains(function: Callable[..., Any], *args: Any) -> Any:
    """Check a step against float64, that kernels ran both ways, and return what was optimised.

    What runs both ways is fused both ways, except for a backward graph of one operation.
    """
    truth = step(in_float64(function), [in_float64(a) for a in args])
    eager = step(copy.deepcopy(function), list(args))
    optimized = fuseopt.optimize(copy.deepcopy(function))
    got = step(optimized, list(args))
    for ours, theirs, exact in zip(got, eager, truth, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours.isnan(), exact.isnan())
        error, allowed = ((t.double() - exact).nan_to_num().abs().max() for t in (ours, theirs))
        scale = exact.nan_to_num().abs().max()
        assert error <= 2 * allowed + 4 * torch.finfo(ours.dtype).eps * scale
    events = optimized.log.events
    single = {e.graph for e in events if isinstance(e, NotFused) and e.code is Reason.SINGLE}
    assert {e.graph for e in events if isinstance(e, RegionFused)} | (single - {0}) == {0, 1}
    assert not [e for e in events if isinstance(e, (FellBack, RolledBack))]
    return optimized


def logits(dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(shape or (ROWS, WORDS), generator=generator) * 3
    return drawn.to(dtype).requires_grad_()


def classes(*shape: int, ignored: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, WORDS, shape or (ROWS,), generator=generator)
    if ignored is not None:
        drawn.view(-1)[::3] = ignored
    return drawn


def loss(**options: Any) -> Callable[..., Any]:
    def cross_entropy(x, t, weight=None):
        return F.cross_entropy(x, t, weight, **options)

    return cross_entropy


WEIGHT = torch.linspace(0.2, 2.0, WORDS)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(reduction, smoothing, weight) -> None:
    function = loss(reduction=reduction, label_smoothing=smoothing, ignore_index=7)
    given = () if weight is None else (weight,)
    assert_trains(function, logits(), classes(ignored=7), *given)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_where_all_rows_are_ignored(reduction) -> None:
    optimized = assert_trains(
        loss(reduction=reduction), logits(), torch.full((ROWS,), -100), WEIGHT
    )
    value = optimized(logits(), torch.full((ROWS,), -100), WEIGHT)
    assert value.isnan().all() == (reduction == "mean")


def test_cross_entropy_of_16_bit_logits_and_of_their_float_copy() -> None:
    assert_trains(loss(), logits(torch.bfloat16), classes(ignored=-100))
    torch._dynamo.reset()

    def upcast(x, t):
        return F.cross_entropy(x.float(), t)

    assert_trains(upcast, logits(torch.bfloat16), classes(ignored=-100))


def test_cross_entropy_of_maps() -> None:
    assert_trains(loss(ignore_index=2), logits(torch.float32, 2, WORDS, 3, 4), classes(2, 3, 4))


def test_cross_entropy_with_softcap_and_z_loss_reads_the_logits_once() -> None:
    def capped(x, t):
        x = 5 * torch.tanh(x / 5)
        return F.cross_entropy(x, t) + 1e-2 * torch.logsumexp(x, -1).square().mean()

    optimized = assert_trains(capped, logits(), classes(ignored=-100))
    backward = [e for e in optimized.log.events if isinstance(e, RegionFused) and e.graph == 1]
    assert len(backward) == 1


def norms() -> Iterator[Any]:
    yield pytest.param(nn.LayerNorm(WORDS), (ROWS, WORDS), id="layer")
    yield pytest.param(nn.LayerNorm(WORDS, bias=False), (ROWS, WORDS), id="layer-without-bias")
    yield pytest.param(nn.RMSNorm(WORDS), (ROWS, WORDS), id="rms")
    yield pytest.param(nn.GroupNorm(2, 4), (3, 4, 5, 5), id="group")
    yield pytest.param(nn.BatchNorm2d(4), (3, 4, 5, 5), id="batch-2d")
    yield pytest.param(nn.BatchNorm1d(6, affine=False), (8, 6), id="batch-1d")
    yield pytest.param(
        nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 5), id="batch-without-statistics"
    )


@pytest.mark.parametrize(("norm", "shape"), list(norms()))
def test_norms(norm, shape) -> None:
    for number, parameter in enumerate(norm.parameters()):
        nn.init.uniform_(parameter, 0.5 - number, 1.5)
    assert_trains(copy.deepcopy(norm).bfloat16(), logits(torch.bfloat16, *shape))
    torch._dynamo.reset()
    optimized = assert_trains(norm, logits(torch.float32, *shape))
    eager = copy.deepcopy(norm)
    step(eager, [logits(torch.float32, *shape)])
    for (name, ours), theirs in zip(optimized.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")


ELEMENTWISE = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth-l1": lambda x, t: F.smooth_l1_loss(x, t, beta=0.5),
    "huber": lambda x, t: F.huber_loss(x, t, reduction="sum", delta=0.7),
    "bce": lambda x, t: F.binary_cross_entropy(torch.sigmoid(x), t),
    "bce-logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "soft-margin": lambda x, t: F.soft_margin_loss(x, 2 * t - 1),
    "kl": lambda x, t: F.kl_div(F.log_softmax(x, -1), t, reduction="batchmean"),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses(name) -> None:
    target = torch.rand(ROWS, WORDS, generator=torch.Generator().manual_seed(2))
    assert_trains(ELEMENTWISE[name], logits(), target)
