"""`fuseopt.check`: it passes what is right, and names the kernel that is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuseopt
from fuseopt.errors import UsageError
from fuseopt.events import RolledBack


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.batch_norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.norm(x + 1) * 2
        h = self.down(F.gelu(self.up(h), approximate="tanh"))
        return {"out": self.batch_norm(h) + x, "kept": h.sigmoid() * 2}


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block()


def test_results_and_gradients_of_a_right_model_agree(block):
    x = torch.randn(12, 16)
    before = {k: v.clone() for k, v in block.state_dict().items()}
    random = torch.get_rng_state()

    found = fuseopt.check(block, fuseopt.optimize(block), (x,))

    assert found, found
    names = [v.name for v in found.values]
    assert names[:3] == ["result 0", "result 1", "gradient of input 0"]
    assert "gradient of up.weight" in names
    assert "gradient of norm.bias" in names
    assert not found.sites
    assert all(torch.equal(before[k], v) for k, v in block.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in block.parameters())


def test_without_gradients_only_results_are_compared(block):
    with torch.no_grad():
        found = fuseopt.check(block.eval(), fuseopt.optimize(block), (torch.randn(12, 16),))

    assert found
    assert [v.name for v in found.values] == ["result 0", "result 1"]


def test_functions_are_compared_too():
    def function(x, *, scale):
        return torch.softmax(x * scale, -1) + 1

    found = fuseopt.check(
        function, fuseopt.optimize(function), (torch.randn(4, 9),), {"scale": 0.5}
    )

    assert found
    assert "gradient of input 0" in [v.name for v in found.values]


def test_a_wrong_result_is_traced_to_its_kernel(block, monkeypatch):
    from fuseopt.runtime import build

    generate = build.generate

    def wrong(*args, **kwargs):
        from dataclasses import replace

        found = generate(*args, **kwargs)
        texts = [c.source.text.replace("libdevice.tanh", "libdevice.atan") for c in found]
        texts = [t.replace("_host('tanh'", "_host('atan'") for t in texts]
        return [
            replace(c, source=replace(c.source, text=t)) for c, t in zip(found, texts, strict=True)
        ]

    monkeypatch.setattr(build, "generate", wrong)
    optimized = fuseopt.optimize(block, verify=False)

    found = fuseopt.check(block, optimized, (torch.randn(12, 16),))

    assert not found
    assert any(not v.passed for v in found.values)
    assert found.first is not None
    assert "gelu" in found.first.kernel
    assert found.first.kernel in str(found)


def test_a_difference_that_no_kernel_explains_is_said_so(block):
    class Other(Block):
        def forward(self, x):
            made = super().forward(x)
            return {**made, "out": made["out"] * 1.5}

    other = Other()
    other.load_state_dict(block.state_dict())

    found = fuseopt.check(block, fuseopt.optimize(other), (torch.randn(12, 16),))

    assert not found
    assert found.first is None
    assert "agrees by itself" in str(found)


def test_models_that_do_not_match_are_refused(block):
    with pytest.raises(UsageError, match="another number of tensors"):
        fuseopt.check(block, lambda x: x * 2, (torch.randn(12, 16),))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x, (16,))
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2) / 4, -1)
        return x + weights @ self.value(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gradient_that_cancels_is_not_held_against_a_model(dtype):
    """That of a bias of keys is zero but for rounding, in float64 as well."""
    torch.manual_seed(0)
    model = Attention().to(dtype)
    optimized = fuseopt.optimize(model)

    assert fuseopt.check(model, optimized, (torch.randn(2, 9, 16, dtype=dtype),))
    assert not optimized.log.of(RolledBack)


def test_another_dtype_is_no_agreement():
    x = torch.randn(4, 8)

    assert not fuseopt.check(lambda x: x * 2, lambda x: (x * 2).double(), (x,)).passed
