"""Forward and backward kernels of one operation are put back together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import fuseopt
from fuseopt import sites
from fuseopt.events import Reason, RolledBack
from fuseopt.verify import graph as graph_module


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def block(x, w):
    """Two chains that share no operation, with a product between them."""
    return F.layer_norm(F.gelu(x * 2) @ w, (8,)) * 1.5


@pytest.fixture
def args():
    torch.manual_seed(0)
    return [torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]


def refuse_gelu(monkeypatch, half):
    """Let the check of the kernel for gelu, or for its derivative, fail."""
    verified = sites._verified

    def wrong(site, kernel, store):
        ops = {str(n.target) for n in site.region.nodes}
        found = "forward" if "aten.gelu.default" in ops else "neither"
        found = "backward" if "aten.gelu_backward.default" in ops else found
        verdict = verified(site, kernel, store)
        return replace(verdict, passed=False, detail="off") if found == half else verdict

    monkeypatch.setattr(sites, "_verified", wrong)


def step(function, args):
    out = function(*args)
    return [out, *torch.autograd.grad((out * out).sum(), args)]


def running(optimized):
    return {(r.graph, r.kernel) for r in optimized.report.regions if r.running}


def names(optimized, graph):
    return sorted(name for number, name in running(optimized) if number == graph)


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_the_other_half_of_an_operation_is_put_back_too(monkeypatch, args, half):
    whole = fuseopt.optimize(block)
    step(whole, args)
    assert [len(names(whole, graph)) for graph in (0, 1)] == [2, 2]
    torch._dynamo.reset()
    refuse_gelu(monkeypatch, half)

    optimized = fuseopt.optimize(block)
    for _ in range(2):
        for ours, theirs in zip(step(optimized, args), step(block, args), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    rolled = optimized.log.of(RolledBack)
    assert {e.graph for e in rolled} == {0, 1}
    assert all(e.code is Reason.WRONG for e in rolled)
    assert [len(names(optimized, graph)) for graph in (0, 1)] == [1, 1]
    assert "other half" in " ".join(e.reason for e in rolled)


@pytest.mark.parametrize("half", [0, 1], ids=["forward", "backward"])
def test_a_graph_that_disagrees_takes_the_other_one_with_it(monkeypatch, args, half):
    judge = graph_module.FirstCallCheck._judge

    def wrong(self, *given):
        verdict = judge(self, *given)
        return replace(verdict, passed=verdict.passed and self.number != half)

    monkeypatch.setattr(graph_module.FirstCallCheck, "_judge", wrong)
    optimized = fuseopt.optimize(block)

    for _ in range(2):
        for ours, theirs in zip(step(optimized, args), step(block, args), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    assert not running(optimized)
