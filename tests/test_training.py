"""Training through fuseopt as people do it: what surrounds the model keeps working.

Kernels run through the interpreter, so that the fused step and not a fallback is what is tested.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fuseopt
from fuseopt.events import FellBack, RegionFused, RolledBack


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "kernels"))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """A small language model; the head may be tied to the embedding."""

    def __init__(self, *, tied: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 16)
        self.layers = nn.ModuleList(Layer(16) for _ in range(2))
        self.head = nn.Linear(16, 23, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embedding(ids)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.checkpointed else layer(h)
        logits = self.head(h)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def pair(**options: bool) -> tuple[nn.Module, nn.Module]:
    """A model, and an optimised one with weights of its own that are equal."""
    torch.manual_seed(0)
    model = Model(**options)
    return model, fuseopt.optimize(copy.deepcopy(model))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 23, (3, 9), generator=torch.Generator().manual_seed(1))


def assert_fused(optimized: nn.Module) -> None:
    assert optimized.log.of(RegionFused)
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)


def assert_same_gradients(ours: nn.Module, theirs: nn.Module, **tolerance: float) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"checkpointed": True}], ids=str)
def test_steps_follow_the_same_curve(options, ids):
    model, optimized = pair(**options)
    losses = []
    for each in (model, optimized):
        optimizer = torch.optim.AdamW(each.parameters(), 1e-2, foreach=True)
        curve = []
        for _ in range(4):
            loss = each(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        losses.append(curve)

    assert_fused(optimized)
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-4, atol=0)


def test_gradients_accumulate_over_batches(ids):
    model, optimized = pair()
    for each in (model, optimized):
        for batch in (ids, ids.flip(1), ids):
            (each(batch) / 3).backward()

    assert_fused(optimized)
    assert_same_gradients(optimized, model, rtol=1e-4, atol=1e-6)


def test_frozen_parameters_stay_without_gradients(ids):
    model, optimized = pair()
    for each in (model, optimized):
        each.embedding.requires_grad_(False)
        each.layers[0].norm.weight.requires_grad_(False)
        each(ids).backward()

    assert_fused(optimized)
    assert optimized.embedding.weight.grad is None
    assert_same_gradients(optimized, model, rtol=1e-4, atol=1e-6)


def test_autocast_decides_the_dtypes(ids):
    model, optimized = pair()
    for each in (model, optimized):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(ids)
        loss.backward()

    assert_fused(optimized)
    assert all(p.grad.dtype == torch.float32 for p in optimized.parameters())
    # Products round to bfloat16 (2**-8) in both; gradients are of order 0.1.
    assert_same_gradients(optimized, model, rtol=1e-2, atol=5e-4)


def test_a_gradient_scaler_sees_infinities_and_skips_the_step(ids):
    _, optimized = pair()
    kept = copy.deepcopy(optimized.state_dict())
    optimizer = torch.optim.SGD(optimized.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))

    scaler.scale(optimized(ids)).backward()
    scaler.step(optimizer)
    scaler.update()

    assert all(torch.equal(kept[k], v) for k, v in optimized.state_dict().items())


def test_a_second_derivative_is_refused_with_its_name():
    function = fuseopt.optimize(lambda x: (torch.sigmoid(x) * x).sum())
    x = torch.randn(5, 7, requires_grad=True)
    (first,) = torch.autograd.grad(function(x), x, create_graph=True)

    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.pow(2).sum(), x)


DISTRIBUTED = """
import copy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import fuseopt
from fuseopt.events import RegionFused, RolledBack
from test_training import Model

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = Model()
ours = fuseopt.optimize(copy.deepcopy(model))
batches = torch.randint(0, 23, (2, 3, 9), generator=torch.Generator().manual_seed(1))

if sys.argv[2] == "ddp":
    parallel = DistributedDataParallel(ours)
else:
    from torch.distributed.fsdp import fully_shard

    for layer in ours.layers:
        fully_shard(layer)
    parallel = fully_shard(ours)
parallel(batches[rank]).backward()
expected = (model(batches[0]) + model(batches[1])) / 2
expected.backward()
for (name, a), (_, b) in zip(parallel.named_parameters(), model.named_parameters(), strict=True):
    grad = a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad
    torch.testing.assert_close(grad, b.grad, rtol=1e-4, atol=1e-6, msg=lambda m: f"{name}: {m}")
assert not ours.log.of(RolledBack), ours.log.of(RolledBack)
Path(sys.argv[3], f"rank{rank}").write_text(str(len(ours.log.of(RegionFused))))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_gradients_agree_over_two_processes(way, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(script), str(Path(__file__).parent), way, str(tmp_path),
    ]  # fmt: skip

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    # A file each: what two processes print may lie within one another.
    fused = [int((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert all(fused), done.stdout
