"""Putting the chunked operator in place of a linear layer and its loss, in Dynamo's graph.

    logits = F.linear(x, w)                       h = x[..., :-1, :].reshape(-1, 64)
    z = logits[..., :-1, :].reshape(-1, 1000) ->  loss, ... = linear_cross_entropy(h, w, ...)
    loss = F.cross_entropy(z, t)

What rearranged rows of logits rearranges rows of hidden values, which are shorter. Gradients come
from the operator itself, so that what AOTAutograd traces has no logits in either direction.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from fuseopt.graph.head import Head, example, name_of_op, shape_of
from fuseopt.ops.alignment import HALVES, missing
from fuseopt.ops.declare import compute_dtype
from fuseopt.ops.linear_loss import LINEAR_CROSS_ENTROPY, HeadLoss


def settings_of(head: Head, chunk: int) -> HeadLoss:
    """Return what the operator is told of a head."""
    logits = example(head.linear)
    assert logits is not None
    aligns = logits.is_cuda and logits.dtype in HALVES
    return HeadLoss(
        ignore_index=head.ignore_index,
        smoothing=head.smoothing,
        inner=head.inner,
        outer=head.outer,
        squash=head.squash,
        mean=head.mean,
        chunk=chunk,
        padding=missing(logits.shape[-1]) if aligns else 0,
        wants=wanted_gradients(head),
    )


def wanted_gradients(head: Head) -> tuple[bool, bool, bool]:
    """Return whether gradients of hidden, weight and bias are needed."""
    logits, loss = example(head.linear), example(head.loss)
    assert logits is not None
    assert loss is not None
    flows = logits.requires_grad and loss.requires_grad
    operands = (example(head.hidden), example(head.weight), example(head.bias))
    of_hidden, of_weight, of_bias = (
        bool(flows and t is not None and t.requires_grad) for t in operands
    )
    return of_hidden, of_weight, of_bias


def replace_head(graph: fx.Graph, head: Head, settings: HeadLoss) -> fx.Node:
    """Rewrite a head in place and return the operator's node."""
    logits, loss = example(head.linear), example(head.loss)
    assert logits is not None
    assert loss is not None
    dtype = logits.dtype
    with graph.inserting_before(head.loss):
        add = _Adding(graph, head.loss)
        hidden = _rows(add, head)
        weight = add("t", head.weight) if head.turned else head.weight
        operands = [hidden, weight, head.bias]
        # Autocast converts the operands of a linear layer and leaves the operator's as they are.
        for place, original in enumerate((head.hidden, head.weight, head.bias)):
            given = example(original)
            if given is not None and given.dtype != dtype:
                operands[place] = add("to", operands[place], dtype)
        target = add("reshape", head.target, -1)
        args = (*operands, target, *settings.arguments())
        made = add.call(LINEAR_CROSS_ENTROPY, args)
        result = add.call(operator.getitem, (made, 0))
        if loss.dtype != compute_dtype(dtype):
            result = add("to", result, loss.dtype)
    head.loss.replace_all_uses_with(result)
    for node in reversed(head.steps):
        graph.erase_node(node)
    return made


class _Adding:
    """Adds calls that come from where the loss does."""

    def __init__(self, graph: fx.Graph, like: fx.Node) -> None:
        self.graph = graph
        self.meta = {k: v for k, v in like.meta.items() if k in ("stack_trace", "nn_module_stack")}

    def __call__(self, method: str, *args: Any) -> fx.Node:
        made = self.graph.call_method(method, args)
        made.meta.update(self.meta)
        return made

    def again(self, node: fx.Node, source: fx.Node) -> fx.Node:
        made = self.graph.create_node(node.op, node.target, (source, *node.args[1:]), node.kwargs)
        made.meta.update(self.meta)
        return made

    def call(self, target: Any, args: tuple[Any, ...]) -> fx.Node:
        made = self.graph.call_function(target, args)
        made.meta.update(self.meta)
        return made


def _rows(add: _Adding, head: Head) -> fx.Node:
    """The hidden values as [rows, features], in the order in which the loss has its rows."""
    hidden = head.hidden
    for move in head.moves:
        if name_of_op(move) in ("view", "reshape", "flatten", "unflatten"):
            hidden = _reshaped(add, hidden, move, head.features)
        else:
            hidden = add.again(move, hidden)
    if head.class_dim != len(shape_of(head.steps[-2])) - 1:
        hidden = add("movedim", hidden, head.class_dim, -1)
    return add("reshape", hidden, -1, head.features)


def _reshaped(add: _Adding, hidden: fx.Node, move: fx.Node, features: Any) -> fx.Node:
    shape = shape_of(move)
    varying = [n for n, size in enumerate(shape[:-1]) if not isinstance(size, int)]
    if len(varying) <= 1:  # a size that varies follows from the others
        sizes = [-1 if n in varying else size for n, size in enumerate(shape[:-1])]
        return add("reshape", hidden, *sizes, features)
    given = move.args[1:] if name_of_op(move) in ("view", "reshape") else ()
    packed = len(given) == 1 and isinstance(given[0], (tuple, list))
    written: Any = given[0] if packed else given
    assert len(written) == len(shape), move.format_node()
    return add("reshape", hidden, *written[:-1], features)
