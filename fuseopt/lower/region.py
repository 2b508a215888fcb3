"""A region: some nodes of a graph, and the loop kernel that computes what others need of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx

from fuseopt.graph.lift import Lifted, lift
from fuseopt.ir.expr import Expr, Input, walk
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.lower.lower import Output, lower, used_inputs
from fuseopt.lower.nest import NotLowerable


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run as one kernel.

    nodes: what the kernel replaces, in graph order.
    inputs: the nodes whose tensors it reads, in the kernel's order.
    outputs: the nodes (of `nodes`, or outputs of them) whose tensors it writes.
    key: digest of what is computed; regions with equal keys have equal kernels.
    through: views, constants and conversions outside `nodes` that the kernel computes as well.
    symbols: the graph's size symbols, and the kernel's symbols that stand for them.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    kernel: LoopKernel
    key: str
    through: tuple[fx.Node, ...] = ()
    symbols: tuple[tuple[Any, Any], ...] = ()


class Lowerings:
    """Lowers regions, those of equal structure once."""

    def __init__(self, inline: Callable[[fx.Node], bool], *, round_like_eager: bool) -> None:
        self.inline = inline
        self.round_like_eager = round_like_eager
        self._known: dict[str, LoopKernel | NotLowerable] = {}

    def lower_region(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Region:
        """Return the region of nodes given in graph order.

        Raises `NotExpressible` where an op cannot be defined, `NotLowerable` where the whole does
        not fit one kernel.
        """
        lifted = lift(nodes, self.inline)
        written = [_output(lifted, node) for node in outputs]
        used = used_inputs(written)
        params = [_param(lifted, node) for node in lifted.inputs]
        key = structure_key(written, [params[i] for i in used], self.round_like_eager)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._lower(params, written)
        if isinstance(known, NotLowerable):
            raise known
        read = tuple(lifted.inputs[i] for i in used)
        symbols = tuple(lifted.symbols.items())
        through = tuple(lifted.through)
        return Region(tuple(nodes), read, tuple(outputs), known, key, through, symbols)

    def _lower(
        self, params: Sequence[TensorParam], written: Sequence[Output]
    ) -> LoopKernel | NotLowerable:
        try:
            return lower(params, written, round_like_eager=self.round_like_eager)
        except NotLowerable as reason:
            return reason


def values_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the nodes that stand for a node's tensors: itself, or the outputs taken from it."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return (node,)
    return tuple(u for u in node.users if isinstance(u.meta.get("val"), torch.Tensor))


def _output(lifted: Lifted, node: fx.Node) -> Output:
    made = lifted.exprs.get(node)
    if made is None:
        source, place = node.args
        assert isinstance(source, fx.Node)
        made = lifted.exprs[source][place]
    if not isinstance(made, Expr):
        raise NotLowerable("index", f"{node.name} is not computed by its definition")
    return Output(made, lifted.shape(node.meta["val"].stride()))


def _param(lifted: Lifted, node: fx.Node) -> TensorParam:
    value = node.meta["val"]
    return TensorParam(value.dtype, lifted.shape(value.shape), lifted.shape(value.stride()))


def structure_key(
    outputs: Sequence[Output], params: Sequence[TensorParam], round_like_eager: bool
) -> str:
    """Return a digest of what is computed from which layouts to which layouts."""
    numbers: dict[int, int] = {}
    places: dict[int, int] = {p: n for n, p in enumerate(used_inputs(outputs))}
    text = [repr(round_like_eager), *map(repr, params)]
    for number, e in enumerate(walk(o.expr for o in outputs)):
        numbers[id(e)] = number
        text.append(_describe(e, numbers, places))
    text += [f"write {numbers[id(o.expr)]} {o.strides}" for o in outputs]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:24]


def _describe(e: Expr, numbers: dict[int, int], places: dict[int, int]) -> str:
    parts = [type(e).__name__, str(e.dtype), repr(e.shape)]
    if isinstance(e, Input):
        return " ".join([*parts, str(places[e.position])])
    own = (f.name for f in fields(e) if f.name not in ("arena", "shape", "dtype"))
    return " ".join([*parts, *(_field(getattr(e, name), numbers) for name in own)])


def _field(value: Any, numbers: dict[int, int]) -> str:
    if isinstance(value, Expr):
        return f"#{numbers[id(value)]}"
    if isinstance(value, tuple):
        return "(" + ",".join(_field(v, numbers) for v in value) + ")"
    return repr(value)
