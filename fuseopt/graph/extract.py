"""Taking the nodes of a region out of a graph, as a graph of their own: the region's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx


def extract(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    sizes: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """Return a graph that computes `outputs` from the values of `inputs` and then `sizes`.

    nodes: what may be computed, in any order; constants of the module and arithmetic on sizes come
    along. A tensor that is none of these is one whose values do not matter (`zeros_like(x)`), and
    is made of zeros; a size that is none of these has its example value.
    The result returns a tuple and keeps the metadata of its nodes.
    """
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate((*inputs, *sizes)):
        made[node] = graph.placeholder(f"input_{number}")
        made[node].meta = dict(node.meta)
    known = {*nodes, *outputs}
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, expanded = stack.pop()
        if node in made:
            continue
        if node.op != "get_attr" and node not in known and not _is_size_arithmetic(node):
            made[node] = _stand_in(graph, node)
        elif expanded:
            made[node] = graph.node_copy(node, lambda n: made[n])
            made[node].meta = dict(node.meta)
        else:
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(node.all_input_nodes))
    graph.output(tuple(made[o] for o in outputs))
    owner = outputs[0].graph.owning_module
    return fx.GraphModule(owner if owner is not None else {}, graph)


def _is_size_arithmetic(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt)


def _stand_in(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    if isinstance(value, torch.SymInt):
        made = graph.call_function(int, (int(value.node.hint),))
        made.meta = dict(node.meta)
        return made
    if not isinstance(value, torch.Tensor):
        raise AssertionError(f"{node.name} is neither computed nor an input of the region")
    shape = [s if isinstance(s, int) else int(s.node.hint) for s in value.shape]
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    made = graph.call_function(torch.ops.aten.zeros.default, (shape,), options)
    made.meta = dict(node.meta)
    return made
