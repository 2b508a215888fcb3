"""Seeing through attention masks before autograd, which chooses attention's kernels by the mask.

    mask = arange(8)[None, :] >= 0; scaled_dot_product_attention(q, k, v, mask.expand(2, 1, 8, 8))
    ->  scaled_dot_product_attention(q, k, v, None)

Once traced for training, attention is one of its kernels or, with a mask they refuse, products and
a softmax that keep all scores. A mask that depends on no input is computed here; where all of it is
true, or it is the causal one, attention gets none.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fuseopt.graph.fold import LARGEST, evaluate
from fuseopt.graph.form import copy_graph
from fuseopt.graph.head import name_of_op
from fuseopt.graph.masks import attention_arguments, is_square, kind_of_mask, replace_mask

# Functions and methods that compute from numbers and each other alone, by name.
_PURE = frozenset(
    "arange ones zeros full ones_like zeros_like full_like new_ones new_zeros new_full tril triu "
    "add sub mul neg floordiv floor_divide remainder cumsum diff eq ne ge gt le lt and_ or_ xor "
    "invert not_ logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not all any "
    "where masked_fill to bool int long float type type_as getitem view reshape expand expand_as "
    "broadcast_to unsqueeze squeeze permute transpose movedim contiguous clone cat stack".split()
)
# Others that write to nothing they are given and return memory of their own.
_READERS = frozenset(
    "add sub mul neg matmul mm bmm einsum outer embedding gather index_select cos sin exp where "
    "masked_fill eq ne ge gt le lt cat stack cross_entropy nll_loss".split()
)


def without_constant_masks(gm: fx.GraphModule) -> fx.GraphModule:
    """Return Dynamo's graph with attention freed of masks that hide nothing or are causal.

    The graph itself where there are none; `gm` is not changed.
    """
    constant = _constants(gm.graph)
    if not any(_mask_of(node) in constant for node in gm.graph.nodes):
        return gm
    copy = copy_graph(gm)
    values: dict[fx.Node, Any] = {}
    twins = dict(zip(gm.graph.nodes, copy.graph.nodes, strict=True))
    for node, twin in twins.items():
        mask = _mask_of(node)
        if mask not in constant:
            continue
        kind = kind_of_mask(evaluate(mask, values))
        if kind == "all" or (kind == "causal" and is_square(attention_arguments(node))):
            replace_mask(twin, attention_arguments(twin), causal=kind == "causal")
    for node in reversed(gm.graph.nodes):
        if node in constant and not twins[node].users:
            copy.graph.erase_node(twins[node])
    copy.recompile()
    return copy


def _mask_of(node: fx.Node) -> fx.Node | None:
    if node.op != "call_function" or node.target is not F.scaled_dot_product_attention:
        return None
    given = attention_arguments(node)
    mask = given.get("attn_mask")
    return mask if isinstance(mask, fx.Node) and not given.get("is_causal") else None


def _constants(graph: fx.Graph) -> set[fx.Node]:
    """Values that depend on no input and that nothing writes to."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if _name(node) in _PURE and found.issuperset(node.all_input_nodes) and _is_small(node):
            found.add(node)
    written: set[fx.Node] = set()  # perhaps, or of one memory with what is
    for node in found:
        if not all(u in found or _mask_of(u) is node or _name(u) in _READERS for u in node.users):
            written.add(node)
    # A write through a view reaches what is viewed, so whoever it was made of counts as well.
    for node in reversed(graph.nodes):
        if node in written:
            written.update(n for n in node.all_input_nodes if n in found)
    for node in graph.nodes:
        if node in found and written.intersection(node.all_input_nodes):
            written.add(node)
    return found - written


def _name(node: fx.Node) -> str:
    return "" if "out" in node.kwargs else name_of_op(node)


def _is_small(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return value is None or isinstance(value, (int, tuple, torch.Size))
    # Expanded masks are no larger in memory than what they were expanded from.
    own = [n for n, s in zip(value.shape, value.stride(), strict=True) if s != 0]
    count = value.itemsize
    for size in own:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= LARGEST
