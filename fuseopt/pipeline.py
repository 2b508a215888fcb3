"""The way of one captured graph: normalise it, compile each part, fall back where that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import RestartAnalysis

from fuseopt.compiler import compile_graph, run_original
from fuseopt.config import Config, Environment
from fuseopt.errors import CaptureError, FuseOptError, RuleError, UsageError
from fuseopt.events import FellBack, GraphCaptured, Log, Reason
from fuseopt.graph.form import NormalisedGraph, count_kernels
from fuseopt.graph.guards import guard_hooks
from fuseopt.graph.normalise import Compiled, normalise
from fuseopt.graph.overlap import SHARED
from fuseopt.graph.pad import pad_products
from fuseopt.graph.seeded_dropout import seed_dropouts
from fuseopt.graph.whole import make_whole
from fuseopt.rewrite import rewrite
from fuseopt.sites import can_launch
from fuseopt.verify.watch import Watch


@dataclass(frozen=True, slots=True)
class Session:
    """What all graphs of one optimised object share.

    sources: the code of each compiled graph, in order. watch: looks at each kernel as it runs.
    """

    config: Config
    log: Log
    sources: list[str] = field(default_factory=list)
    watch: Watch | None = None

    def source(self) -> str:
        """Return the code of the graphs compiled so far."""
        return "\n\n".join(self.sources)


def compile_captured(
    gm: fx.GraphModule, example_inputs: Sequence[Any], session: Session, environment: Environment
) -> Callable[..., Any]:
    """Compile a graph captured by Dynamo and return a function of the graph's inputs.

    A graph that cannot be brought to normal form runs as captured, with a `FellBack` event, or
    raises `CaptureError` where `strict` is set.
    """
    log = session.log

    def has_kernels(device: torch.device) -> bool:
        return can_launch(device, environment)

    def as_written(*args: Any) -> Any:
        event = FellBack(-1, Reason.CAPTURE, SHARED)
        if event not in log.events:
            log.record(event)
        return gm(*args)

    guard_hooks()
    try:
        with log.timed("normalise"):
            rewritten = rewrite(gm, session.config, log, has_kernels)
            run = normalise(
                rewritten.gm,
                example_inputs,
                lambda graph: compile_part(graph, session, environment),
                log.next_graph,
                has_kernels,
                as_written,
            )
        for event in rewritten.fused:
            log.record(event)
        return run
    except (FuseOptError, RestartAnalysis):
        raise
    except Exception as error:
        if session.config.strict:
            raise CaptureError(f"a captured graph has no functional form: {error}") from error
        log.record(FellBack(-1, Reason.CAPTURE, first_line(error)))
        return gm.forward


def compile_part(graph: NormalisedGraph, session: Session, environment: Environment) -> Compiled:
    """Compile a normalised graph, recording that it was captured and its code."""
    nodes = sum(n.op == "call_function" for n in graph.gm.graph.nodes)
    kernels = count_kernels(graph.gm)
    session.log.record(GraphCaptured(graph.number, graph.level, nodes, kernels))
    if graph.level == "inference":  # of training, both graphs have the same seeds already
        seed_dropouts(graph.gm, lambda device: can_launch(device, environment))
    pad_products(graph.gm, lambda device: device.type == "cuda" and can_launch(device, environment))
    with session.log.timed("compile", graph.number):
        run = _compile_or_fall_back(graph, session, environment)
    title = f"# graph {graph.number}, {graph.level}\n"
    session.sources.append(title + getattr(run, "source", graph.gm.code).strip() + "\n")
    return run


def _compile_or_fall_back(
    graph: NormalisedGraph, session: Session, environment: Environment
) -> Compiled:
    # A backward graph may be compiled inside the user's first backward pass, which must not end.
    try:
        return compile_graph(graph, session.config, environment, session.log, session.watch)
    except (UsageError, RuleError):
        raise
    except Exception as error:
        if session.config.strict:
            raise
        session.log.record(FellBack(graph.number, Reason.COMPILE, first_line(error)))
        make_whole(graph.gm, lambda _: True)
        return run_original(graph.gm)


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type, and its text up to the end of a statement.

    That is the first line, and the next where it ends in a colon: "error for field 'width':".
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((i for i, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    text = " ".join(lines[:end])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
