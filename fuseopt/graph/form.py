"""The form in which every pass receives a graph: functional ATen with true metadata.

A normalised graph
- calls ATen overloads, `operator` functions on sizes and, rarely, higher-order operators;
- has one output node, whose argument is a tuple;
- mutates nothing, except that an input the model writes to is the target of one trailing
  `aten.copy_(input, value)` just before the output;
- has `meta["val"]` (fake tensors or symbolic sizes) on every node that has a value;
- keeps `meta["stack_trace"]` and `meta["nn_module_stack"]` where tracing knew them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fuseopt.graph.pair import Pair
from fuseopt.ops.dropout import KEEP

LEVELS = ("inference", "forward", "backward")
KINDS = ("parameter", "buffer", "input", "saved", "tangent")

_WITHOUT_VALUE = ("output", "placeholder")


@dataclass(frozen=True, slots=True)
class Input:
    """What one placeholder of a graph stands for.

    kind: "parameter" and "buffer" are the model's own tensors, the same ones on every call;
    "input" comes from the caller (a tensor, or a size as an int); a backward graph also has
    "saved" tensors of the forward graph and "tangent"s, the gradients of its outputs.
    name: the dotted path of a parameter or buffer, otherwise "".
    """

    kind: str
    name: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    @property
    def is_static(self) -> bool:
        """Whether the same tensor is passed on every call."""
        return self.kind in ("parameter", "buffer")


@dataclass(frozen=True, slots=True)
class NormalisedGraph:
    """One graph in the form above.

    gm: the graph; its placeholders come in call order and take tensors or ints.
    level: "inference" (nothing in it needs gradients), or "forward" and "backward" of training.
    number: its number in the log.
    inputs: what each placeholder stands for, in the same order.
    pair: shared by the two graphs of a training step.
    """

    gm: fx.GraphModule
    level: str
    number: int
    inputs: tuple[Input, ...]
    pair: Pair = field(default_factory=Pair)

    def __post_init__(self) -> None:
        assert self.level in LEVELS, self.level


def check_form(graph: NormalisedGraph) -> None:
    """Raise `AssertionError` where a graph is not in the form that passes rely on."""
    graph.gm.graph.lint()
    nodes = list(graph.gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    assert len(placeholders) == len(graph.inputs), "one Input for each placeholder"
    assert nodes[: len(placeholders)] == placeholders, "placeholders come first"
    assert nodes[-1].op == "output", "the output comes last"
    assert isinstance(nodes[-1].args[0], tuple), "the output is a tuple"
    for node in nodes:
        if node.op not in _WITHOUT_VALUE:
            assert has_value(node), f"{node.format_node()} has no meta['val']"


def output_values(output: fx.Node) -> tuple[Any, ...]:
    """Return what an output node returns, one by one."""
    values = output.args[0]
    assert isinstance(values, (tuple, list))
    return tuple(values)


def written_inputs(graph: fx.GraphModule) -> frozenset[int]:
    """Return the positions of the inputs that a graph writes to."""
    places = {n: i for i, n in enumerate(graph.graph.find_nodes(op="placeholder"))}
    found: set[int] = set()
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            found |= {places[n] for n in node.all_input_nodes if n in places}
    return frozenset(found)


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a copy of the graph; parameters and constants are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def has_value(node: fx.Node) -> bool:
    """Whether a node's value is described, or it is a subgraph or an op that returns nothing."""
    if "val" in node.meta:
        return True
    if node.op == "get_attr":
        return isinstance(getattr(node.graph.owning_module, str(node.target), None), fx.GraphModule)
    target = node.target
    return isinstance(target, OpOverload) and not target._schema.returns


def is_view(node: fx.Node) -> bool:
    """Whether a node's result shares storage with its first argument by the op's schema."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if target is torch.ops.aten._unsafe_view.default:  # a view of a tensor nobody else sees
        return True
    returns = target._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def count_kernels(gm: fx.GraphModule) -> int:
    """Count the nodes that compute a tensor, each at least one kernel launch when run as it is."""
    return sum(node.op == "call_function" and _computes(node) for node in gm.graph.nodes)


def _computes(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or is_view(node):
        return False
    if node.target is KEEP:  # what uses it draws it
        return False
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) for v in values)
