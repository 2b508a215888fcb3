"""From planned sites to kernels in place: built, checked, timed; what fails goes back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fuseopt.config import Config, Environment
from fuseopt.errors import FuseOptError, KernelError, VerificationError
from fuseopt.events import Log, NotFused, Reason, RegionFused, RolledBack, Verified
from fuseopt.fuse.claim import Claim
from fuseopt.fuse.cost import bytes_alone, bytes_fused
from fuseopt.fuse.cost import hint_of as size_hint
from fuseopt.graph.form import NormalisedGraph
from fuseopt.graph.locate import node_info, tensor_text
from fuseopt.graph.splice import Call
from fuseopt.graph.symbols import hint_of
from fuseopt.ir.kernel import TensorParam
from fuseopt.plan import Replaced, Site
from fuseopt.runtime.build import Builder, Order
from fuseopt.runtime.cache import Store
from fuseopt.runtime.call import RegionKernel
from fuseopt.runtime.replacement import Layout, Replacement
from fuseopt.verify.check import check_region
from fuseopt.verify.profit import MARGIN, time_region
from fuseopt.verify.replacement import check_replacement

Kernels = Mapping[str, RegionKernel]


def device_of(gm: fx.GraphModule) -> torch.device:
    """Return the device most of a graph's tensors are on."""
    counts: dict[torch.device, int] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            counts[value.device] = counts.get(value.device, 0) + 1
    return max(counts, key=counts.__getitem__, default=torch.device("cpu"))


def can_launch(device: torch.device, environment: Environment) -> bool:
    """Whether kernels can run there: on a CUDA device, or interpreted on the CPU where asked."""
    if device.type == "cpu":
        return environment.interpret
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.is_available()


def build_sites(sites: Sequence[Site], builder: Builder, graph: int, log: Log) -> Kernels:
    """Build the kernel of each distinct site; one that does not compile is left out."""
    orders = [_order(site) for site in sites]
    with log.timed("build", graph):
        built = builder.build(orders)
    kernels: dict[str, RegionKernel] = {}
    for key, kernel in built.items():
        if isinstance(kernel, KernelError):
            log.record(RolledBack(graph, key, Reason.COMPILE, str(kernel)))
        else:
            kernels[key] = kernel
    for site in distinct(sites):
        if site.region.key in kernels:
            _keep_original(kernels[site.region.key], site, graph, log)
    return kernels


def _keep_original(kernel: RegionKernel, site: Site, graph: int, log: Log) -> None:
    """Let a kernel run what it replaces where it cannot be built for the sizes of a later call."""

    def refused(sizes: Sequence[int], error: FuseOptError) -> None:
        reason = f"{error}; it runs as written at sizes like {list(sizes)}"
        log.record(RolledBack(graph, site.region.key, Reason.COMPILE, reason))

    kernel.original, kernel.refused = site.reference, refused


def _order(site: Site) -> Order:
    symbols = tuple(kernel_symbol for _, kernel_symbol in site.region.symbols)
    hints = tuple(map(hint_of, site.sizes))
    title = f"Computes {', '.join(n.name for n in site.chosen.kernels)}."
    return Order(site.region.key, site.name, title, site.region.kernel, symbols, hints)


def without_refused(sites: Sequence[Site], graph: NormalisedGraph, log: Log) -> tuple[Site, ...]:
    """Return the sites of whose operations the other half keeps its kernels, and tell the others.

    The log has each distinct kernel that is put back.
    """
    refused = [s for s in sites if graph.pair.refuses(s.region.nodes)]
    for site in distinct(refused):
        log.record(RolledBack(graph.number, site.region.key, Reason.WRONG, _half(site)))
    for site in refused:
        nodes = tuple(map(node_info, site.chosen.kernels))
        log.record(NotFused(graph.number, nodes, Reason.WRONG, _half(site), rule=site.rule))
    return tuple(s for s in sites if s not in refused)


def _half(site: Site) -> str:
    return f"{site.name} is put back with the other half of its operations, which disagrees"


def verify_sites(
    sites: Sequence[Site],
    kernels: Kernels,
    graph: int,
    config: Config,
    log: Log,
    store: Store | None = None,
) -> Kernels:
    """Check each distinct kernel; one that fails is left out, or raises where `strict` is set.

    store: where it is kept which kernels have passed.
    """
    passed: dict[str, RegionKernel] = {}
    with log.timed("verify", graph):
        for site in distinct(sites):
            kernel = kernels.get(site.region.key)
            if kernel is None:
                continue
            verdict = _verified(site, kernel, store)
            log.record(verdict)
            if verdict.passed:
                passed[site.region.key] = kernel
                continue
            text = f"{site.name} disagrees with the operations it replaces: {verdict.detail}"
            path = next((b.path for b in kernel.built.values()), "")
            text = text if path in text else f"{text}; see {path}"
            log.record(RolledBack(graph, site.region.key, Reason.WRONG, text, path))
            if config.strict:
                raise VerificationError(text)
    return passed


def _verified(site: Site, kernel: RegionKernel, store: Store | None) -> Verified:
    sizes = list(map(hint_of, site.sizes))
    return check_region(site.region.key, kernel, site.reference, site.hints, sizes, store)


def drop_slower(
    sites: Sequence[Site], kernels: Kernels, builder: Builder, graph: int, log: Log
) -> Kernels:
    """Leave out kernels that are slower on the device than what they replace."""
    kept: dict[str, RegionKernel] = {}
    with log.timed("time", graph):
        for site in distinct(sites):
            kernel = kernels.get(site.region.key)
            if kernel is None:
                continue
            sizes = list(map(hint_of, site.sizes))
            kernel.seconds, kernel.seconds_before = time_region(
                site.region.key, kernel, site.reference, site.hints, sizes, builder.store
            )
            if kernel.seconds <= kernel.seconds_before * MARGIN:
                kept[site.region.key] = kernel
                continue
            text = (
                f"{site.name} takes {kernel.seconds * 1e6:.1f} us, "
                f"the original operations {kernel.seconds_before * 1e6:.1f} us"
            )
            log.record(RolledBack(graph, site.region.key, Reason.SLOWER, text))
    return kept


def calls_of(sites: Sequence[Site], kernels: Mapping[str, Callable[..., Any]]) -> list[Call]:
    """Return what is to be spliced in: a call for each site whose kernel is in use."""
    return [
        Call(
            kernels[site.region.key],
            site.name,
            (*site.region.inputs, *site.sizes),
            site.region.nodes,
            site.region.outputs,
            site.region.kernel.launches,
        )
        for site in sites
        if site.region.key in kernels
    ]


@dataclass(slots=True)
class Replacing:
    """Decides on what rules have in place of matches: equal claims are checked once.

    calls: what is to be spliced in for those accepted.
    """

    device: torch.device
    graph: int
    config: Config
    log: Log
    calls: list[Call] = field(default_factory=list)
    _verdicts: dict[str, bool] = field(default_factory=dict)

    def accept(self, one: Replaced) -> bool:
        """Check a replacement against the operations it replaces and say whether they agree.

        Raises `VerificationError` where it does not and `strict` is set.
        """
        claim = one.claim
        target = _replacement(claim)
        if claim.key not in self._verdicts:
            self._verdicts[claim.key] = not self.config.verify or self._agrees(one, target)
        if not self._verdicts[claim.key]:
            return False
        number = len(self.calls)
        self.calls.append(Call(target, claim.rule, claim.inputs, claim.dead, claim.outputs))
        self.log.record(_replaced_event(one, target, self.graph, number))
        return True

    def _agrees(self, one: Replaced, target: Replacement) -> bool:
        key, rule = one.claim.key, one.claim.rule
        params = [_param(n.meta["val"]) for n in one.claim.inputs]
        sizes = list(map(hint_of, one.sizes))
        with self.log.timed("verify", self.graph):
            verdict = check_replacement(key, target, one.reference, params, self.device, sizes)
        self.log.record(verdict)
        if not verdict.passed:
            text = f"what rule {rule} has disagrees with what it replaces: {verdict.detail}"
            self.log.record(RolledBack(self.graph, key, Reason.WRONG, text))
            if self.config.strict:
                raise VerificationError(text)
        return verdict.passed


def _replacement(claim: Claim) -> Replacement:
    places = itertools.count()
    scalars = claim.match.scalars
    arguments = tuple(
        ("number", scalars[name]) if name in scalars else ("tensor", next(places))
        for name in claim.prewritten.inputs
    )
    layouts = tuple(Layout.of(n.meta["val"]) for n in claim.outputs)
    function = claim.prewritten.function
    return Replacement(f"rule_{claim.rule}", function, arguments, claim.picks, layouts)


def _param(value: torch.Tensor) -> TensorParam:
    shape, strides = (tuple(map(size_hint, sizes)) for sizes in (value.shape, value.stride()))
    return TensorParam(value.dtype, shape, strides)


def _replaced_event(one: Replaced, target: Replacement, graph: int, number: int) -> RegionFused:
    claim = one.claim
    kernels = [n for n in claim.dead if n in claim.match.nodes]
    return RegionFused(
        graph=graph,
        region=f"g{graph}p{number}",
        rule=claim.rule,
        kernel=target.name,
        key=claim.key,
        nodes=tuple(map(node_info, kernels)),
        inputs=tuple(map(_tensor_text, claim.inputs)),
        outputs=tuple(map(_tensor_text, claim.outputs)),
        bytes_before=bytes_alone(kernels),
        bytes_after=bytes_fused(kernels, claim.inputs, claim.outputs),
        launches_before=len(kernels),
        schedule="",
    )


def record_sites(
    sites: Sequence[Site], kernels: Kernels, graph: int, log: Log, *, planned: bool = False
) -> None:
    """Record what became of each site: a kernel (where only `planned`, it would), or why not."""
    failures = {e.key: e for e in log.of(RolledBack) if e.graph == graph}
    for number, site in enumerate(sites):
        key = site.region.key
        kernel = kernels.get(key)
        if kernel is not None or planned:
            log.record(_fused(site, kernel, graph, number))
        elif key in failures:
            nodes = tuple(map(node_info, site.chosen.kernels))
            why = failures[key]
            log.record(NotFused(graph, nodes, why.code, why.reason, rule=site.rule))


def _fused(site: Site, kernel: RegionKernel | None, graph: int, number: int) -> RegionFused:
    built = next(iter(kernel.built.values())) if kernel is not None and kernel.built else None
    return RegionFused(
        graph=graph,
        region=f"g{graph}r{number}",
        rule=site.rule,
        kernel=site.name,
        key=site.region.key,
        nodes=tuple(node_info(n) for n in site.chosen.kernels),
        inputs=tuple(_tensor_text(n) for n in site.region.inputs),
        outputs=tuple(_tensor_text(n) for n in site.region.outputs),
        bytes_before=site.chosen.bytes_before,
        bytes_after=site.chosen.bytes_after,
        launches_before=site.chosen.launches,
        schedule=built.candidate.schedule.describe() if built else "",
        seconds=kernel.seconds if kernel is not None else 0.0,
        seconds_before=kernel.seconds_before if kernel is not None else 0.0,
        launches_after=site.region.kernel.launches,
    )


def distinct(sites: Sequence[Site]) -> list[Site]:
    """Return the first site of each structure."""
    return list({site.region.key: site for site in reversed(sites)}.values())[::-1]


def _tensor_text(node: fx.Node) -> str:
    return tensor_text(node.meta["val"])
