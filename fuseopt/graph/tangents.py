"""Backward passes in which no gradient comes to some of a graph's outputs.

    loss, logits = forward(...)                        forward(...); loss.backward()
    backward(dloss, dlogits):                  ->      backward(dloss, None):
        dz = softmax_backward(dloss) + dlogits             dz = softmax_backward(dloss)

Models return beside their loss what it was computed from, and train on the loss. Autograd fills in
zeros for what has no gradient: as much memory as the logits, written and read for nothing. Where a
graph gives single numbers and larger tensors, its backward graph is first compiled as if gradients
came to the numbers alone; the whole of it, when others come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction

from fuseopt.graph.form import copy_graph
from fuseopt.graph.insert import insert_call

aten = torch.ops.aten
Run = Callable[[list[Any]], Any]

# Ops whose result is zero where their first argument is.
_OF_FIRST = frozenset(
    {
        aten._to_copy.default,
        aten._unsafe_view.default,
        aten.clone.default,
        aten.div.Tensor,
        aten.expand.default,
        aten.mean.dim,
        aten.neg.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.slice_backward.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.t.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
    }
)
_OF_ANY = frozenset({aten.mul.Tensor, aten.mm.default, aten.bmm.default})


class Backward:
    """A backward graph that is compiled for those gradients that come.

    spare: the places of tangents that are taken not to come. make: compiles a graph.
    """

    def __init__(
        self, gm: fx.GraphModule, spare: Sequence[int], make: Callable[[fx.GraphModule], Run]
    ) -> None:
        self.gm = gm
        self.make = make
        self.spare = tuple(spare)
        self.usual = make(without_tangents(gm, spare))
        self.whole: Run | None = None

    def __call__(self, args: list[Any]) -> Any:
        """Take what was saved and the gradients, None for those that did not come."""
        tangents = dict(tangents_of(self.gm))
        if [p for p in tangents if args[p] is None] == list(self.spare):
            return self.usual(args)
        for place, node in tangents.items():
            if args[place] is None:
                args[place] = _zeros_like(node.meta["val"])
        if self.whole is None:
            self.whole = self.make(copy_graph(self.gm))
        return self.whole(args)


def tangents_of(gm: fx.GraphModule) -> list[tuple[int, fx.Node]]:
    """Return the gradients that a backward graph takes, with their places among its inputs."""
    placeholders = enumerate(gm.graph.find_nodes(op="placeholder"))
    return [(n, p) for n, p in placeholders if str(p.target).startswith("tangents")]


def spare_tangents(gm: fx.GraphModule) -> tuple[int, ...]:
    """Return the places of the tangents that probably do not come: of others than numbers.

    None where all tangents are of one kind, or where one's size varies.
    """
    shapes = {place: node.meta["val"].shape for place, node in tangents_of(gm)}
    if not all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return ()
    spare = tuple(place for place, shape in shapes.items() if len(shape) > 0)
    return spare if len(spare) < len(shapes) else ()


def leave_undefined(outputs: Any, since: int) -> None:
    """Have autograd pass None, and not zeros, for those of the outputs that get no gradient.

    since: autograd's number of the next node, when the graph that gives the outputs was called.
    """
    for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        if isinstance(node, BackwardCFunction) and node._sequence_nr() >= since:
            node.set_materialize_grads(False)


def without_tangents(gm: fx.GraphModule, places: Sequence[int]) -> fx.GraphModule:
    """Return a copy of a backward graph that does not read the tangents at these places."""
    gm = copy_graph(gm)
    placeholders = gm.graph.find_nodes(op="placeholder")
    zero = {placeholders[place] for place in places}
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and not zero.isdisjoint(node.all_input_nodes):
            _simplify(node, zero)
    for node in zero:
        if any(user not in zero for user in node.users):
            _fill(gm.graph, node, zero)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return gm


def _simplify(node: fx.Node, zero: set[fx.Node]) -> None:
    """Add a node to those that are zero, or let its users read the other term of a sum."""
    if node.target in _OF_ANY or (node.target in _OF_FIRST and node.args[0] in zero):
        zero.add(node)
    elif node.target is aten.add.Tensor and not node.kwargs:
        terms = [a for a in node.args if a not in zero]
        if not terms:
            zero.add(node)
        elif isinstance(terms[0], fx.Node) and _are_alike(terms[0], node):
            node.replace_all_uses_with(terms[0])


def _are_alike(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return bool(x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride())


def _fill(graph: fx.Graph, node: fx.Node, zero: set[fx.Node]) -> None:
    """Make the zeros that an op which is not simplified reads."""
    value = node.meta["val"]
    first = next(n for n in graph.nodes if n in node.users and n not in zero)
    options = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(first):
        sizes = (list(value.shape), list(value.stride()))
        memory = insert_call(graph, aten.empty_strided.default, sizes, node, **options)
        made = insert_call(graph, aten.fill.Scalar, (memory, 0), node)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in zero)


def _zeros_like(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=value.device
    )
    return made.zero_()
