"""Size symbols of dynamic graphs: the nodes that hold them, and the references that need them."""

from __future__ import annotations

import pytest
import torch
from regions import node_of, random, trace

from fuseopt.graph.extract import extract
from fuseopt.graph.symbols import size_nodes


def test_a_stride_that_is_no_size_is_read_from_the_tensor():
    gm = trace(lambda x: x * 2, random(8, 20)[:, ::3], dynamic=True)
    (x,) = gm.graph.find_nodes(op="placeholder")
    stride = x.meta["val"].stride(0).node.expr

    (made,) = size_nodes(gm.graph, [stride], [x])

    assert made.target == torch.ops.aten.sym_stride.int
    assert made.args == (x, 0)


def test_a_symbol_that_no_tensor_has_is_told():
    gm = trace(lambda x, y: x * y.sum(), random(8, 20), random(5), dynamic=True)
    x, y = gm.graph.find_nodes(op="placeholder")

    with pytest.raises(LookupError, match="no tensor of the region has"):
        size_nodes(gm.graph, [y.meta["val"].shape[0].node.expr], [x])


def test_arithmetic_on_sizes_comes_along_into_a_reference():
    def flat(x):
        return x.reshape(x.shape[0] * x.shape[1]) * 2

    gm = trace(flat, random(3, 4), dynamic=True)
    (x,) = gm.graph.find_nodes(op="placeholder")
    result = node_of(gm, "mul")
    between = [n for n in gm.graph.nodes if "view" in n.name or "reshape" in n.name]

    reference = extract([*between, result], [x], [result])

    given = random(3, 4)
    assert torch.equal(reference(given)[0], given.flatten() * 2)


def test_a_view_of_a_graph_s_own_size_product_is_fused():
    """The reference used to be refused, and the whole graph with it."""
    from fuseopt.config import Config
    from fuseopt.events import Log
    from fuseopt.graph.form import Input, NormalisedGraph
    from fuseopt.plan import plan_graph

    gm = trace(lambda x: x.reshape(x.shape[0] * x.shape[1]).exp() * 2, random(3, 4), dynamic=True)
    graph = NormalisedGraph(gm, "inference", 0, (Input("input"),))

    plan = plan_graph(graph, torch.device("cpu"), Config(), Log())

    assert len(plan.sites) == 1
