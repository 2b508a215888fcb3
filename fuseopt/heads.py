"""Running the chunked losses of a graph with kernels of their own for the rows of a chunk.

What `row_losses` does to a chunk's logits is traced like a graph of the user's and becomes, as a
rule, one kernel: logits are read, losses and slopes written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.config import Config
from fuseopt.events import Log
from fuseopt.graph.form import Input, NormalisedGraph
from fuseopt.graph.splice import Call, splice
from fuseopt.ops.linear_loss import (
    LINEAR_CROSS_ENTROPY,
    HeadLoss,
    Step,
    loss_by_chunks,
    row_losses,
)
from fuseopt.plan import plan_graph
from fuseopt.runtime.build import Builder
from fuseopt.runtime.emit import emit
from fuseopt.sites import build_sites, calls_of, verify_sites

Outputs = list[torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedLoss:
    """Computes a head with a kernel for its chunks. picks: which of its results are wanted."""

    head: HeadLoss
    step: Step
    has_bias: bool
    picks: tuple[int, ...]

    @property
    def __name__(self) -> str:
        return "linear_cross_entropy"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Take hidden values, weight, bias where there is one, and targets."""
        hidden, weight, *rest = tensors
        bias = rest[0] if self.has_bias else None
        with torch.no_grad():
            made = loss_by_chunks(self.head, hidden, weight, bias, rest[-1], self.step)
        wanted = tuple(made[n] for n in self.picks)
        return wanted[0] if len(wanted) == 1 else wanted


def head_calls(graph: NormalisedGraph, builder: Builder, config: Config, log: Log) -> list[Call]:
    """Return what is to be spliced in for the chunked losses of a graph."""
    steps: dict[Any, Step] = {}
    calls = []
    for node in graph.gm.graph.find_nodes(op="call_function", target=LINEAR_CROSS_ENTROPY):
        head = HeadLoss.of(node.args[4:])
        classes = node.args[1].meta["val"].shape[0] + head.padding
        kind = (head, classes, node.args[0].meta["val"].dtype)
        if kind not in steps:
            steps[kind] = _step(*kind, graph.number, builder, config, log)
        calls.append(_call(node, head, steps[kind]))
    return calls


def _call(node: fx.Node, head: HeadLoss, step: Step) -> Call:
    taken = [n for n in node.users if n.target is operator.getitem and n.users]
    operands = [a for a in node.args[:4] if isinstance(a, fx.Node)]
    picks = tuple(int(n.args[1]) for n in taken)  # type: ignore[arg-type]
    target = ChunkedLoss(head, step, node.args[2] is not None, picks)
    return Call(target, target.__name__, tuple(operands), (node, *taken), tuple(taken))


def _step(
    head: HeadLoss,
    classes: int,
    dtype: torch.dtype,
    number: int,
    builder: Builder,
    config: Config,
    log: Log,
) -> Step:
    """The losses and slopes of a chunk, by kernels that agree with the operations they replace."""
    graph = NormalisedGraph(
        _traced(head, classes, dtype, builder.device),
        "inference",
        number,
        (Input("input"), Input("input")),
    )
    config = replace(config, rules=())
    sites = plan_graph(graph, builder.device, config, log, entries=builder.store).sites
    kernels = build_sites(sites, builder, number, log)
    if config.verify:
        kernels = verify_sites(sites, kernels, number, config, log)
    spliced = splice(graph.gm, calls_of(sites, kernels))
    run: Callable[..., Any] = emit(
        spliced, f"rows_of_graph_{number}", builder.device, "inference"
    ).run

    def step(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, Any]:
        losses, *slopes = run([logits, target])
        return losses, slopes[0] if slopes else None

    return step


def _traced(
    head: HeadLoss, classes: int, dtype: torch.dtype, device: torch.device
) -> fx.GraphModule:
    def rows(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t for t in row_losses(head, logits, target) if t is not None)

    with FakeTensorMode(), torch.no_grad():
        logits = torch.empty((head.chunk, classes), dtype=dtype, device=device)
        target = torch.empty((head.chunk,), dtype=torch.int64, device=device)
        return make_fx(rows)(logits, target)
