"""Constant folding: what depends on no input is computed once, when the graph is compiled.

    arange(8) <= arange(8)[:, None] -> scaled_dot_product_attention(q, k, v, mask)
    ->  get_attr(_folded_0) -> scaled_dot_product_attention(q, k, v, mask)

A value that a single fusable op uses stays in the graph: there it costs arithmetic, not memory.
Constants that an output may share storage with stay as well, for the caller may write to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.graph.clean import alias_roots

LARGEST = 1 << 26  # bytes of one folded tensor


def fold_constants(
    gm: fx.GraphModule,
    is_free: Callable[[fx.Node], bool],
    is_fusable: Callable[[fx.Node], bool],
) -> int:
    """Fold constants of a graph in place and return how many tensors were folded.

    is_free: nodes that cost nothing inside a region (views, fills, ranges) are not worth folding.
    is_fusable: a constant whose only user is one of these is left to the fuser.
    """
    constant = _constant_nodes(gm.graph)
    shared = _shared_with_outputs(gm.graph)
    wanted = [
        node
        for node in gm.graph.nodes
        if node in constant
        and node not in shared
        and _is_worth_folding(node, constant, is_free, is_fusable)
    ]
    values: dict[fx.Node, Any] = {}
    for number, node in enumerate(wanted):
        _replace(gm, node, f"_folded_{number}", evaluate(node, values))
    if wanted:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return len(wanted)


def _constant_nodes(graph: fx.Graph) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and _is_pure(node) and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") == "_operator"
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return all(_is_static(v) for v in values)


def _is_static(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return all(isinstance(s, int) for s in (*value.shape, *value.stride()))


def _is_worth_folding(
    node: fx.Node,
    constant: set[fx.Node],
    is_free: Callable[[fx.Node], bool],
    is_fusable: Callable[[fx.Node], bool],
) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.numel() * value.itemsize > LARGEST:
        return False
    users = [u for u in node.users if u not in constant]
    if not users or _all_below(node, is_free):
        return False
    if len(users) > 1 or not (is_fusable(users[0]) or is_free(users[0])):
        return True
    return not _all_below(node, lambda n: is_free(n) or is_fusable(n))


def _all_below(node: fx.Node, holds: Callable[[fx.Node], bool]) -> bool:
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if not holds(current):
            return False
        stack.extend(current.all_input_nodes)
    return True


def _shared_with_outputs(graph: fx.Graph) -> set[fx.Node]:
    outputs = graph.output_node().all_input_nodes
    return set().union(*(alias_roots(node) for node in outputs)) if outputs else set()


def evaluate(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Compute what a node that depends on no input gives; `values` keeps what is known."""
    if node not in values:
        args = fx.map_arg(node.args, lambda n: evaluate(n, values))
        kwargs = fx.map_arg(node.kwargs, lambda n: evaluate(n, values))
        with torch.no_grad(), _disable_current_modes():
            if isinstance(node.target, str):
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)
    return values[node]


def _replace(gm: fx.GraphModule, node: fx.Node, name: str, value: torch.Tensor) -> None:
    gm.register_buffer(name, value, persistent=False)
    with gm.graph.inserting_before(node):
        made = gm.graph.get_attr(name)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
