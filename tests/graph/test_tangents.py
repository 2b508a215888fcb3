"""Outputs that get no gradient: their zeros are neither made nor read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fuseopt
from fuseopt.events import GraphCaptured

CLASSES = 50


class Made(TorchDispatchMode):
    """The shapes that ops make while this is active."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[Any, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor):
                self.shapes.append((func, tuple(t.shape)))
        return result


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.tanh(self.inner(x))
        logits = self.head(hidden)
        return F.cross_entropy(logits, t), logits, hidden.sum(-1)


@pytest.fixture
def case() -> tuple[nn.Module, Any, torch.Tensor, torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Classifier().double()
    x = torch.randn(12, 16, dtype=torch.float64)
    return model, fuseopt.optimize(model, strict=True), x, torch.randint(0, CLASSES, (12,))


LOSSES = {
    "the loss": lambda loss, logits, sums: loss,
    "the logits": lambda loss, logits, sums: logits.square().sum(),
    "sums": lambda loss, logits, sums: sums.sin().sum(),
    "loss and logits": lambda loss, logits, sums: loss + logits.tanh().sum(),
    "all": lambda loss, logits, sums: loss * 2 + logits.tanh().sum() + sums.sum(),
}


@pytest.mark.parametrize("names", [[n] for n in LOSSES] + [list(LOSSES), list(LOSSES)[::-1]])
def test_gradients_are_right_whichever_outputs_they_come_from(case, names) -> None:
    model, optimised, x, t = case
    for name in names:
        wanted = torch.autograd.grad(
            LOSSES[name](*model(x, t)), list(model.parameters()), allow_unused=True
        )
        given = torch.autograd.grad(
            LOSSES[name](*optimised(x, t)), list(model.parameters()), allow_unused=True
        )
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_a_backward_pass_of_the_loss_makes_no_zeros_for_the_logits(case) -> None:
    _, optimised, x, t = case
    loss = optimised(x, t)[0]
    loss.backward()
    loss = optimised(x, t)[0]
    with Made() as made:
        loss.backward()
    fills = [f for f, shape in made.shapes if shape == (12, CLASSES) and "zero" in str(f)]
    assert not fills


def test_the_whole_graph_is_compiled_only_when_it_is_needed(case) -> None:
    _, optimised, x, t = case
    for _ in range(2):
        optimised(x, t)[0].backward()
    levels = [g.level for g in optimised.log.of(GraphCaptured)]
    assert levels == ["backward", "forward"] or levels == ["forward", "backward"]
    for _ in range(2):
        optimised(x, t)[1].sum().backward()
    assert len(optimised.log.of(GraphCaptured)) == 3


def test_a_backward_pass_may_run_twice_and_not_be_differentiated(case) -> None:
    model, optimised, x, t = case
    loss, logits, _ = optimised(x, t)
    weight = model.head.weight
    first = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    second = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    torch.testing.assert_close(first, second)
    (both,) = torch.autograd.grad(loss + logits.sum(), weight, retain_graph=True)
    assert not torch.allclose(both, first)
    (again,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        again.sum().backward()


def test_nodes_of_other_functions_are_left_as_they_are() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * 2 + b * 3  # of tensors: neither may be None

    @fuseopt.optimize
    def passing(x, w):
        return (x * w).sum(), x, x.sin() * w

    x = torch.ones(3, requires_grad=True)
    first, _ = Two.apply(x)
    total, same, _ = passing(first, torch.ones(3, requires_grad=True))
    (total + same.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 4.0))
