"""Numbers that a model compares with each other: equal where they are in eager PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fuseopt
from fuseopt.events import RolledBack


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def scaled(h):
    return h / h.abs().amax(-1, keepdim=True)


FUNCTIONS = {
    "layer norm": lambda x, b: F.layer_norm(x + b, (8,)).amax(-1),
    "silu": lambda x, b: F.silu(x + b).amax(-1),
    "scaled by the largest": lambda x, b: scaled(F.gelu(x * b + b)),
    "in float32": lambda x, b: F.silu(x + b).float().amax(-1),
    "elementwise maximum": lambda x, b: torch.maximum((x * b).amax(-1, keepdim=True), x * b),
    "largest and its place": lambda x, b: F.silu(x + b).max(-1)[0],
    "median": lambda x, b: F.layer_norm(x + b, (8,)).median(),
    "checkpoint": lambda x, b: checkpoint(lambda u: F.silu(u + b).amax(-1), x, use_reentrant=False),
    "a mask of its own": lambda x, b: (
        lambda h: torch.where(h == h.amax(-1, keepdim=True), h, h * 0.5)
    )(F.silu(x + b)),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_largest_gets_the_gradient(name, dtype, verify):
    function = FUNCTIONS[name]
    torch.manual_seed(0)
    args = [torch.randn(16, 8, dtype=dtype).requires_grad_() for _ in range(2)]
    args[1] = torch.randn(8, dtype=dtype).requires_grad_()
    optimized = fuseopt.optimize(function, verify=verify)

    wanted = torch.autograd.grad(function(*args).float().sum(), args)
    got = torch.autograd.grad(optimized(*args).float().sum(), args)

    near = 5e-6 if dtype == torch.float32 else 3e-2
    for ours, theirs in zip(got, wanted, strict=True):
        largest = theirs.double().abs().max()
        assert (ours.double() - theirs.double()).abs().max() <= near * largest
    assert not [e for e in optimized.log.of(RolledBack) if "differs" in e.reason]


def test_equal_numbers_of_16_bits_share_the_gradient():
    x = torch.tensor([[1.0, 1.001, 0.5, 0.25]], dtype=torch.bfloat16, requires_grad=True)
    function = lambda x: torch.tanh(x * 0.7).amax(-1)  # noqa: E731

    wanted = torch.autograd.grad(function(x).sum(), x)
    got = torch.autograd.grad(fuseopt.optimize(function)(x).sum(), x)

    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=0)
