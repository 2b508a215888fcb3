"""Drop the nodes of an inference graph that compute nothing.

    detach(x) + y; _assert_tensor_metadata(x, ...)   ->   x + y

A node that only renames its input is dropped when nobody can tell the difference: `detach`,
`alias` and `lift_fresh_copy` stay where an output may share their storage, since the caller
would otherwise receive the input (or a constant) itself and write into it.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

aten = torch.ops.aten

_RENAMES = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_ASSERTIONS = (aten._assert_tensor_metadata.default,)


def clean(gm: fx.GraphModule) -> None:
    """Drop the no-op nodes of a graph in place."""
    inherit_locations(gm)
    shared = _shared_with_outputs(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target in _ASSERTIONS:
            gm.graph.erase_node(node)
        elif node.target in _RENAMES and node not in shared:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()
    gm.recompile()


def inherit_locations(gm: fx.GraphModule) -> None:
    """Give a node without a stack trace the location of an operand that has one.

    A view of an updated tensor is regenerated at the end of the trace, by no line of user code.
    """
    for node in gm.graph.nodes:
        if node.op == "call_function" and not node.meta.get("stack_trace"):
            _inherit_location(node)


def may_alias(node: fx.Node) -> bool:
    """Whether a node's result may share storage with one of its operands.

    A composite op's schema says `Tensor` also where it can return its input or a view of it
    (`einsum`), so that is tried on the fake tensors of its operands.
    """
    if node.op != "call_function" or isinstance(node.meta.get("val"), _NUMBERS):
        return False
    target = node.target
    if not isinstance(target, OpOverload):
        return True
    if any(r.alias_info is not None for r in target._schema.returns):
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    return composite and _shares_storage(node)


def alias_roots(start: fx.Node) -> set[fx.Node]:
    """Return the nodes whose storage a node may share, itself included."""
    seen: set[fx.Node] = set()
    pending = [start]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes if may_alias(node) else ()
    return seen


def _shares_storage(node: fx.Node) -> bool:
    assert isinstance(node.target, OpOverload)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    mode = detect_fake_mode((args, kwargs))
    if mode is None:
        return True
    # The Python dispatcher has the composites that take symbolic sizes.
    with mode, torch.no_grad(), enable_python_dispatcher():
        results = node.target(*args, **kwargs)
    given = {_storage(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
    return any(
        _storage(t) in given for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _shared_with_outputs(graph: fx.Graph) -> set[fx.Node]:
    outputs = graph.output_node().all_input_nodes
    return set().union(*(alias_roots(node) for node in outputs)) if outputs else set()


def _inherit_location(node: fx.Node) -> None:
    for operand in node.all_input_nodes:
        if operand.meta.get("stack_trace"):
            node.meta["stack_trace"] = operand.meta["stack_trace"]
            if not node.meta.get("nn_module_stack"):
                node.meta["nn_module_stack"] = operand.meta.get("nn_module_stack", {})
            return
