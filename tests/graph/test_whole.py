"""Composites that were written in pieces become whole where the pieces have no kernel."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

import fuseopt
from fuseopt import compiler
from fuseopt.events import FellBack, RegionFused, RolledBack
from fuseopt.graph import whole
from fuseopt.runtime import build


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def norms(x, w, b):
    return (F.layer_norm(x, (12,), w, b) * 2).tanh()


def softmax(x, w, b):
    return F.softmax(x * w, -1) * b


def loss(x, w, b):
    return (
        F.cross_entropy(x * 2, torch.arange(x.shape[0]) % 12, label_smoothing=0.1)
        + w.sum() * b.sum()
    )


def arguments():
    torch.manual_seed(0)
    return [torch.randn(*s, requires_grad=True) for s in ((6, 12), (12,), (12,))]


def gradients(function):
    given = arguments()
    function(*given).sum().backward()
    return [g.grad for g in given]


@pytest.fixture
def ran(monkeypatch):
    """The ops of each graph as it runs in the end."""
    seen = []
    splice = compiler.splice

    def spied(gm, calls):
        made = splice(gm, calls)
        ops = [n.target for n in made.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        seen.append(list(map(str, ops)))
        return made

    monkeypatch.setattr(compiler, "splice", spied)
    return seen


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (norms, "aten.native_layer_norm.default", None),
        (softmax, "aten._softmax.default", "aten._softmax_backward_data.default"),
        (loss, "aten._log_softmax.default", None),
    ],
)
def test_what_no_kernel_is_built_for_runs_whole(function, forward, backward, ran, monkeypatch):
    monkeypatch.setattr(build, "generate", _refuse)
    optimized = fuseopt.optimize(function)

    found = gradients(optimized)

    assert optimized.log.of(RolledBack)
    assert not optimized.log.of(RegionFused)
    assert forward in ran[0]
    assert "aten.var_mean.correction" not in ran[0]
    assert backward is None or backward in ran[1]
    for ours, theirs in zip(found, gradients(function), strict=True):
        torch.testing.assert_close(ours, theirs)


def _refuse(*args, **kwargs):
    from fuseopt.errors import KernelError

    raise KernelError("made to fail")


def test_what_kernels_compute_stays_in_them(ran):
    optimized = fuseopt.optimize(norms)

    found = gradients(optimized)

    assert optimized.log.of(RegionFused)
    assert not any("layer_norm" in op for ops in ran for op in ops)
    for ours, theirs in zip(found, gradients(norms), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_only_what_may_change_is_made_whole():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    composite = graph.call_function(torch.ops.aten.aminmax.default, (x,))
    composite.meta["val"] = (torch.empty(()), torch.empty(()))
    low = graph.call_function(torch.ops.aten.amin.default, (x,))
    high = graph.call_function(torch.ops.aten.amax.default, (x,))
    graph.output((low, high))
    whole.remember(composite, {0: low, 1: high})
    graph.erase_node(composite)
    gm = torch.fx.GraphModule({}, graph)
    values = torch.randn(7)

    assert whole.make_whole(gm, lambda node: node is low) == 0
    assert low.target is torch.ops.aten.amin.default

    assert whole.make_whole(gm, lambda _: True) == 1
    assert (low.target, high.target) == (operator.getitem, operator.getitem)
    assert gm(values) == (values.min(), values.max())


def test_a_result_that_is_a_view_of_what_a_kernel_gives_stays_in_pieces(ran):
    """A group norm's is: its pieces have one more dimension."""
    optimized = fuseopt.optimize(lambda x: F.group_norm(x, 3))
    x = torch.randn(4, 6, requires_grad=True)

    optimized(x).sum().backward()

    assert not optimized.log.of(FellBack)
    assert len(optimized.log.of(RegionFused)) == 2
    assert not any("group_norm" in op for graph in ran for op in graph)
