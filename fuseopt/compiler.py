"""Compiling one normalised graph: plan, build, verify, splice, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.config import Config, Environment
from fuseopt.events import FellBack, Log, NotReplayed, Planned, Reason, Spliced
from fuseopt.graph.form import NormalisedGraph, copy_graph, count_kernels, written_inputs
from fuseopt.graph.normalise import Compiled
from fuseopt.graph.reinplace import reinplace
from fuseopt.graph.splice import Call, splice
from fuseopt.graph.whole import make_whole
from fuseopt.heads import head_calls
from fuseopt.plan import Site, plan_graph
from fuseopt.runtime.build import Builder
from fuseopt.runtime.emit import emit
from fuseopt.runtime.replay import Replay
from fuseopt.runtime.stand_ins import apart_from_batches, tensors_stand_in
from fuseopt.sites import (
    Kernels,
    Replacing,
    build_sites,
    calls_of,
    can_launch,
    device_of,
    distinct,
    drop_slower,
    record_sites,
    verify_sites,
)
from fuseopt.verify.graph import FirstCallCheck
from fuseopt.verify.watch import References, Watch


def compile_graph(
    graph: NormalisedGraph,
    config: Config,
    environment: Environment,
    log: Log,
    watch: Watch | None = None,
) -> Compiled:
    """Compile one normalised graph to a function of a list of its inputs, which it may clear.

    The function's attribute `source`, where it has one, is the code that is shown for it. watch:
    looks at each kernel as the graph runs.
    """
    # AOTAutograd compiles under its fake tensor mode; kernels are tried on real tensors.
    with _disable_current_modes(), apart_from_batches():
        return _compile(graph, config, environment, log, watch)


def examine_graph(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Examined:
    """Do all but run: plan, build and verify a graph's kernels, by interpreter on the CPU."""
    with _disable_current_modes():
        return _examine(graph, config, environment, log)


@dataclass(frozen=True, slots=True)
class Examined:
    """The sites of a graph, and the kernels of those that are in use, by structural key.

    spliced: the graph with its kernels, and what rules put in place of matches, called in it.
    changed: whether anything is.
    """

    device: torch.device
    sites: tuple[Site, ...]
    kernels: Kernels
    spliced: fx.GraphModule
    changed: bool


def _examine(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Examined:
    device = device_of(graph.gm)
    replacing = Replacing(device, graph.number, config, log)
    builder = Builder(device, environment)
    plan = plan_graph(graph, device, config, log, replacing.accept, builder.store)
    for event in plan.rest:
        log.record(event)
    log.record(Planned(graph.number, len(plan.sites), len(distinct(plan.sites))))
    kernels = build_sites(plan.sites, builder, graph.number, log)
    if config.verify:
        kernels = verify_sites(plan.sites, kernels, graph.number, config, log, builder.store)
    if device.type == "cuda" and environment.tune:
        kernels = drop_slower(plan.sites, kernels, builder, graph.number, log)
    record_sites(plan.sites, kernels, graph.number, log)
    heads = head_calls(graph, builder, config, log)
    calls = [*replacing.calls, *heads, *calls_of(plan.sites, kernels)]
    in_kernels = {node for call in calls for node in call.nodes}
    make_whole(graph.gm, lambda node: node not in in_kernels)
    spliced = _spliced(graph, calls, log)
    return Examined(device, plan.sites, kernels, spliced, bool(calls))


def _spliced(graph: NormalisedGraph, calls: Sequence[Call], log: Log) -> fx.GraphModule:
    """Return the graph with calls in place, and record how many kernels that leaves."""
    spliced = splice(graph.gm, calls)
    launches = count_kernels(spliced) + sum(c.launches for c in calls)
    log.record(Spliced(graph.number, launches))
    return spliced


def _compile(
    graph: NormalisedGraph,
    config: Config,
    environment: Environment,
    log: Log,
    watch: Watch | None,
) -> Compiled:
    device = device_of(graph.gm)
    if not can_launch(device, environment):
        log.record(FellBack(graph.number, Reason.NO_DEVICE, f"no Triton device: runs on {device}"))
        plan = plan_graph(graph, device, config, log)
        for event in plan.rest:
            log.record(event)
        record_sites(plan.sites, {}, graph.number, log, planned=True)
        planned = dict.fromkeys((s.region.key for s in plan.sites), run_original)
        _spliced(graph, calls_of(plan.sites, planned), log)
        return run_original(graph.gm)
    made = _examine(graph, config, environment, log)
    if watch is not None:
        return _watched(graph, made, watch)
    return emit_graph(graph, made, config, log)


def _watched(graph: NormalisedGraph, made: Examined, watch: Watch) -> Compiled:
    references: References = {}
    for site in made.sites:
        kernel = made.kernels.get(site.region.key)
        known = references.setdefault(id(kernel), [])
        known.append((site.reference, site.region.nodes))
    return watch.run_of(made.spliced, references, graph.number, graph.level)


def emit_graph(graph: NormalisedGraph, made: Examined, config: Config, log: Log) -> Compiled:
    """Return an examined graph as a function, which checks itself when it is first called."""
    reinplace(made.spliced)
    emitted = emit(made.spliced, f"graph_{graph.number}", made.device, graph.level)
    run: Compiled = emitted.run
    original = run_original(graph.gm)
    if config.verify and made.changed:
        run = FirstCallCheck(run, original, graph.gm, graph.number, log, config.strict)
    if config.mode == "reduce-overhead":
        run = _replayed(run, graph, made.device, log)
    return with_source(run, original, emitted.text)


def _replayed(run: Compiled, graph: NormalisedGraph, device: torch.device, log: Log) -> Compiled:
    """Return a graph that is replayed as a CUDA graph, where it can be."""

    def refused(reason: str) -> None:
        log.record(NotReplayed(graph.number, reason))

    if device.type != "cuda":
        refused(f"it runs on {device}")
        return run
    if graph.level != "inference":
        refused("it is part of a training step")
        return run
    own = frozenset(i for i, given in enumerate(graph.inputs) if given.is_static)
    return Replay(run, device, own, written_inputs(graph.gm), refused)


def with_source(run: Compiled, original: Compiled, text: str) -> Compiled:
    """Return a plain function that calls `run`, with the code that is shown for it.

    original: runs instead for tensors that kernels cannot work on.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        return original(args) if tensors_stand_in() else run(args)

    call.source = text  # type: ignore[attr-defined]
    return call


def run_original(gm: fx.GraphModule) -> Compiled:
    """Return a graph's own operations as a function of a list of inputs, which it empties."""
    boxed = copy_graph(gm)
    reinplace(boxed)
    boxed.graph.set_codegen(_BoxedCodeGen())
    boxed.recompile()
    return boxed.forward
