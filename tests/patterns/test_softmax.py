"""Softmax, with and without masks, is found however it is written."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from spellings import HALF, MASK, X, Y, match_of, matches, rules_in, tensor

LOG2E = math.log2(math.e)
SCORES = tensor(2, 4, 5, 7)
BIAS = tensor(2, 1, 5, 7)


def by_exp(x, dim=-1):
    grown = torch.exp(x - x.amax(dim, keepdim=True))
    return grown / grown.sum(dim, keepdim=True)


SPELLINGS = {
    "one operation": lambda x: F.softmax(x, -1),
    "less the maximum": lambda x: by_exp(x),
    "as in the formula": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "by logsumexp": lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True)),
    "by log_softmax": lambda x: F.log_softmax(x, -1).exp(),
    "to base two": lambda x: torch.exp2(x * LOG2E) / torch.exp2(x * LOG2E).sum(-1, keepdim=True),
    "in float32": lambda x: F.softmax(x.float(), -1).to(x.dtype),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "less logsumexp": lambda x: x - torch.logsumexp(x, -1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("function", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_are_found(function, dtype):
    match = match_of("softmax", function, X.to(dtype))

    assert match.axis == 2
    assert match.node("x").op == "placeholder"


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_dimension_is_found(dim):
    assert match_of("softmax", lambda x: F.softmax(x, dim), X).axis == dim % 3
    assert match_of("softmax", lambda x: by_exp(x, dim), X).axis == dim % 3


NEAR_MISSES = {
    "one more in the sum": lambda x, y: x.exp() / (1 + x.exp().sum(-1, keepdim=True)),
    "of sigmoids": lambda x, y: x.sigmoid() / x.sigmoid().sum(-1, keepdim=True),
    "over twice the exponent": lambda x, y: x.exp() / (2 * x).exp().sum(-1, keepdim=True),
    "over another sum": lambda x, y: x.exp() / y.exp().sum(-1, keepdim=True),
    "the mean below": lambda x, y: x.exp() / x.exp().mean(-1, keepdim=True),
}


@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function):
    assert "softmax" not in rules_in(function, X, Y)


MASKED = {
    "scaled and added": (lambda s, b: F.softmax(s * 0.125 + b, -1), {"scale": 0.125}),
    "divided and added": (
        lambda s, b: F.softmax(s / 8.0 + b, -1, dtype=torch.float32).to(s.dtype),
        {"scale": 0.125},
    ),
    "added": (lambda s, b: F.softmax(s + b, -1), {}),
    "scaled": (lambda s, b: F.softmax(s * 0.125, -1), {"scale": 0.125}),
    "filled": (
        lambda s, b: F.softmax((s * 0.125).masked_fill(b > 0, -math.inf), -1),
        {"scale": 0.125, "value": -math.inf},
    ),
    "chosen": (
        lambda s, b: F.softmax(torch.where(b > 0, s, -1e9), -1),
        {"value": torch.tensor(-1e9, dtype=HALF).item()},
    ),
    "capped": (
        lambda s, b: F.softmax(torch.tanh(s * 0.125 / 50.0) * 50.0 + b, -1),
        {"cap": 50.0},
    ),
}


@pytest.mark.parametrize(("function", "scalars"), MASKED.values(), ids=MASKED)
def test_masked_softmax_is_found_with_its_numbers(function, scalars):
    match = match_of("masked_softmax", function, SCORES.to(HALF), BIAS.to(HALF))

    assert {n: match.scalars[n] for n in scalars} == pytest.approx(scalars)
    assert match.axis == 3


def test_a_bool_mask_that_is_given_is_found():
    match = match_of("masked_softmax", lambda x, m: F.softmax(x.masked_fill(m, -1e4), -1), X, MASK)

    assert match.node("mask").op == "placeholder"


def test_a_cap_has_to_be_the_same_inside_and_outside():
    assert rules_in(lambda x: 30 * torch.tanh(x / 30), X) == ["softcap"]
    assert rules_in(lambda x: 30 * torch.tanh(x / 31), X) == []
    assert rules_in(torch.tanh, X) == []


def test_the_larger_match_names_attention_weights():
    found = matches(lambda s, b: F.softmax(s * 0.5 + b, -1), SCORES, BIAS)

    assert [m.rule for m in found] == ["masked_softmax"]
    assert len(found[0].nodes) == 3
