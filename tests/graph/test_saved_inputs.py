"""Gradients where the forward pass writes to what the backward pass computes with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import random
from torch import nn

import fuseopt


def counted(m, x):
    m.steps.add_(1)
    return x * m.steps + 1


def averaged(m, x):
    m.steps.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return F.layer_norm(x - m.steps, (6,), m.weight) * m.steps


def added(m, x):
    m.held.add_(x.detach())
    return torch.softmax(x * m.held, -1) * m.held


def stored(m, x):
    m.held[1:] = x.detach()[1:] * 2
    return (x * m.held).sin()


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.arange(6.0))
        self.register_buffer("steps", torch.ones(6))
        self.register_buffer("held", torch.zeros(4, 6))

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize("interpreted", ["0", "1"])
@pytest.mark.parametrize("function", [counted, averaged, added, stored])
def test_gradients_are_of_the_values_that_were_used(function, interpreted, monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", interpreted)
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    eager, model = Model(function), Model(function)
    optimized = fuseopt.optimize(model)
    for seed in range(3):
        x = random(4, 6, seed=seed).requires_grad_()
        y = x.detach().clone().requires_grad_()

        optimized(x).sum().backward()
        eager(y).sum().backward()

        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
