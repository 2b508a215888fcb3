"""From planned sites to kernels in place: built, checked, timed; what fails goes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fuseopt.config import Config, Environment
from fuseopt.errors import KernelError, VerificationError
from fuseopt.events import Log, NotFused, Reason, RegionFused, RolledBack, Verified
from fuseopt.graph.locate import node_info
from fuseopt.graph.splice import Call
from fuseopt.graph.symbols import hint_of
from fuseopt.plan import Site
from fuseopt.runtime.build import Builder, Order
from fuseopt.runtime.call import RegionKernel
from fuseopt.verify.check import check_region
from fuseopt.verify.profit import MARGIN, time_region

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
    return kernels


def _order(site: Site) -> Order:
    symbols = tuple(kernel_symbol for _, kernel_symbol in site.region.symbols)
    hints = tuple(map(hint_of, site.sizes))
    title = f"Computes {', '.join(n.name for n in site.chosen.kernels)}."
    return Order(site.region.key, site.name, title, site.region.kernel, symbols, hints)


def verify_sites(
    sites: Sequence[Site], kernels: Kernels, graph: int, config: Config, log: Log
) -> Kernels:
    """Check each distinct kernel; one that fails is left out, or raises where `strict` is set."""
    passed: dict[str, RegionKernel] = {}
    with log.timed("verify", graph):
        for site in distinct(sites):
            kernel = kernels.get(site.region.key)
            if kernel is None:
                continue
            verdict = _verified(site, kernel)
            log.record(verdict)
            if verdict.passed:
                passed[site.region.key] = kernel
                continue
            text = f"{site.name} disagrees with the operations it replaces: {verdict.detail}"
            log.record(RolledBack(graph, site.region.key, Reason.WRONG, text))
            if config.strict:
                raise VerificationError(text)
    return passed


def _verified(site: Site, kernel: RegionKernel) -> Verified:
    sizes = list(map(hint_of, site.sizes))
    return check_region(site.region.key, kernel, site.reference, site.hints, sizes)


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


def calls_of(sites: Sequence[Site], kernels: Kernels) -> list[Call]:
    """Return what is to be spliced in: a call for each site whose kernel is in use."""
    return [
        Call(
            kernels[site.region.key],
            site.name,
            (*site.region.inputs, *site.sizes),
            site.region.nodes,
            site.region.outputs,
        )
        for site in sites
        if site.region.key in kernels
    ]


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
    )


def distinct(sites: Sequence[Site]) -> list[Site]:
    """Return the first site of each structure."""
    return list({site.region.key: site for site in reversed(sites)}.values())[::-1]


def _tensor_text(node: fx.Node) -> str:
    value: Any = node.meta["val"]
    shape = ", ".join(map(str, value.shape))
    return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
