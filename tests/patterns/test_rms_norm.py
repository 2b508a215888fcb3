"""RMS norm is found however it is written, and not in what only looks like it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from spellings import HALF, W, X, Y, match_of, matches, rules_in

EPS = 1e-6


def written(x, weight, eps=EPS):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def llama(x, w):
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return w * wide.to(x.dtype)


def gemma(x, w):
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (normal * (1.0 + w.float())).type_as(x)


def t5(x, w):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + EPS)).to(w.dtype)


SPELLINGS = {
    "one operation": lambda x, w: F.rms_norm(x, (16,), w, EPS),
    "rsqrt of the mean": lambda x, w: written(x, w),
    "over the root": lambda x, w: x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * w,
    "sum over the count": lambda x, w: (w * x) / ((x**2).sum(-1, keepdim=True) / 16 + EPS).sqrt(),
    "power -1/2": lambda x, w: x * (x.square().mean(-1, keepdim=True) + EPS) ** -0.5 * w,
    "reciprocal": lambda x, w: x * (torch.mean(x * x, -1, True) + EPS).sqrt().reciprocal() * w,
    "norm squared": lambda x, w: x * (x.norm(2, -1, True) ** 2 / 16 + EPS).rsqrt() * w,
    "vector_norm": lambda x, w: (
        x * torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / 16 + EPS) * w
    ),
    "count outside the root": lambda x, w: (
        x * math.sqrt(16) * torch.rsqrt((x * x).sum(-1, keepdim=True) + 16 * EPS) * w
    ),
    "weight first": lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    "unflattened mean": lambda x, w: (
        x * torch.rsqrt(x.unflatten(-1, (4, 4)).pow(2).mean((-1, -2))[..., None] + EPS) * w
    ),
    "mean of means": lambda x, w: (
        x * torch.rsqrt(x.view(2, 3, 4, 4).pow(2).mean(-1).mean(-1)[..., None] + EPS) * w
    ),
    "flattened rows": lambda x, w: F.rms_norm(x.view(6, 16), (16,), w, EPS).view(2, 3, 16),
    "transposed": lambda x, w: (
        (
            x.transpose(1, 2) * torch.rsqrt(x.transpose(1, 2).pow(2).mean(1, keepdim=True) + EPS)
        ).transpose(1, 2)
        * w
    ),
}


@pytest.mark.parametrize("function", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_are_found(function):
    match = match_of("rms_norm", function, X, W)

    assert match.scalars["eps"] == pytest.approx(EPS)
    assert match.node("x") is not None
    assert match.node("weight").op == "placeholder"


@pytest.mark.parametrize("function", [llama, gemma, t5])
def test_orders_of_casts_are_found(function):
    match = match_of("rms_norm", function, X.to(HALF), W.to(HALF))

    assert match.casts
    assert match.node("x").op == "placeholder"  # not its float32 copy


def test_the_feature_axis_is_found():
    over_rows = match_of("rms_norm", lambda x: x * (x.pow(2).mean(1, True) + EPS).rsqrt(), X)
    over_heads = match_of("rms_norm", lambda x, w: written(x.view(2, 3, 4, 4), w[:4]), X, W)

    assert (over_rows.axis, over_rows.scalars["features"]) == (1, 3)
    assert (over_heads.axis, over_heads.scalars["features"]) == (3, 4)


@pytest.mark.parametrize(
    "before",
    [
        lambda x, y: x + y,
        lambda x, y: 3.0 * x,
        lambda x, y: F.silu(x) * y,
        lambda x, y: torch.exp(x),
        lambda x, y: F.softmax(x, -1),
    ],
)
def test_whatever_is_normalized(before):
    found = rules_in(lambda x, y, w: written(before(x, y), w), X, Y, W)

    assert found[0] in ("rms_norm", "residual_norm")


def test_a_dynamic_size_is_no_obstacle():
    found = matches(lambda x: F.rms_norm(x, x.shape[-1:], None, EPS), X, dynamic=True)

    assert [m.rule for m in found] == ["rms_norm"]
    assert found[0].scalars["eps"] == pytest.approx(EPS)
    assert "size" in str(found[0].scalars["features"])


NEAR_MISSES = {
    "eps outside the root": lambda x, y, w: x / ((x * x).mean(-1, keepdim=True).sqrt() + EPS) * w,
    "mean of magnitudes": lambda x, y, w: x * (x.abs().mean(-1, keepdim=True) + EPS).rsqrt() * w,
    "another value's mean": lambda x, y, w: x * ((y * y).mean(-1, keepdim=True) + EPS).rsqrt() * w,
    "no root": lambda x, y, w: x / (x.pow(2).mean(-1, keepdim=True) + EPS) * w,
    "mean of half a row": lambda x, y, w: (
        x * (x[..., :8].pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * w
    ),
    "length one": lambda x, y, w: F.normalize(x, dim=-1) * w,
    "cubes": lambda x, y, w: x * (x.pow(3).mean(-1, keepdim=True) + EPS).rsqrt() * w,
}


@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function):
    assert "rms_norm" not in rules_in(function, X, Y, W)


def test_a_weight_along_another_axis_is_not_part_of_it():
    found = matches(lambda x, w: x * (x.pow(2).mean(1, True) + EPS).rsqrt() * w, X, W)

    assert [m.values["weight"] for m in found if "weight" in m.values] == []
    assert len(found[0].nodes) < len(matches(SPELLINGS["rsqrt of the mean"], X, W)[0].nodes)
