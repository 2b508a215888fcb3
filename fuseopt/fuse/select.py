"""Selecting: which groups are worth a kernel, what each saves, and why the others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from fuseopt.events import NodeInfo, NotFused, Reason
from fuseopt.fuse.classify import Role, Verdict, is_alias
from fuseopt.fuse.cost import bytes_alone, bytes_fused
from fuseopt.fuse.grow import Group, Growth
from fuseopt.graph.lift import target_name
from fuseopt.graph.locate import node_info
from fuseopt.lower.region import Region

# Ops that PyTorch runs well below the device's copy rate even on their own.
SLOW_ALONE = frozenset(
    "aten." + name
    for name in (
        "layer_norm.default native_layer_norm.default rms_norm.default _fused_rms_norm.default "
        "softmax.int _softmax.default _safe_softmax.default log_softmax.int _log_softmax.default "
        "_softmax_backward_data.default _log_softmax_backward_data.default group_norm.default "
        "native_group_norm.default instance_norm.default logsumexp.default "
        "cross_entropy_loss.default"
    ).split()
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A region that is to become a kernel, and what that saves."""

    region: Region
    kernels: tuple[fx.Node, ...]  # the nodes that were kernels of their own
    bytes_before: int
    bytes_after: int

    @property
    def launches(self) -> int:
        """The number of kernels it takes the place of."""
        return len(self.kernels)


def select(growth: Growth) -> tuple[list[Chosen], list[tuple[Group, Reason, str]]]:
    """Return the regions worth a kernel, and the other groups with the reason."""
    chosen: list[Chosen] = []
    left: list[tuple[Group, Reason, str]] = []
    for group in growth.groups:
        if group.region is None:
            continue  # a conversion that every user does for itself
        kernels = tuple(n for n in group.region.nodes if not is_alias(n))
        if len(kernels) > 1 or target_name(kernels[0]) in SLOW_ALONE:
            chosen.append(
                Chosen(
                    group.region,
                    kernels,
                    bytes_alone(kernels),
                    bytes_fused(group.region.nodes, group.region.inputs, group.region.outputs),
                )
            )
        else:
            left.append((group, *_why_single(kernels[0], growth)))
    return chosen, left


def _why_single(node: fx.Node, growth: Growth) -> tuple[Reason, str]:
    apart = growth.apart.get(node)
    if apart is None:
        return Reason.SINGLE, "one kernel already, with no fusable neighbour"
    neighbour, code, reason = apart
    return code, f"not with {neighbour.name}: {reason}"


def explain_rest(
    graph_number: int,
    verdicts: dict[fx.Node, Verdict],
    left: Iterable[tuple[Group, Reason, str]],
    nearest: Callable[[Group], tuple[str, fx.Node | None]],
) -> list[NotFused]:
    """Return an event for everything that stays with PyTorch.

    nearest: gives the rule that a group comes nearest to, and the node that does not fit it.
    """
    events: list[NotFused] = []
    for group, code, reason in left:
        rule, culprit = nearest(group) if code is not Reason.SINGLE else ("", None)
        where = None if culprit is None else node_info(culprit)
        events.append(NotFused(graph_number, _infos(group.nodes), code, reason, where, rule))
    for node, verdict in verdicts.items():
        if verdict.role is Role.OPAQUE and verdict.code is not None:
            info = node_info(node)
            events.append(NotFused(graph_number, (info,), verdict.code, verdict.reason, info))
    return events


def _infos(nodes: Iterable[fx.Node]) -> tuple[NodeInfo, ...]:
    return tuple(node_info(n) for n in nodes)
