"""`mode="reduce-overhead"` on a GPU: replayed calls give what calls without replay give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fuseopt
from fuseopt.events import NotReplayed
from fuseopt.runtime.replay import Replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(256)
        self.up = nn.Linear(256, 512)
        self.down = nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).cuda().eval()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the replays of the test, one number for each."""
    from fuseopt.runtime.replay import Captured

    seen: list[int] = []
    replay = Captured.replay

    def counted(self: Captured, args: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.append(len(args))
        return replay(self, args)

    monkeypatch.setattr(Captured, "replay", counted)
    return seen


def test_replays_give_the_results_of_new_inputs(block: nn.Module, replays: list[int]) -> None:
    optimised = fuseopt.optimize(block, mode="reduce-overhead")
    inputs = [torch.randn(8, 256, device="cuda") for _ in range(6)]
    with torch.no_grad():
        results = [optimised(x) for x in inputs]
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, block(x), rtol=1e-4, atol=1e-5)
    assert len(replays) >= 4
    assert not optimised.log.of(NotReplayed)


def test_a_changed_parameter_is_seen(block: nn.Module, replays: list[int]) -> None:
    optimised = fuseopt.optimize(block, mode="reduce-overhead")
    x = torch.randn(8, 256, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            optimised(x)
        block[0].down.weight.mul_(2.0)
        torch.testing.assert_close(optimised(x), block(x), rtol=1e-4, atol=1e-5)
        block[1].up.weight.data = torch.randn(512, 256, device="cuda")
        for _ in range(3):
            torch.testing.assert_close(optimised(x), block(x), rtol=1e-4, atol=1e-5)
    assert replays


def test_shapes_take_turns(block: nn.Module, replays: list[int]) -> None:
    optimised = fuseopt.optimize(block, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for turn in range(4):
            for rows in (1, 8, 32):
                x = torch.randn(rows, 256, device="cuda") + turn
                torch.testing.assert_close(optimised(x), block(x), rtol=1e-4, atol=1e-5)
    assert len(replays) >= 6


def test_a_strided_view_of_the_same_memory_is_another_input(block: nn.Module) -> None:
    optimised = fuseopt.optimize(block, mode="reduce-overhead", dynamic=False)
    square = torch.randn(256, 256, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            for x in (square, square.t()):
                torch.testing.assert_close(optimised(x), block(x), rtol=1e-4, atol=1e-5)


def test_a_model_that_writes_to_its_buffer() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.norm = nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return self.norm(torch.relu(x)) * self.count

    model = Counter().cuda().eval()
    optimised = fuseopt.optimize(model, mode="reduce-overhead")
    x = torch.randn(4, 64, device="cuda")
    with torch.no_grad():
        for number in range(1, 7):
            expected = model.norm(torch.relu(x)) * number
            torch.testing.assert_close(optimised(x), expected, rtol=1e-4, atol=1e-5)
    assert float(model.count) == 6


def test_an_input_on_the_cpu_is_not_captured() -> None:
    def scaled(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * factor) + 1

    optimised = fuseopt.optimize(scaled, mode="reduce-overhead")
    x = torch.randn(4, 64, device="cuda")
    for number in range(4):
        factor = torch.tensor(float(number))
        torch.testing.assert_close(optimised(x, factor), scaled(x, factor))
    assert any("cpu" in e.reason for e in optimised.log.of(NotReplayed))


def test_a_call_inside_a_capture_is_not_captured_again(block: nn.Module) -> None:
    optimised = fuseopt.optimize(block, mode="reduce-overhead")
    x = torch.randn(8, 256, device="cuda")
    with torch.no_grad():
        for _ in range(2):
            optimised(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = optimised(x)
        graph.replay()
        torch.testing.assert_close(result, block(x), rtol=1e-4, atol=1e-5)


def test_graphs_have_a_limit(block: nn.Module) -> None:
    from fuseopt.runtime import replay

    calls: list[int] = []

    def run(args: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(len(args))
        return [args[0] * 2]

    made = Replay(run, torch.device("cuda:0"), frozenset(), frozenset(), print)
    for rows in range(1, replay.MOST_GRAPHS + 3):
        for _ in range(3):
            x = torch.ones(rows, device="cuda")
            assert torch.equal(made([x])[0], x * 2)
    assert len(made.captured) == replay.MOST_GRAPHS
