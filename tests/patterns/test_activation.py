"""Activations, alone, behind a bias and as gates, are found however they are written."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from spellings import HALF, B, X, Y, match_of, matches, rules_in

ROOT = math.sqrt(2 / math.pi)

SPELLINGS = {
    "silu": (
        lambda x: F.silu(x),
        lambda x: x * torch.sigmoid(x),
        lambda x: x / (1 + torch.exp(-x)),
        lambda x: x * torch.exp(x) / (1 + torch.exp(x)),
        lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
        lambda x: F.silu(x.float()).to(x.dtype),
    ),
    "gelu": (
        lambda x: F.gelu(x),
        lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865475)),
        lambda x: 0.5 * x + 0.5 * x * torch.erf(x / 1.4142135),
        lambda x: x * 0.5 * torch.erfc(-x * 0.7071067811865475),
        lambda x: x * (torch.erf(x / math.sqrt(2)) + 1) / 2,
    ),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
        lambda x: x * torch.sigmoid(2 * 0.7978845608 * (x + 0.044715 * x**3)),
    ),
    "quick_gelu": (
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: x / (1 + torch.exp(-1.702 * x)),
    ),
    "relu": (
        lambda x: F.relu(x),
        lambda x: torch.clamp_min(x, 0),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
    ),
    "relu_squared": (lambda x: F.relu(x) ** 2, lambda x: F.relu(x) * F.relu(x)),
}
CASES = [(name, function) for name, functions in SPELLINGS.items() for function in functions]


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("name", "function"), CASES)
def test_spellings_are_found(name, function, dtype):
    match = match_of("activation", function, X.to(dtype))

    assert match.pattern == name
    assert match.node("x").op == "placeholder"


NEAR_MISSES = {
    "gelu_tanh, another cubic": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.05 * x**3))),
    "gelu_tanh, a square": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**2))),
    "gelu_tanh, another root": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "gelu, another root": lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)),
    "gelu, no root": lambda x: 0.5 * x * (1 + torch.erf(x)),
    "gelu, the other tail": lambda x: 0.5 * x * (1 - torch.erf(x / math.sqrt(2))),
    "quick_gelu, rounded": lambda x: x * torch.sigmoid(1.7 * x),
    "silu, the other side": lambda x: x * torch.sigmoid(-x),
    "silu, shifted": lambda x: x * torch.sigmoid(x + 1),
    "relu, the other side": lambda x: torch.clamp_max(x, 0),
}


@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function):
    assert "activation" not in rules_in(function, X)


def test_quick_gelu_is_not_silu():
    assert matches(SPELLINGS["quick_gelu"][0], X)[0].pattern == "quick_gelu"


GATES = {
    "silu": (lambda x, y: F.silu(x) * y, lambda x, y: y * (x * torch.sigmoid(x))),
    "gelu": (lambda x, y: F.gelu(x) * y,),
    "gelu_tanh": (lambda x, y: y * F.gelu(x, approximate="tanh"),),
    "relu": (lambda x, y: F.relu(x) * y,),
    "sigmoid": (
        lambda x, y: torch.sigmoid(x) * y,
        lambda x, y: F.glu(torch.cat([y, x], -1), -1),
    ),
}


@pytest.mark.parametrize(("name", "functions"), GATES.items())
def test_gates_are_found(name, functions):
    for function in functions:
        assert match_of("gated_activation", function, X, Y).pattern == name


def test_halves_of_one_value_are_a_gate():
    def halves(x):
        return F.silu(x[..., :8]) * x[..., 8:]

    def chunks(x):
        a, b = x.chunk(2, -1)
        return F.gelu(a) * b

    assert match_of("gated_activation", halves, X).pattern == "silu"
    assert match_of("gated_activation", chunks, X).pattern == "gelu"


def test_a_bias_varies_along_the_features():
    assert rules_in(lambda x, b: F.gelu(x + b), X, B) == ["bias_activation"]
    assert rules_in(lambda x, b: F.relu(b + x), X, B) == ["bias_activation"]
    assert rules_in(lambda x, y: F.gelu(x + y), X, Y) == ["activation"]


def test_a_bias_along_another_axis_is_found_there():
    match = match_of("bias_activation", lambda x, b: F.gelu(x + b[:3, None]), X, B)

    assert match.axis == 1
