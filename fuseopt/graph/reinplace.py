"""Write updates of inputs in place: the last pass, on the graph as it will run.

    new = index_copy(cache, 2, pos, k)                index_copy_(cache, 2, pos, k)
    out = matmul(q, new)                        ->    out = matmul(q, cache)
    copy_(cache, new)

Functional form makes a new tensor of every update and copies it back at the end, which for a
key-value cache moves the whole cache several times to write one row. An update goes in place
when the input's old value is read by nothing after it; the order of the nodes is then binding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fuseopt.graph.clean import alias_roots, may_alias

aten = torch.ops.aten

# Functional overloads whose first argument may be overwritten by the in-place one.
_IN_PLACE: dict[OpOverload, OpOverload] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.masked_fill.Tensor: aten.masked_fill_.Tensor,
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}
_WHOLE = frozenset(
    {
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.add.Tensor,
        aten.mul.Tensor,
    }
)
# Functional overloads that overwrite a view of their first argument with the second.
_INTO_VIEW: dict[OpOverload, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}


def reinplace(gm: fx.GraphModule) -> int:
    """Turn updates that end in a trailing `copy_` into in-place ones; return how many did."""
    changed = 0
    for write in gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
        chain = _chain(write)
        target = write.args[0]
        assert isinstance(target, fx.Node)
        for node in chain:
            _overwrite(gm.graph, node, target)
        if chain:
            write.replace_all_uses_with(target)
            gm.graph.erase_node(write)
            changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def partial_updates(graph: fx.Graph) -> set[fx.Node]:
    """Return the updates that will go in place and write only a part of their input.

    In a kernel they would write all of it.
    """
    writes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    return {n for write in writes for n in _chain(write) if n.target not in _WHOLE}


def _chain(write: fx.Node) -> list[fx.Node]:
    """Return the updates that a trailing `copy_` ends, where all of them can go in place."""
    target, value = write.args[:2]
    assert isinstance(target, fx.Node)
    order = {node: i for i, node in enumerate(write.graph.nodes)}
    chain = _updates(target, value)
    return chain if all(_is_last_reader(node, target, order) for node in chain) else []


def _updates(target: Any, value: Any) -> list[fx.Node]:
    """Return the updates that lead from an input to its new value, first to last."""
    chain: list[fx.Node] = []
    while value is not target:
        if not isinstance(value, fx.Node) or not _can_overwrite(value, target):
            return []
        chain.insert(0, value)
        value = value.args[0]
    return chain


def _can_overwrite(node: fx.Node, target: fx.Node) -> bool:
    if node.target not in _IN_PLACE and node.target not in _INTO_VIEW:
        return False
    new, old = node.meta["val"], target.meta["val"]
    operands = [n for n in node.all_input_nodes if n is not node.args[0]]
    return (
        new.dtype is old.dtype
        and new.shape == old.shape
        # What reads the new value was planned for its layout.
        and new.stride() == old.stride()
        # An operand that shares the input's memory would change while it is read.
        and not any(target in alias_roots(n) for n in operands)
    )


def _is_last_reader(node: fx.Node, target: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether nothing after an update reads the value it overwrites, directly or by a view."""
    before = node.args[0]
    assert isinstance(before, fx.Node)
    pending, seen = [before], {node}
    while pending:
        shared = pending.pop()
        for user in shared.users:
            if user in seen or (user.target is aten.copy_.default and user.args[0] is target):
                continue
            if order[user] > order[node]:
                return False
            seen.add(user)
            if may_alias(user):
                pending.append(user)
    return True


def _overwrite(graph: fx.Graph, node: fx.Node, target: fx.Node) -> None:
    assert isinstance(node.target, OpOverload)
    with graph.inserting_before(node):
        if node.target in _IN_PLACE:
            args = (target, *node.args[1:])
            new = graph.call_function(_IN_PLACE[node.target], args, node.kwargs)
        else:
            view, source = _view_to_write(graph, node, target)
            new = graph.call_function(aten.copy_.default, (view, source))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(target, delete_user_cb=lambda user: user is not new)
    graph.erase_node(node)


def _view_to_write(graph: fx.Graph, node: fx.Node, target: fx.Node) -> tuple[fx.Node, fx.Node]:
    assert isinstance(node.target, OpOverload)
    _, source, *where = node.args
    assert isinstance(source, fx.Node)
    view = graph.call_function(_INTO_VIEW[node.target], (target, *where), node.kwargs)
    view.meta = {**node.meta, "val": _value_of(view)}
    if source.target is aten.copy.default and len(source.users) == 1:
        # `cache[i] = k` was traced as copy(cache[i], k), which casts and broadcasts as copy_ does.
        given = source.args[1]
        assert isinstance(given, fx.Node)
        if target not in alias_roots(given):
            return view, given
    return view, source


def _value_of(node: fx.Node) -> Any:
    assert isinstance(node.target, OpOverload)
    args: Any = fx.map_arg(node.args, lambda n: n.meta["val"])
    with args[0].fake_mode:
        return node.target(*args, **node.kwargs)
