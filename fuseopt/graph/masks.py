"""Seeing through attention masks: a constant mask that is all true or causal is not passed on.

    mask = get_attr(_folded_0)   (tril of ones)
    scaled_dot_product_attention(q, k, v, mask)  ->  scaled_dot_product_attention(q, k, v, None,
                                                                                  is_causal=True)

Attention has its fastest kernels without a mask or with the causal one. Model code often builds
these two from comparisons of positions; once such a mask is folded its values say what it is.
"""

from __future__ import annotations

import torch
from torch import fx

from fuseopt.graph.lift import target_name

ATTENTION = "aten.scaled_dot_product_attention.default"
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def simplify_masks(gm: fx.GraphModule) -> int:
    """Simplify constant masks of a graph's attention in place and return how many there were."""
    known: dict[str, str] = {}
    count = 0
    for node in list(gm.graph.nodes):
        if target_name(node) != ATTENTION:
            continue
        given = attention_arguments(node)
        mask = given.get("attn_mask")
        if not isinstance(mask, fx.Node) or mask.op != "get_attr" or given.get("is_causal"):
            continue
        name = str(mask.target)
        if name not in known:
            known[name] = kind_of_mask(getattr(gm, name))
        if known[name] == "other" or not is_square(given):
            continue
        replace_mask(node, given, causal=known[name] == "causal")
        count += 1
    if count:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return count


def attention_arguments(node: fx.Node) -> dict[str, object]:
    """Return the arguments of an attention node by name; those left out are missing."""
    return {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}


def kind_of_mask(mask: torch.Tensor) -> str:
    """Return "all", "causal" or "other" for a mask of shape [..., queries, keys].

    Bool masks are true, additive ones zero, where a query may see a key; additive ones hide a key
    by -inf or the dtype's lowest number.
    """
    while mask.dim() > 2 and (mask.stride(0) == 0 or mask.shape[0] == 1):
        mask = mask[0]
    visible = mask if mask.dtype == torch.bool else mask == 0
    if bool(visible.all()):
        return "all"
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return "other"
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if not bool((visible == causal).all()):
        return "other"
    if mask.dtype != torch.bool:
        hidden = mask.masked_select(~visible)
        if not bool((hidden <= torch.finfo(mask.dtype).min).all()):
            return "other"
    return "causal"


def is_square(given: dict[str, object]) -> bool:
    """Whether there are as many queries as keys, so that causal means the same for both ends."""
    query, key = given["query"], given["key"]
    assert isinstance(query, fx.Node)
    assert isinstance(key, fx.Node)
    name = "val" if "val" in query.meta else "example_value"  # Dynamo's graphs have the latter
    return bool(query.meta[name].shape[-2] == key.meta[name].shape[-2])


def replace_mask(node: fx.Node, given: dict[str, object], *, causal: bool) -> None:
    """Take the mask from an attention node with these arguments; `causal` is to replace it."""
    dropout = given.get("dropout_p", 0.0)
    first = (given["query"], given["key"], given["value"])
    node.args = (*first, None, dropout, causal)  # type: ignore[assignment]
    rest = {p: given[p] for p in ("scale", "enable_gqa") if p in given}
    node.kwargs = rest  # type: ignore[assignment]
