"""Computing equal values once.

    a = clone(bias)                         a = clone(bias)
    p = attention(q, k, v, a)       ->      p = attention(q, k, v, a)
    b = clone(bias)                         s = attention(r, l, w, a)
    s = attention(r, l, w, b)

Layers that derive the same mask or bias each compute it anew; one kernel would otherwise write a
copy for each layer, all alive at once. Values that leave the graph, or that it writes to, keep
memory of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fuseopt.graph.clean import alias_roots


def share_equal_values(gm: fx.GraphModule) -> int:
    """Replace nodes that compute what an earlier one does by that one; return how many."""
    escaping = _escaping(gm.graph)
    known: dict[Any, fx.Node] = {}
    shared = 0
    for node in list(gm.graph.nodes):
        if node in escaping or not _is_pure(node):
            continue
        first = known.setdefault(_key((node.target, node.args, dict(node.kwargs))), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            shared += 1
    if shared:
        gm.recompile()
    return shared


def _escaping(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory is returned or written to."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "output" or (
            isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        ):
            for source in node.all_input_nodes:
                found |= alias_roots(source)
    return found


def _is_pure(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    # The contents of new memory are nobody's value.
    is_empty = "empty" in node.target._opname
    return not (is_random or is_empty or node.target._schema.is_mutable)


def _key(value: Any) -> Any:
    """A hashable form of arguments in which 1, 1.0 and True differ."""
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    if isinstance(value, (bool, int, float, complex)):
        return (type(value), repr(value))
    return value
