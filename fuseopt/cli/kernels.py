"""The kernels of an examined target: found by region, printed, compiled for a named GPU."""

from __future__ import annotations

from dataclasses import dataclass

from fuseopt.cli.examine import Examination
from fuseopt.codegen.generate import Candidate, generate
from fuseopt.errors import KernelError, UsageError
from fuseopt.events import KernelCompiled, Log
from fuseopt.plan import Site
from fuseopt.runtime.binary import Binary, Target
from fuseopt.runtime.cache import Store
from fuseopt.runtime.compile import compile_many
from fuseopt.runtime.resources import read_resources
from fuseopt.sites import distinct


@dataclass(frozen=True, slots=True)
class Place:
    """A region as reports name it, "g0r3", and its site."""

    region: str
    site: Site


def places(made: Examination) -> list[Place]:
    """Return the regions of all graphs, in the order and under the names of the report."""
    return [
        Place(f"g{graph.number}r{number}", site)
        for graph, examined in made.graphs
        for number, site in enumerate(examined.sites)
    ]


def find_place(made: Examination, text: str) -> Place:
    """Return the region that a name, a kernel's name or the start of one stands for."""
    known = places(made)
    if not known:
        raise UsageError(f"{made.target.name} has no regions to show")
    exact = [p for p in known if text in (p.region, p.site.name)]
    similar = exact or [p for p in known if text and p.site.name.startswith(text)]
    if similar and len({p.site.region.key for p in similar}) == 1:
        return similar[0]
    names = ", ".join(dict.fromkeys(p.region for p in similar or known))
    problem = "stands for several regions" if similar else "is not a region of the report"
    raise UsageError(f"{text!r} {problem}: {names}")


def print_kernel(made: Examination, site: Site) -> Candidate:
    """Return a region's kernel as it runs on a GPU: the tuned one, or the best guess."""
    for _, examined in made.graphs:
        kernel = examined.kernels.get(site.region.key)
        if kernel is not None and kernel.built and examined.device.type == "cuda":
            return next(iter(kernel.built.values())).candidate
    title = f"Computes {', '.join(n.name for n in site.chosen.kernels)}."
    return generate(site.region.kernel, site.name, site.hints, title=title)[0]


def compile_kernels(made: Examination, target: Target, log: Log) -> None:
    """Compile each distinct kernel for a GPU that need not be here, and record what it takes."""
    sites = distinct([p.site for p in places(made)])
    store = Store(made.environment.cache_dir)
    steps = [(site, source) for site in sites for source in print_kernel(made, site).sources]
    sources = [source for _, source in steps]
    results = compile_many(sources, target, store, made.environment.jobs)
    for (site, source), result in zip(steps, results, strict=True):
        log.record(_compiled(site, source.name, target, result))


def _compiled(
    site: Site, name: str, target: Target, result: Binary | KernelError
) -> KernelCompiled:
    key = site.region.key
    if isinstance(result, KernelError):
        return KernelCompiled(key, name, str(target), error=str(result))
    used = read_resources(result)
    spills = None
    if used.spill_loads is not None and used.spill_stores is not None:
        spills = used.spill_loads + used.spill_stores
    shared = used.dynamic_shared_bytes + (used.static_shared_bytes or 0)
    return KernelCompiled(key, name, str(target), used.registers, used.stack_bytes, spills, shared)
