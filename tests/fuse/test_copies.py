"""Values that two regions share are computed again where that moves less memory."""

from __future__ import annotations

import torch
from plans import planned
from regions import random

from fuseopt.ir.evaluate import evaluate
from fuseopt.verify.compare import judge
from fuseopt.verify.truth import run_reference, run_truth

HALF = torch.bfloat16
LONG = 20000  # a row that is too long to keep sums over rows of


def layer_norm_backward(x, w, dy):
    wide, g = x.float(), dy.float()
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + 1e-5)
    normal, scaled = (wide - mean) * scale, g * w.float()
    along = normal * (scaled * normal).mean(-1, keepdim=True)
    dx = scale * (scaled - scaled.mean(-1, keepdim=True) - along)
    return dx.to(x.dtype), (g * normal).sum(0).to(w.dtype), g.sum(0).to(w.dtype)


def sizes(nodes):
    return sorted({tuple(n.meta["val"].shape) for n in nodes})


def test_a_norm_of_long_rows_passes_statistics_alone():
    args = (random(300, LONG, dtype=HALF), random(LONG, dtype=HALF), random(300, LONG, dtype=HALF))

    found = planned(layer_norm_backward, *args)

    assert len(found.sites) == 2
    into_input, into_weights = sorted(found.sites, key=lambda s: -len(s.region.nodes))
    assert sizes(into_input.region.outputs) == [(300, 1), (300, LONG)]
    assert sizes(into_weights.region.outputs) == [(LONG,)]
    read = [n for n in into_weights.region.inputs if n.meta["val"].numel() == 300 * LONG]
    assert [n.op for n in read] == ["placeholder"] * 2


def test_the_copies_compute_what_the_originals_did():
    args = (random(260, LONG, dtype=HALF), random(LONG, dtype=HALF), random(260, LONG, dtype=HALF))
    found = planned(layer_norm_backward, *args)

    found.graph.gm.graph.lint()
    for ours, theirs in zip(found.graph.gm(*args), layer_norm_backward(*args), strict=True):
        assert torch.equal(ours, theirs)
    (site,) = (s for s in found.sites if len(s.region.outputs) == 2 and len(s.region.inputs) == 4)
    statistics = {1: random(260, 1).abs()}
    inputs = [
        statistics.setdefault(n.meta["val"].shape[-1], args[0]).clone() for n in site.region.inputs
    ]
    results = evaluate(site.region.kernel, inputs)
    eager = run_reference(site.reference, inputs)
    truth = run_truth(site.reference, inputs)
    assert all(judge(*three).passed for three in zip(results, eager, truth, strict=True))


def test_what_an_opaque_operation_reads_is_passed_on():
    def function(x, w):
        y = torch.tanh(x) * 2
        return (y.float() * 3).to(HALF) @ w, torch.cumsum(y, 0), y

    found = planned(function, random(64, 32, dtype=HALF), random(32, 8, dtype=HALF))

    names = [n.name for n in found.graph.gm.graph.nodes]
    assert sum(n.startswith("tanh") for n in names) == 1


def test_a_value_as_small_as_what_makes_it_is_passed_on():
    """Between 16-bit tensors a copy would read as much as is written and read without it."""

    def function(x, w):
        y = x * 2 + w
        first = torch.softmax(y, -1)
        return first, torch.softmax(y.sum(0) + first.sum(0), -1)

    before = planned(function, random(64, 32), random(64, 32))
    names = [n.name for n in before.graph.gm.graph.nodes]

    assert sum(n.startswith("mul") for n in names) == 1
