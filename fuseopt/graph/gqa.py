"""Grouped-query attention: keys and values repeated for each query head are not written out.

    k2 = reshape(expand(unsqueeze(k, 2), [b, hk, groups, s, d]), [b, hk * groups, s, d])
    scaled_dot_product_attention(q, k2, v2)  ->  scaled_dot_product_attention(q, k, v,
                                                                              enable_gqa=True)

Only where attention without a mask runs the flash kernels, which read the shared heads themselves.
"""

from __future__ import annotations

import torch
from torch import fx

from fuseopt.graph.lift import target_name
from fuseopt.graph.masks import ATTENTION, attention_arguments

_COPIES = ("aten.clone.default", "aten.contiguous.default")
_VIEWS = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")


def share_heads(gm: fx.GraphModule) -> int:
    """Stop repeating heads for attention, in place; return how many attentions changed."""
    count = 0
    for node in list(gm.graph.nodes):
        if target_name(node) != ATTENTION:
            continue
        given = attention_arguments(node)
        key, value = _unrepeated(given["key"]), _unrepeated(given["value"])
        if key is None or value is None or not _runs_flash(given):
            continue
        query, _, _, *rest = node.args
        node.args = (query, key, value, *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        count += 1
    if count:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return count


def _runs_flash(given: dict[str, object]) -> bool:
    query = given["query"]
    if not isinstance(query, fx.Node) or given.get("attn_mask") is not None:
        return False
    value = query.meta["val"]
    return value.device.type == "cuda" and value.dtype in (torch.float16, torch.bfloat16)


def _unrepeated(node: object) -> fx.Node | None:
    """The tensor whose heads (dimension 1) a node repeats one by one, or None."""
    if not isinstance(node, fx.Node):
        return None
    shape = tuple(node.meta["val"].shape)
    while target_name(node) in (*_COPIES, *_VIEWS):
        node = node.args[0]
        assert isinstance(node, fx.Node)
    if target_name(node) != "aten.expand.default" or len(shape) != 4:
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    expanded, before = tuple(node.meta["val"].shape), tuple(source.meta["val"].shape)
    if len(expanded) != 5 or before[2:3] != (1,) or expanded[:2] != before[:2]:
        return None
    batch, heads, groups, *rest = expanded
    if shape != (batch, heads * groups, *rest):
        return None
    while target_name(source) in ("aten.unsqueeze.default", "aten.slice.Tensor"):
        below = source.args[0]
        assert isinstance(below, fx.Node)
        if tuple(below.meta["val"].shape) == (batch, heads, *rest):
            return below
        source = below
    return None
