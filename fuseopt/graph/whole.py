"""Making composites whole again where their pieces have no kernel.

    variance, mean = var_mean(x); ... y = (x - mean) * rsqrt(variance + eps) * w + b
    ->  y = native_layer_norm(x, w, b, eps)[0]

Pieces are there to be fused. Where a kernel for them is refused, or PyTorch's own for the composite
is faster, the composite should run. What a composite was is kept with the nodes of its operands and
results, and found again in any graph that has all of these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

# In the metadata of a node: what stands for it in the arguments of composites, and of which ones it
# is a result.
_OPERAND = "fuseopt_operand"
_RESULT = "fuseopt_result"


class Operand:
    """Stands for a node in whatever graph it is copied to."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A composite call that was written in pieces. values: the fake tensors that it gave."""

    target: Any
    args: Any
    kwargs: Mapping[str, Any]
    values: Any


def remember(node: fx.Node, results: Mapping[int | None, fx.Node]) -> None:
    """Note at operands and results what a composite was.

    node: the composite. results: by place (None where there is only one), the node that gives it.
    """
    args, kwargs = fx.map_arg((node.args, node.kwargs), _operand_of)
    whole = Whole(node.target, args, kwargs, node.meta["val"])
    for place, result in results.items():
        result.meta[_RESULT] = (whole, place)


def make_whole(gm: fx.GraphModule, may_change: Callable[[fx.Node], bool]) -> int:
    """Let composites run in place of their pieces, and return how many do.

    may_change: whether a node may be replaced; a composite is made whole where all its pieces may.
    """
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    operands = {n.meta[_OPERAND]: n for n in reversed(order) if _OPERAND in n.meta}
    found: dict[Whole, dict[int | None, fx.Node]] = {}
    for node in order:
        if _RESULT in node.meta and node.op == "call_function":
            whole, place = node.meta[_RESULT]
            found.setdefault(whole, {})[place] = node
    count = 0
    for whole, results in found.items():
        first = min(results.values(), key=order.__getitem__)
        needed = _operands_in((whole.args, dict(whole.kwargs)))
        known = all(o in operands and order[operands[o]] < order[first] for o in needed)
        if known and all(map(may_change, _pieces(results.values()))):
            _put_back(gm.graph, whole, results, first, operands)
            count += 1
    if count:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return count


def _pieces(results: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Yield the nodes that results are computed by from operands, of this composite or another."""
    stack = list(results)
    seen: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen and node.op == "call_function":
            seen.add(node)
            yield node
            stack.extend(n for n in node.all_input_nodes if _OPERAND not in n.meta)


def _put_back(
    graph: fx.Graph,
    whole: Whole,
    results: Mapping[int | None, fx.Node],
    first: fx.Node,
    operands: Mapping[Operand, fx.Node],
) -> None:
    """Have result nodes give what the composite gives; they stay the nodes that they are."""
    args, kwargs = torch.utils._pytree.tree_map_only(
        Operand, operands.__getitem__, (whole.args, dict(whole.kwargs))
    )
    if None in results:
        results[None].target, results[None].args, results[None].kwargs = whole.target, args, kwargs
        return
    with graph.inserting_before(first):
        call = graph.call_function(whole.target, args, kwargs)
    call.meta = {k: v for k, v in first.meta.items() if k not in (_OPERAND, _RESULT)}
    call.meta["val"] = whole.values
    for place, result in results.items():
        result.target, result.args, result.kwargs = operator.getitem, (call, place), {}


def _operand_of(node: fx.Node) -> Any:
    return node.meta.setdefault(_OPERAND, Operand())


def _operands_in(arguments: Any) -> list[Operand]:
    return [a for a in torch.utils._pytree.tree_leaves(arguments) if isinstance(a, Operand)]
