"""Composites written in pieces: each against ATen, and what training saves once they are."""

from __future__ import annotations

import copy
from operator import getitem
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._decomp import decomposition_table
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fuseopt.graph.joint import write_composites
from fuseopt.graph.lift import target_name
from fuseopt.graph.pieces import COMPOSITES
from fuseopt.ops import OPS
from fuseopt.ops.declare import Sample, T


def draw(spec: T, generator: torch.Generator) -> torch.Tensor:
    """A tensor as a sample asks for it."""
    if spec.kind == "i":
        return torch.randint(int(spec.low), int(spec.high), spec.shape, generator=generator)
    return torch.rand(spec.shape, generator=generator) * (spec.high - spec.low) + spec.low


def graph_of(target: str, sample: Sample, change=lambda t: t) -> tuple[fx.GraphModule, list[Any]]:
    """A graph that returns all results of one call, and its inputs."""
    generator = torch.Generator().manual_seed(0)
    graph = fx.Graph()
    inputs: list[torch.Tensor] = []

    def replace(leaf: Any) -> Any:
        if not isinstance(leaf, T):
            return leaf
        inputs.append(change(draw(leaf, generator)))
        node = graph.placeholder(f"t{len(inputs)}")
        node.meta["val"] = inputs[-1]
        return node

    is_leaf = lambda x: isinstance(x, T)  # noqa: E731
    args = pytree.tree_map(replace, sample.args, is_leaf=is_leaf)
    kwargs = pytree.tree_map(replace, sample.kwargs, is_leaf=is_leaf)
    namespace, name, variant = target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    node = graph.call_function(op, args, kwargs)
    given = fx.map_arg((args, kwargs), lambda n: n.meta["val"].clone())
    # Some have no kernel for the CPU.
    run = decomposition_table[op] if target == "aten._fused_rms_norm_backward.default" else op
    node.meta["val"] = value = run(*given[0], **given[1])
    results = [node]
    if not isinstance(value, torch.Tensor):
        results = []
        for place, part in enumerate(value):
            if isinstance(part, torch.Tensor) and part.numel():
                item = graph.call_function(getitem, (node, place))
                item.meta["val"] = part
                results.append(item)
    graph.output(tuple(results))
    return fx.GraphModule({}, graph), inputs


def wanted_of(gm: fx.GraphModule) -> list[torch.Tensor]:
    """What ATen gave for the results of a graph."""
    return [n.meta["val"] for n in gm.graph.output_node().args[0]]


def cases() -> list[Any]:
    return [
        pytest.param(target, sample, id=f"{target}-{number}")
        for target, declared in COMPOSITES.items()
        for number, sample in enumerate(declared.samples)
    ]


@pytest.mark.parametrize(("target", "sample"), cases())
def test_pieces_equal_the_composite(target: str, sample: Sample) -> None:
    gm, inputs = graph_of(target, sample)
    written = copy.deepcopy(gm)
    write_composites(written, lambda _: True)
    calls = [n for n in written.graph.nodes if n.op == "call_function"]
    assert target not in map(target_name, calls)
    assert all(target_name(n) in OPS or target_name(n) == "getitem" for n in calls)
    for got, want in zip(written(*inputs), wanted_of(gm), strict=True):
        assert got.dtype == want.dtype
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6)


def parts_of(joint_of, *args: torch.Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a function, composites written in pieces."""
    torch._dynamo.reset()
    found: list[fx.GraphModule] = []

    def partition(joint, *rest, **options):
        write_composites(joint, lambda _: True)
        parts = min_cut_rematerialization_partition(joint, *rest, **options)
        found.extend(parts)
        return parts

    def backend(gm, examples):
        return aot_module_simplified(
            gm,
            examples,
            fw_compiler=lambda part, _: part,
            bw_compiler=lambda part, _: part,
            partition_fn=partition,
            decompositions={},
        )

    torch.compile(joint_of, backend=backend, fullgraph=True)(*args)
    return found[0], found[1]


def names(gm: fx.GraphModule) -> list[str]:
    return [target_name(n) for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_cross_entropy_sums_no_row(smoothing, weighted) -> None:
    x = torch.randn(8, 50, requires_grad=True)
    t = torch.randint(0, 50, (8,))
    w = torch.rand(50) if weighted else None

    def loss(x, t):
        return F.cross_entropy(x, t, w, label_smoothing=smoothing)

    _, backward = parts_of(loss, x, t)
    sums = [n for n in backward.graph.nodes if target_name(n).startswith("aten.sum.dim")]
    assert all(n.args[0].meta["val"].numel() <= 50 for n in sums)
    assert names(backward).count("aten.exp.default") == 1


def test_the_sum_of_a_row_of_a_product_of_other_ranks() -> None:
    def backward(column, row, y):
        grad = column.expand(4, 4) * row
        return torch.ops.aten._log_softmax_backward_data.default(grad, y, 1, torch.float32)

    inputs = torch.randn(4, 1), torch.randn(1, 4, 1), torch.randn(1, 4, 4).log_softmax(1)
    written = make_fx(backward, tracing_mode="fake")(*inputs)
    write_composites(written, lambda _: True)
    torch.testing.assert_close(written(*inputs), backward(*inputs))


def test_a_result_keeps_the_strides_that_pytorch_gives_it() -> None:
    x = torch.randn(4, 6, 5, requires_grad=True).transpose(1, 2)
    norm = torch.nn.LayerNorm(6)
    forward, _ = parts_of(lambda x: norm(x), x)
    result = forward.graph.output_node().args[0][0].meta["val"]
    assert result.stride() == norm(x).stride()


def test_softmax_keeps_its_result_unless_what_it_read_was_narrower() -> None:
    def shares(x):
        return torch.softmax(x * 2, -1, dtype=torch.float32)

    for dtype, wanted in ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)):
        x = torch.randn(8, 50, dtype=dtype, requires_grad=True)
        forward, _ = parts_of(lambda x: shares(x).square(), x)
        _, *saved = (n.meta["val"] for n in forward.graph.output_node().args[0])
        assert [t.dtype for t in saved if t.shape == (8, 50)] == [wanted]


def test_composites_stay_where_no_kernels_run() -> None:
    gm, _ = graph_of("aten._softmax.default", COMPOSITES["aten._softmax.default"].samples[0])
    assert write_composites(gm, lambda _: False) == 0
    assert names(gm) == ["aten._softmax.default"]


def test_a_tensor_repeated_by_cat_is_read_again() -> None:
    x = torch.randn(3, 4, requires_grad=True)

    def both(x):
        y = x.sin()
        return torch.cat([y, y], -1).cos()

    forward, _ = parts_of(both, x)
    assert "aten.cat.default" not in names(forward)
    torch.testing.assert_close(forward(x)[0], both(x))
