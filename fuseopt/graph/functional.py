"""Inference: trace Dynamo's graph to functional ATen before dispatch, where composites are whole.

    F.layer_norm(x, (8,), w, b); y.add_(1)   ->   aten.layer_norm(x, [8], w, b); aten.add(y, 1)

The traced graph is run directly, with no runtime wrapper around it: outputs that are views of
inputs are views because the graph contains the view, and inputs the model writes to are written
by trailing `aten.copy_` nodes. What this cannot represent is refused with `NotFunctionalError`, and
AOTAutograd takes the graph instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import GraphSignature
from torch._functorch.aot_autograd import aot_export_module
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fuseopt.errors import CaptureError
from fuseopt.graph.clean import alias_roots, clean
from fuseopt.graph.form import copy_graph, output_values

aten = torch.ops.aten

_SET_GRAD = torch._C._set_grad_enabled
# Calls that change how the operations after them behave.
_REGIONS = frozenset(
    {
        "_enter_autocast",
        "_exit_autocast",
        "_enter_inference_mode",
        "_exit_inference_mode",
        "_vmap_increment_nesting",
        "_grad_increment_nesting",
        "_jvp_increment_nesting",
        "requires_grad_",
        "retain_grad",
    }
)


class NotFunctionalError(CaptureError):
    """The graph is not a plain function of its inputs; the text says in what way."""


def trace_functional(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
    """Trace a Dynamo graph to functional ATen; `NotFunctionalError` says why it cannot be.

    The result takes the same inputs, returns the same outputs as a tuple, and needs no gradient
    mode: a graph that turns gradients off for all it computes is traced without the switches.
    """
    why = _why_not(gm, example_inputs)
    if why:
        raise NotFunctionalError(why)
    if any(node.target is _SET_GRAD for node in gm.graph.nodes):
        gm = _without_grad_switches(gm)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not _may_need_grad(example_inputs)):
        traced, signature = aot_export_module(
            gm, example_inputs, trace_joint=False, pre_dispatch=True, decompositions={}
        )
    assert isinstance(traced, fx.GraphModule)
    if signature.parameters or signature.buffers:
        raise NotFunctionalError("the graph holds parameters of its own")
    _drop_tokens(traced, len(signature.input_tokens))
    _write_inputs(traced, signature)
    clean(traced)
    return traced


def _why_not(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    if torch._C._is_any_autocast_enabled():
        return "autocast is on"
    if not all(_is_plain(x) for x in example_inputs):
        return "an input is a tensor subclass"
    if _may_need_grad(example_inputs) and _computes_with_grad(gm):
        return "gradients may be needed"
    for node in gm.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            return f"it calls the higher-order operator {node.target.name()}"
        if _name(node) in _REGIONS:
            return f"it calls {_name(node)}"
        if node.target is _SET_GRAD and _computes_with_grad(gm):
            return "it switches gradients on or off"
    return ""


def _is_plain(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or not is_traceable_wrapper_subclass(value)


def _may_need_grad(example_inputs: Sequence[Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _computes_with_grad(gm: fx.GraphModule) -> bool:
    enabled = torch.is_grad_enabled()
    for node in gm.graph.nodes:
        if node.target is _SET_GRAD:
            enabled = node.args[0]
        elif enabled and node.op in ("call_function", "call_method", "call_module"):
            return True
    return False


def _without_grad_switches(gm: fx.GraphModule) -> fx.GraphModule:
    # Dynamo keeps its graph (it may be run as the fallback), so a copy is changed.
    copy = copy_graph(gm)
    for node in list(copy.graph.nodes):
        if node.target is _SET_GRAD:
            copy.graph.erase_node(node)
    copy.recompile()
    return copy


def _drop_tokens(traced: fx.GraphModule, count: int) -> None:
    """Take out the leading inputs and outputs by which effects would be kept in order.

    An op such as `linalg_inv`, whole here, has a part that raises an error and so a token, of which
    nothing is left in the graph but its way through.
    """
    output = traced.graph.output_node()
    outputs = output_values(output)
    tokens = traced.graph.find_nodes(op="placeholder")[:count]
    if list(outputs[:count]) != tokens or any(set(t.users) != {output} for t in tokens):
        raise NotFunctionalError("it has effects that are kept in order by tokens")
    output.args = (outputs[count:],)
    for token in tokens:
        traced.graph.erase_node(token)


def _write_inputs(traced: fx.GraphModule, signature: GraphSignature) -> None:
    """Turn the leading outputs that carry new values of inputs into trailing `copy_` nodes."""
    output = traced.graph.output_node()
    outputs = output_values(output)
    count = len(signature.user_inputs_to_mutate)
    if not count:
        return
    updated, returned = outputs[:count], outputs[count:]
    names = {n.name: n for n in traced.graph.nodes if n.op == "placeholder"}
    targets = [names[signature.user_inputs_to_mutate[n.name]] for n in updated]
    _check_writes(targets, updated, returned)
    with traced.graph.inserting_before(output):
        for target, value in zip(targets, updated, strict=True):
            source = _copied(value, targets)
            copy = traced.graph.call_function(aten.copy_.default, (target, source))
            copy.meta.update(target.meta)
            copy.meta["stack_trace"] = value.meta.get("stack_trace", "")
    output.args = (returned,)
    traced.recompile()


def _copied(value: fx.Node, targets: Sequence[fx.Node]) -> fx.Node:
    # `buffer.copy_(x)` was traced as a copy of its own; writing x once is enough.
    if value.target is not aten.copy.default:
        return value
    source = value.args[1]
    assert isinstance(source, fx.Node)
    return value if alias_roots(source) & set(targets) else source


def _check_writes(
    targets: Sequence[fx.Node], updated: Sequence[fx.Node], returned: Sequence[Any]
) -> None:
    written = set(targets) | set(updated)
    for value in updated:
        # A swap of two inputs would read one of them after it was written.
        if alias_roots(value) & set(targets):
            raise NotFunctionalError("an input is updated with a view of an updated input")
    for value in returned:
        # Eager would return the written input (or a view of it); this graph has a new tensor.
        if isinstance(value, fx.Node) and alias_roots(value) & written:
            raise NotFunctionalError("an output shares storage with an updated input")
