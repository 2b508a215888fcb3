"""Rewrites before autograd: rules that change the algorithm and bring their own derivatives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.config import Config
from fuseopt.errors import VerificationError
from fuseopt.events import Log, NodeInfo, NotFused, Reason, RegionFused, RolledBack
from fuseopt.fuse.chunk import Chunking, HeadSize, asked_chunk, choose_chunk
from fuseopt.graph.chunked_head import replace_head, settings_of, wanted_gradients
from fuseopt.graph.form import copy_graph
from fuseopt.graph.head import (
    Head,
    Missed,
    example,
    find_heads,
    name_of_op,
    shape_of,
)
from fuseopt.graph.locate import node_info, tensor_text, value_text
from fuseopt.match.registry import registry_with
from fuseopt.match.rules import name_of
from fuseopt.ops.linear_loss import HeadLoss
from fuseopt.verify.head import check_head

RULE = "linear_cross_entropy"
WORTH_TELLING = 64 << 20  # bytes of logits: smaller heads are declined without a word


@dataclass(slots=True)
class Rewritten:
    """A Dynamo graph after the rewrites. fused: what to record once it has been compiled."""

    gm: fx.GraphModule
    fused: list[RegionFused] = field(default_factory=list)


def rewrite(
    gm: fx.GraphModule, config: Config, log: Log, has_kernels: Callable[[torch.device], bool]
) -> Rewritten:
    """Apply the rules that come before autograd to a Dynamo graph, which stays as it is.

    has_kernels: whether kernels run on a device; elsewhere nothing is rewritten.
    """
    rule = next((r for r in registry_with(config.rules).early if name_of(r) == RULE), None)
    found = list(find_heads(gm.graph)) if rule is not None else []
    if rule is None or not found:
        return Rewritten(gm)
    work = _Heads(config, log, has_kernels, asked=rule in config.rules)
    taken = [one for head in found if (one := work.decide(head)) is not None]
    if not taken:
        return Rewritten(gm)
    copy = copy_graph(gm)
    twins = dict(zip(gm.graph.nodes, copy.graph.nodes, strict=True))
    _keep_sources(gm, copy, twins)
    for one in taken:
        replace_head(copy.graph, _on(one.head, twins), one.settings)
    copy.graph.lint()
    copy.recompile()
    return Rewritten(copy, [_event(one, log, n) for n, one in enumerate(taken)])


def _keep_sources(gm: fx.GraphModule, copy: fx.GraphModule, twins: dict[fx.Node, fx.Node]) -> None:
    """Let a copy say as Dynamo's graph does where its inputs come from."""
    for node in gm.graph.find_nodes(op="placeholder"):
        if hasattr(node, "_dynamo_source"):
            twins[node]._dynamo_source = node._dynamo_source
    if hasattr(gm, "_param_name_to_source"):
        copy._param_name_to_source = gm._param_name_to_source


@dataclass(frozen=True, slots=True)
class _Taken:
    head: Head
    size: HeadSize
    chunking: Chunking
    settings: HeadLoss
    key: str


@dataclass(slots=True)
class _Heads:
    """Decides on the heads of one graph."""

    config: Config
    log: Log
    has_kernels: Callable[[torch.device], bool]
    asked: bool
    verdicts: dict[str, bool] = field(default_factory=dict)

    def decide(self, found: Head | Missed) -> _Taken | None:
        """Return what to do with a head, None to leave it; says why not where that matters."""
        logits = example(found.linear)
        if logits is None or not self.has_kernels(logits.device):
            return None
        if isinstance(found, Missed):
            self._decline(found.linear, found.loss, found.reason, found.culprit)
            return None
        size = head_size(found)
        if size is None:
            reason = "the number of rows is known only when the model runs"
            self._decline(found.linear, found.loss, reason, found.linear)
            return None
        chunking = choose_chunk(size)
        if chunking.reason and self.asked:
            rows = asked_chunk(size.rows)
            chunking = Chunking(rows, max(size.bytes_before - size.bytes_after(rows), 0))
        if chunking.reason:
            self._decline(found.linear, found.loss, chunking.reason, found.loss)
            return None
        settings = settings_of(found, chunking.rows)
        key = _key(found, settings)
        if not self._agrees(found, settings, key):
            return None
        return _Taken(found, size, chunking, settings, key)

    def _decline(self, linear: fx.Node, loss: fx.Node, reason: str, culprit: fx.Node) -> None:
        logits = example(linear)
        assert logits is not None
        rows = _rows(linear)
        size = 0 if rows is None else rows * logits.shape[-1] * logits.itemsize
        if self.asked or rows is None or size >= WORTH_TELLING:
            nodes = (_info(linear), _info(loss))
            event = NotFused(self.log.graphs, nodes, Reason.REJECTED, reason, _info(culprit), RULE)
            self.log.record(event)

    def _agrees(self, head: Head, settings: HeadLoss, key: str) -> bool:
        if not self.config.verify:
            return True
        if key not in self.verdicts:
            logits = example(head.linear)
            assert logits is not None
            off = torch.autocast(logits.device.type, enabled=False)
            with _disable_current_modes(), off:
                verdict = check_head(
                    key, settings, logits.dtype, logits.device, has_bias=head.bias is not None
                )
            self.log.record(verdict)
            self.verdicts[key] = verdict.passed
            if not verdict.passed:
                text = f"the chunked loss disagrees with what it replaces: {verdict.detail}"
                self.log.record(RolledBack(self.log.graphs, key, Reason.WRONG, text))
                if self.config.strict:
                    raise VerificationError(text)
        return self.verdicts[key]


def head_size(head: Head) -> HeadSize | None:
    """Return the sizes of a head, None where the rows are known only when the model runs."""
    rows = _rows(head.steps[-2], head.class_dim)
    if not rows:
        return None
    logits, last = example(head.linear), example(head.steps[-2])
    assert logits is not None
    assert last is not None
    itemsize = logits.dtype.itemsize
    wants = wanted_gradients(head)
    loss_itemsize = max(last.dtype.itemsize, itemsize)
    classes = logits.shape[-1]
    others = (n for n in head.linear.graph.nodes if n is not head.linear)
    return HeadSize(
        rows=rows,
        classes=classes,
        features=head.features,
        itemsize=itemsize,
        loss_itemsize=loss_itemsize,
        kept=int(head.squash),
        trains=any(wants),
        of_weight=wants[1],
        other=sum(map(_operations, others)),
    )


def _operations(node: fx.Node) -> float:
    """The operations of a product, with its gradients where it has any; 0 for what is none."""
    name, made = name_of_op(node), example(node)
    if made is None or name not in ("linear", "matmul", "mm", "bmm", "addmm"):
        return 0.0
    place = 1 if name == "addmm" else 0
    given = example(node.args[place]) if len(node.args) > place else None
    if given is None or given.dim() == 0:
        return 0.0
    sizes = [*map(_hint, made.shape), _hint(given.shape[-1])]
    count = 2.0
    for size in sizes:
        count *= size or 0
    return count * 3 if made.requires_grad else count


def _rows(node: fx.Node, class_dim: int = -1) -> int | None:
    shape = list(shape_of(node))
    del shape[class_dim]
    rows = 1
    for size in map(_hint, shape):
        if size is None:
            return None
        rows *= size
    return rows


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def _on(head: Head, twins: dict[fx.Node, fx.Node]) -> Head:
    """The same head in a copy of its graph."""
    made: dict[str, Any] = {}
    for name in ("linear", "loss", "hidden", "weight", "bias", "target"):
        node = getattr(head, name)
        made[name] = None if node is None else twins[node]
    for name in ("steps", "moves"):
        made[name] = tuple(twins[n] for n in getattr(head, name))
    return replace(head, **made)


def _key(head: Head, settings: HeadLoss) -> str:
    operands = [example(n) for n in (head.hidden, head.weight, head.bias, head.linear)]
    layouts = [f"{t.dtype} {t.shape[-1]}" if t is not None else "" for t in operands]
    text = f"{RULE} {settings} {layouts} {shape_of(head.linear)[-1]}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# --- what the report says of it ------------------------------------------------------------------


def _event(one: _Taken, log: Log, number: int) -> RegionFused:
    head, size, rows = one.head, one.size, one.chunking.rows
    count = size.chunks(rows)
    passes = 1 + size.trains
    work = [n for n in head.steps[1:-1] if n not in head.moves]
    traffic = sum(_bytes(n) + _bytes(n.args[0]) for n in work)
    traffic += 2 * size.logits * size.loss_itemsize
    products = 1 + sum(one.settings.wants[:2])
    given = (head.hidden, head.weight, head.bias, head.target)
    return RegionFused(
        graph=log.graphs,
        region=f"g{log.graphs}h{number}",
        rule=RULE,
        kernel=RULE,
        key=one.key,
        nodes=tuple(map(_info, head.steps)),
        inputs=tuple(_text(n) for n in given if n is not None),
        outputs=(_text(head.loss),),
        bytes_before=passes * traffic + products * size.logits * size.itemsize,
        bytes_after=(products + 2 * size.trains + 1) * size.logits * size.itemsize,
        launches_before=products + passes * (len(work) + 2),
        schedule=f"{count} chunk{'s' * (count != 1)} of {rows} rows",
        launches_after=count * (products + 1),
        memory_saved=one.chunking.saved,
    )


def _bytes(node: Any) -> int:
    value = example(node)
    sizes = [] if value is None else [_hint(s) or 0 for s in value.shape]
    count = 1
    for size in sizes:
        count *= size
    return 0 if value is None else count * value.dtype.itemsize


def _info(node: fx.Node) -> NodeInfo:
    value = example(node)
    info = replace(node_info(node), op=name_of_op(node) or node.op)
    shape, dtype = value_text(value)
    return replace(info, shape=shape, dtype=dtype)


def _text(node: fx.Node) -> str:
    value = example(node)
    assert value is not None
    return tensor_text(value)
