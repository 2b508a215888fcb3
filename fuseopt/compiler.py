"""Compiling one normalised graph: plan, build, verify, splice, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.config import Config, Environment
from fuseopt.events import FellBack, Log, NotReplayed, Planned, Reason, RolledBack, Spliced
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
    without_refused,
)
from fuseopt.verify.graph import FirstCallCheck
from fuseopt.verify.watch import References, Watch

WITH_BACKWARD = "the backward graph disagrees and is put back: the forward graph goes with it"


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

    others: what else is called, in place of matches of rules.
    spliced: the graph with its kernels and the others called in it.
    """

    device: torch.device
    sites: tuple[Site, ...]
    kernels: Kernels
    others: tuple[Call, ...]
    spliced: fx.GraphModule

    @property
    def changed(self) -> bool:
        """Whether anything is called."""
        return bool(self.kernels or self.others)


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
    sites = without_refused(plan.sites, graph, log)
    kernels = build_sites(sites, builder, graph.number, log)
    if config.verify:
        built = kernels
        kernels = verify_sites(sites, built, graph.number, config, log, builder.store)
        wrong = [s for s in sites if s.region.key in built and s.region.key not in kernels]
        for site in wrong:
            graph.pair.refuse(site.region.nodes)
        if wrong and graph.level == "backward":
            graph.pair.put_back()
    if device.type == "cuda" and environment.tune:
        kernels = drop_slower(sites, kernels, builder, graph.number, log)
    record_sites(sites, kernels, graph.number, log)
    others = (*replacing.calls, *head_calls(graph, builder, config, log))
    spliced = _spliced(graph, [*others, *calls_of(sites, kernels)], log)
    return Examined(device, sites, kernels, others, spliced)


def _spliced(graph: NormalisedGraph, calls: Sequence[Call], log: Log) -> fx.GraphModule:
    """Return the graph with calls in place, and record how many kernels that leaves.

    Composites of which no piece is in a kernel become whole again.
    """
    in_kernels = {node for call in calls for node in call.nodes}
    make_whole(graph.gm, lambda node: node not in in_kernels)
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
    original = run_original(graph.gm)
    text, run = _checked(graph, made, original, config, log)
    running = _Running(run)
    if graph.level == "forward":

        def put_back() -> None:
            running.run = original
            if graph.pair.whole:
                key = f"graph:{graph.number}"
                log.record(RolledBack(graph.number, key, Reason.WRONG, WITH_BACKWARD))
            else:
                sites = without_refused(made.sites, graph, log)
                calls = [*made.others, *calls_of(sites, made.kernels)]
                fewer = replace(made, sites=sites, spliced=_spliced(graph, calls, log))
                _, running.run = _checked(graph, fewer, original, config, log)

        graph.pair.put_back = put_back
    if config.mode == "reduce-overhead":
        running.run = _replayed(running.run, graph, made.device, log)
    return with_source(running, original, text)


@dataclass(slots=True)
class _Running:
    """What runs as a graph, which may change."""

    run: Compiled


def _checked(
    graph: NormalisedGraph, made: Examined, original: Compiled, config: Config, log: Log
) -> tuple[str, Compiled]:
    """Return the code of an examined graph, and what runs it and checks it the first time."""
    reinplace(made.spliced)
    emitted = emit(made.spliced, f"graph_{graph.number}", made.device, graph.level)
    if not (config.verify and made.changed):
        return emitted.text, emitted.run

    def failed() -> None:
        graph.pair.whole = True
        if graph.level == "backward":
            graph.pair.put_back()

    number, strict = graph.number, config.strict
    check = FirstCallCheck(emitted.run, original, graph.gm, number, log, strict, failed)
    return emitted.text, check


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


def with_source(running: _Running, original: Compiled, text: str) -> Compiled:
    """Return a plain function that calls what runs, with the code that is shown for it.

    original: runs instead for tensors that kernels cannot work on.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        return original(args) if tensors_stand_in() else running.run(args)

    call.source = text  # type: ignore[attr-defined]
    return call


def run_original(gm: fx.GraphModule) -> Compiled:
    """Return a graph's own operations as a function of a list of inputs, which it empties."""
    boxed = copy_graph(gm)
    reinplace(boxed)
    boxed.graph.set_codegen(_BoxedCodeGen())
    boxed.recompile()
    return boxed.forward
