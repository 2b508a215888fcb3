"""Writing the composites of a training graph in pieces, before it is split in two.

    y, m, s = native_layer_norm(x)              var, m = var_mean(x); s = rsqrt(var + eps)
    z = silu(y)                         ->      y = (x - m) * s * w + b
    ... native_layer_norm_backward(x, m, s)     z = silu(y); ... (x - m) * s ...

The partitioner computes again in the backward graph what is cheap to compute, and saves the rest;
a composite it can only save. In pieces, what is saved is the tensors that matrix products give or
take and a number or two for each row: `y` above is not. A composite whose result would be laid out
in memory in another way than PyTorch lays it out gets a copy, or stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fuseopt.graph import parts_losses, parts_norms, parts_products, parts_softmax
from fuseopt.graph.clean import clean
from fuseopt.graph.lift import bind_arguments, target_name, tensors_of
from fuseopt.graph.pieces import (
    COMPOSITES,
    Composite,
    Known,
    Pieces,
    dtype_of,
    is_backward,
    sizes,
    value_of,
)
from fuseopt.graph.whole import remember
from fuseopt.ir import dims
from fuseopt.ops.declare import SUPPORTED_DTYPES

__all__ = [
    "parts_losses",
    "parts_norms",
    "parts_products",
    "parts_softmax",
    "write_composite",
    "write_composites",
]

aten = torch.ops.aten


def write_composites(gm: fx.GraphModule, has_kernels: Callable[[torch.device], bool]) -> int:
    """Write the composites of a graph in pieces, in place, and return how many there were.

    has_kernels: whether kernels run on a device; elsewhere composites stay, as PyTorch's own
    kernels for them are faster than those for the pieces.
    """
    clean(gm)
    known = Known()
    count = 0
    for node in list(gm.graph.nodes):
        declared = COMPOSITES.get(target_name(node))
        if declared is not None and _is_plain(node, has_kernels):
            count += _write(gm.graph, node, declared, known)
    gm.graph.eliminate_dead_code()
    _widen_again(gm.graph)
    gm.recompile()
    return count


def write_composite(graph: fx.Graph, node: fx.Node) -> bool:
    """Write one composite in pieces, in place; return whether it could be."""
    return _write(graph, node, COMPOSITES[target_name(node)], Known())


def _widen_again(graph: fx.Graph) -> None:
    """Have float32 copies of 16-bit tensors made again in the backward graph, and not saved."""
    for node in reversed(graph.nodes):
        if _is_widening(node) and not is_backward(node) and any(map(_runs_later, node.users)):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def _runs_later(node: fx.Node) -> bool:
    again = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
    return is_backward(node) or node.meta.get("recompute") in again


def _is_widening(node: fx.Node) -> bool:
    if node.target is not aten._to_copy.default:
        return False
    (source,) = node.all_input_nodes
    before, after = dtype_of(source), dtype_of(node)
    same = value_of(source).device == value_of(node).device
    floats = before.is_floating_point and after.is_floating_point
    return same and floats and before.itemsize < after.itemsize


def _is_plain(node: fx.Node, has_kernels: Callable[[torch.device], bool]) -> bool:
    """Whether a node's tensors are such as kernels handle."""
    tensors = [t for n in (node, *node.all_input_nodes) for t in tensors_of(n)]
    return all(
        t.dtype in SUPPORTED_DTYPES
        and t.layout == torch.strided
        and has_kernels(t.device)
        and 0 not in dims.shape_of(t.shape)
        for t in tensors
    )


def _write(graph: fx.Graph, node: fx.Node, declared: Composite, known: Known) -> bool:
    """Write a composite before its node and let its users read that; its node is dead then."""
    args, kwargs = bind_arguments(node)
    with graph.inserting_before(node):
        p = Pieces(graph, node, known)
        made = declared.write(p, *args, **kwargs)
        if made is NotImplemented:
            return False
        if isinstance(node.meta["val"], torch.Tensor):
            taken = {node: made}
        else:
            taken = {user: made[user.args[1]] for user in node.users if user.users}
        results = {given: _laid_out(p, piece, given) for given, piece in taken.items()}
    if None in results.values():
        return False
    places: dict[Any, fx.Node] = {
        None if given is node else given.args[1]: r for given, r in results.items() if r is not None
    }
    remember(node, places)
    for given, result in results.items():
        assert result is not None
        given.replace_all_uses_with(result)
    return True


def _laid_out(p: Pieces, piece: fx.Node | None, given: fx.Node) -> fx.Node | None:
    """The piece in the dtype and the memory layout of what it is to replace."""
    if piece is None:
        return None
    assert dims.same_shape(sizes(piece), sizes(given)), (given.format_node(), sizes(piece))
    result = p.to(piece, dtype_of(given))
    for form in (None, torch.contiguous_format, torch.channels_last):
        if form is torch.channels_last and value_of(given).dim() != 4:
            break
        copy = result if form is None else p(aten.clone.default, result, memory_format=form)
        if _same_strides(copy, given):
            p.known.unrounded[copy] = piece
            return copy
    return None


def _same_strides(a: fx.Node, b: fx.Node) -> bool:
    strides = (dims.shape_of(value_of(x).stride()) for x in (a, b))
    return all(
        size == 1 or dims.same(first, second)
        for first, second, size in zip(*strides, sizes(a), strict=True)
    )
