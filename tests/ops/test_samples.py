"""Every declared op, on the sample calls of its declaration: lowered and evaluated against ATen."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuseopt.graph.lift import lift
from fuseopt.ir import dims
from fuseopt.ir.evaluate import evaluate
from fuseopt.ir.kernel import TensorParam
from fuseopt.lower.lower import Output, lower, used_inputs
from fuseopt.ops import OPS
from fuseopt.ops.declare import Sample, T

DTYPES = {"f": torch.float32, "i": torch.int64, "b": torch.bool}


def overload(target: str) -> Any:
    """The ATen overload of that name."""
    namespace, name, variant = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def draw(spec: T, generator: torch.Generator) -> torch.Tensor:
    """A tensor as a sample asks for it."""
    if spec.kind == "b":
        return torch.rand(spec.shape, generator=generator) > 0.4
    if spec.kind == "i":
        return torch.randint(int(spec.low), int(spec.high), spec.shape, generator=generator)
    return torch.rand(spec.shape, generator=generator) * (spec.high - spec.low) + spec.low


def one_node_graph(target: str, sample: Sample) -> tuple[list[fx.Node], list[torch.Tensor], Any]:
    """A graph of one call, its nodes (the call and its outputs), its inputs and the result."""
    generator = torch.Generator().manual_seed(zlib.crc32(target.encode()))
    graph = fx.Graph()
    tensors: list[torch.Tensor] = []

    def replace(leaf: Any) -> Any:
        if not isinstance(leaf, T):
            return leaf
        tensors.append(draw(leaf, generator))
        node = graph.placeholder(f"t{len(tensors)}")
        node.meta["val"] = tensors[-1]
        return node

    is_leaf = lambda x: isinstance(x, T)  # noqa: E731
    args = pytree.tree_map(replace, sample.args, is_leaf=is_leaf)
    kwargs = pytree.tree_map(replace, sample.kwargs, is_leaf=is_leaf)
    node = graph.call_function(overload(target), args, kwargs)
    concrete = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    result = overload(target)(*concrete[0], **concrete[1])
    node.meta["val"] = result
    return [node], tensors, result


def accepts(target: str, sample: Sample) -> bool:
    """Whether ATen takes this sample call for this overload."""
    try:
        one_node_graph(target, sample)
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return False
    return True


def cases() -> list[Any]:
    """(target, sample) for every sample of every declared op and each overload that takes it."""
    return [
        pytest.param(target, sample, id=f"{target}-{number}")
        for definition in dict.fromkeys(OPS.values())
        for number, sample in enumerate(definition.samples)
        for target in definition.targets
        if accepts(target, sample)
    ]


@pytest.mark.parametrize(("target", "sample"), cases())
def test_lowered_definition_equals_aten(target: str, sample: Sample) -> None:
    nodes, _, result = one_node_graph(target, sample)
    lifted = lift(nodes)
    made = lifted.exprs[nodes[0]]
    exprs = made if isinstance(made, tuple) else (made,)
    wanted = list(result) if isinstance(result, (tuple, list)) else [result]
    inputs = [n.meta["val"] for n in lifted.inputs]
    params = [TensorParam(t.dtype, tuple(t.shape), tuple(t.stride())) for t in inputs]

    for expr, want in zip(exprs, wanted, strict=False):
        if expr is None:
            continue
        strides = torch.empty(want.shape).stride()
        output = Output(expr, dims.shape_of(strides))
        kernel = lower(params, [output])
        (got,) = evaluate(kernel, [inputs[i] for i in used_inputs([output])])
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6, check_stride=False)
