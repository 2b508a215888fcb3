"""Layer norm is found however it is written, and not in what only looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from spellings import CB, CW, HALF, IMAGE, B, W, X, match_of, matches, rules_in, tensor

EPS = 1e-5


def written(x, w, b):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + EPS) * w + b


def by_var_mean(x, w, b):
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPS) * w + b


SPELLINGS = {
    "one operation": lambda x, w, b: F.layer_norm(x, (16,), w, b, EPS),
    "written": lambda x, w, b: written(x, w, b),
    "by var": lambda x, w, b: (
        w * (x - x.mean(-1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
        + b
    ),
    "by var_mean": by_var_mean,
    "by moments": lambda x, w, b: (
        (x - x.mean(-1, keepdim=True))
        * ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + EPS).rsqrt()
        * w
        + b
    ),
    "by sums": lambda x, w, b: (
        (x - x.sum(-1, keepdim=True) / 16)
        * ((x - x.sum(-1, keepdim=True) / 16).square().sum(-1, keepdim=True) / 16 + EPS).rsqrt()
        * w
        + b
    ),
    "in float32": lambda x, w, b: written(x.float(), w.float(), b.float()).to(x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("function", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_are_found(function, dtype):
    match = match_of("layer_norm", function, X.to(dtype), W.to(dtype), B.to(dtype))

    assert match.scalars["eps"] == pytest.approx(EPS)
    assert {match.node(n).op for n in ("x", "weight", "bias")} == {"placeholder"}


def test_weight_and_bias_may_be_missing():
    without_bias = match_of("layer_norm", lambda x, w: F.layer_norm(x, (16,), w), X, W)
    plain = match_of("layer_norm", lambda x: F.layer_norm(x, (16,)), X)

    assert set(without_bias.values) == {"x", "weight"}
    assert set(plain.values) == {"x"}


def test_several_dimensions_are_one_feature_axis():
    w, b = tensor(3, 16), tensor(3, 16)

    match = match_of("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 16), w, b), X, w, b)

    assert match.axis is None
    assert match.scalars["features"] == 48


def test_channels_are_found_around_a_permutation():
    def permuted(x, w, b):
        return F.layer_norm(x.permute(0, 2, 3, 1), (8,), w, b).permute(0, 3, 1, 2)

    def channels_first(x, w, b):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return w[:, None, None] * ((x - mean) / torch.sqrt(variance + EPS)) + b[:, None, None]

    assert match_of("layer_norm", permuted, IMAGE, CW, CB).axis == 3
    assert match_of("layer_norm", channels_first, IMAGE, CW, CB).axis == 1


def test_what_adapts_to_the_sample_is_no_weight():
    def adaptive(x, scale, shift):
        return F.layer_norm(x, (16,)) * (1 + scale[:, None]) + shift[:, None]

    found = matches(adaptive, X, tensor(2, 16), tensor(2, 16))

    assert (found[0].rule, set(found[0].values)) == ("layer_norm", {"x"})


NEAR_MISSES = {
    "unbiased variance": lambda x, w, b: (
        (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + EPS).rsqrt() * w + b
    ),
    "eps beside the deviation": lambda x, w, b: (
        w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + EPS) + b
    ),
    "mean over another dimension": lambda x, w, b: (
        (x - x.mean(1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt() * w
    ),
    "twice the mean": lambda x, w, b: (
        (x - 2 * x.mean(-1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    ),
    "the mean added": lambda x, w, b: (
        (x + x.mean(-1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt() * w
    ),
}


@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function):
    assert "layer_norm" not in rules_in(function, X, W, B)
