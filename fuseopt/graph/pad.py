"""Padding the operands of matrix products whose rows do not start where tensor cores want them to.

    y = mm(a, w)              w: [1024, 50257]   ->   p = mm(a, pad(w, 47)); y = p[:, :50257]
    x = mm(dy, w.t())        dy: [8192, 50257]   ->   x = mm(pad(dy, 47), pad(w, 47).t())

Rows of 16-bit elements whose length is no multiple of eight start amid what a device loads at once,
and for such matrices libraries have slow kernels only. Zeros added to the inner size add nothing to
a product, and those added to an outer one give elements that are cut off again. Padding costs a
pass over an operand, or none where it joins the kernel that computes the operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuseopt.graph.insert import insert_call
from fuseopt.ops.alignment import HALVES, missing

aten = torch.ops.aten

LEAST = 512  # every size of a product that pays for a pass over its operands and its result
_TURNS = (aten.t.default, aten.transpose.int, aten.permute.default)


def pad_products(gm: fx.GraphModule, pays: Callable[[torch.device], bool]) -> int:
    """Pad the products of a graph in place, where that makes them faster, and return how many.

    pays: whether products on a device are faster where rows are aligned.
    """
    count = 0
    for node in list(gm.graph.nodes):
        write = _WRITERS.get(node.target) if node.op == "call_function" else None
        if write is None or node.kwargs or not pays(node.meta["val"].device):
            continue
        with gm.graph.inserting_before(node):
            made = write(_Padding(gm.graph, node), *node.args)
        if made is not None:
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
            count += 1
    if count:
        gm.recompile()
    return count


class _Padding:
    """Adds calls before a product, in its place in the user's code."""

    def __init__(self, graph: fx.Graph, product: fx.Node) -> None:
        self.graph = graph
        self.product = product

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return insert_call(self.graph, target, args, self.product, **kwargs)

    def pad(self, x: fx.Node, dim: int, by: int) -> fx.Node:
        """Add zeros at the end of a dimension; a transposed matrix stays one."""
        if not by:
            return x
        rank = x.meta["val"].dim()
        if x.target in _TURNS and rank == 2:
            (source,) = x.all_input_nodes
            return self(aten.t.default, self.pad(source, 1 - dim, by))
        return self(aten.constant_pad_nd.default, x, [*(0, 0) * (rank - 1 - dim), 0, by])

    def cut(self, x: fx.Node, dim: int, size: int, by: int) -> fx.Node:
        """Take what was added away again; the result is contiguous, as a product's is."""
        if not by:
            return x
        kept = self(aten.slice.Tensor, x, dim, 0, size)
        if dim == 0:
            return kept
        return self(aten.clone.default, kept, memory_format=torch.contiguous_format)


def _pad_mm(p: _Padding, a: fx.Node, b: fx.Node) -> fx.Node | None:
    return _pad_addmm(p, None, a, b)


def _pad_addmm(p: _Padding, bias: fx.Node | None, a: fx.Node, b: fx.Node) -> fx.Node | None:
    (rows, inner), (_, columns) = a.meta["val"].shape, b.meta["val"].shape
    if not _is_large(a, rows, inner, columns):
        return None
    # Of the result, columns lie next to each other; of an operand, what its strides say.
    down = 0 if _has_rows(a) else missing(rows)
    along = missing(inner) if _has_rows(a) or not _has_rows(b) else 0
    across = missing(columns)
    if not (down or along or across) or (bias is not None and bias.meta["val"].dim() != 1):
        return None
    a = p.pad(p.pad(a, 1, along), 0, down)
    b = p.pad(p.pad(b, 0, along), 1, across)
    if bias is None:
        made = p(aten.mm.default, a, b)
    else:
        made = p(aten.addmm.default, p.pad(bias, 0, across), a, b)
    return p.cut(p.cut(made, 0, rows, down), 1, columns, across)


def _pad_linear(
    p: _Padding, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None
) -> fx.Node | None:
    shape = x.meta["val"].shape
    columns, inner = weight.meta["val"].shape
    if not _is_large(x, x.meta["val"].numel() // inner, inner, columns):
        return None
    along, across, last = missing(inner), missing(columns), len(shape) - 1
    if not (along or across):
        return None
    x = p.pad(x, last, along)
    weight = p.pad(p.pad(weight, 1, along), 0, across)
    bias = None if bias is None else p.pad(bias, 0, across)
    return p.cut(p(aten.linear.default, x, weight, bias), last, columns, across)


_WRITERS: dict[Any, Callable[..., fx.Node | None]] = {
    aten.mm.default: _pad_mm,
    aten.addmm.default: _pad_addmm,
    aten.linear.default: _pad_linear,
}


def _is_large(operand: fx.Node, *sizes: Any) -> bool:
    large = all(not isinstance(size, int) or size >= LEAST for size in sizes)
    return large and operand.meta["val"].dtype in HALVES


def _has_rows(matrix: fx.Node) -> bool:
    """Whether the elements of a row lie next to each other."""
    return bool(matrix.meta["val"].stride(1) == 1)
