"""What a report shows once: equal regions of repeated layers, and rejects with the same reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fuseopt.events import NodeInfo, NotFused, Reason
from fuseopt.report.build import FusedRegion
from fuseopt.report.shorten import region_place, short_ops, shorten_paths

MEANINGS = {
    Reason.HEAVY: "left to the vendor's kernel",
    Reason.NO_DEFINITION: "nothing says how a kernel would compute it",
    Reason.MUTATION: "writes to a tensor that the caller or the model holds",
    Reason.RANDOM: "draws random numbers",
    Reason.DTYPE: "a dtype that kernels do not handle",
    Reason.DEVICE: "on another device than the kernels",
    Reason.DATA_DEPENDENT: "a size or number known only when the model runs",
    Reason.LAYOUT: "a layout that kernels do not write",
    Reason.SINGLE: "one kernel already, with nothing to fuse it with",
    Reason.AXES: "iterates over other axes than its neighbours",
    Reason.CYCLE: "between two parts that depend on each other",
    Reason.TOO_LARGE: "more than one kernel should hold",
    Reason.NO_GAIN: "fusing would save nothing",
    Reason.INDEX: "an index that kernels cannot express",
    Reason.REJECTED: "a rule matched and declined",
    Reason.WRONG: "the kernel did not agree with the original",
    Reason.COMPILE: "the kernel did not compile",
    Reason.SLOWER: "measured slower than the original",
    Reason.CAPTURE: "not captured",
    Reason.NO_DEVICE: "no device to run kernels on",
    Reason.TRAINING: "gradients are needed",
}


@dataclass(frozen=True, slots=True)
class RegionGroup:
    """Regions that share a kernel and the names of their ops; the first stands for all."""

    regions: tuple[FusedRegion, ...]

    @property
    def first(self) -> FusedRegion:
        """The region that is shown."""
        return self.regions[0]

    @property
    def places(self) -> list[str]:
        """Where the regions lie, equal layers joined."""
        return shorten_paths(region_place(r.nodes) for r in self.regions)

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The operations of all regions."""
        return tuple(n for r in self.regions for n in r.nodes)


def group_regions(regions: Iterable[FusedRegion]) -> list[RegionGroup]:
    """Group regions with the same kernel, rule and ops, in order of their first."""
    groups: dict[tuple[object, ...], list[FusedRegion]] = {}
    for region in regions:
        key = (region.key, region.rule, region.running, short_ops(region.nodes))
        groups.setdefault(key, []).append(region)
    return [RegionGroup(tuple(found)) for found in groups.values()]


@dataclass(frozen=True, slots=True)
class RejectGroup:
    """Rejects with one reason and the same ops."""

    rejects: tuple[NotFused, ...]

    @property
    def first(self) -> NotFused:
        """The reject that is shown."""
        return self.rejects[0]

    @property
    def sentence(self) -> str:
        """The reason, where it says more than the code."""
        text = _sentence(self.first)
        return "" if text == "one kernel already, with no fusable neighbour" else text

    @property
    def ops(self) -> str:
        """The operations of one reject."""
        return short_ops(self.first.nodes)

    @property
    def places(self) -> list[str]:
        """Where the operations lie, equal layers joined."""
        return shorten_paths(region_place(r.nodes) for r in self.rejects)


def group_rejects(rejects: Iterable[NotFused]) -> dict[Reason, list[RejectGroup]]:
    """Group rejects by code, then by ops, nearest rule and the sentence that gives the reason."""
    by_code: dict[Reason, dict[tuple[object, ...], list[NotFused]]] = {}
    for reject in rejects:
        key = (short_ops(reject.nodes), reject.rule, _sentence(reject))
        by_code.setdefault(reject.code, {}).setdefault(key, []).append(reject)
    ordered = sorted(by_code, key=lambda code: (code is Reason.HEAVY, list(Reason).index(code)))
    return {code: [RejectGroup(tuple(g)) for g in by_code[code].values()] for code in ordered}


def _sentence(reject: NotFused) -> str:
    """The reason without the names of nodes, which differ from layer to layer."""
    text = reject.reason
    return text.partition(": ")[2] if text.startswith("not with ") else text
