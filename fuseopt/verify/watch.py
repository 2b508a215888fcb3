"""Running a compiled graph node by node, each kernel next to the operations it replaces.

Slow, and made for finding where results part: the inputs of every kernel are those of the run, so a
kernel that disagrees is wrong by itself, and not for what came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fuseopt.runtime.call import RegionKernel
from fuseopt.verify.compare import Verdict
from fuseopt.verify.outputs import judge_outputs

# By the id of a kernel: for each of its calls in order, the operations that it replaces, as a graph
# of its arguments and as the nodes that they were.
References = dict[int, list[tuple[fx.GraphModule, tuple[fx.Node, ...]]]]
Run = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Watched:
    """One kernel in one run.

    kernel: its name. nodes: the operations it replaces, in order. level: of its graph. verdict: on
    the inputs of the run. path: the file with its source.
    """

    graph: int
    level: str
    kernel: str
    nodes: tuple[fx.Node, ...]
    verdict: Verdict
    path: str = ""


@dataclass(slots=True)
class Watch:
    """What is seen of the kernels of some graphs, in the order in which they run."""

    found: list[Watched] = field(default_factory=list)

    def run_of(
        self,
        graph: fx.GraphModule,
        references: References,
        number: int,
        level: str,
    ) -> Run:
        """Return the graph as a function that looks at its kernels.

        graph: the graph with calls of kernels. number, level: of the graph.
        """

        def run(args: list[Any]) -> Sequence[Any]:
            with torch.no_grad():
                results: Sequence[Any] = _Watching(self, graph, references, number, level).run(
                    *args
                )
            return results

        return run


class _Watching(fx.Interpreter):
    def __init__(
        self,
        watch: Watch,
        graph: fx.GraphModule,
        references: References,
        number: int,
        level: str,
    ) -> None:
        super().__init__(graph)
        self.watch = watch
        self.left = {kernel: iter(calls) for kernel, calls in references.items()}
        self.number = number
        self.level = level

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        results = super().call_function(target, args, kwargs)
        if isinstance(target, RegionKernel):
            reference, nodes = next(self.left[id(target)])
            verdict = _verdict(results, reference, args)
            path = next((b.path for b in target.built.values()), "")
            watched = Watched(self.number, self.level, target.name, nodes, verdict, path)
            self.watch.found.append(watched)
        return results


def _verdict(results: Any, reference: fx.GraphModule, args: Sequence[Any]) -> Verdict:
    ours = (results,) if isinstance(results, torch.Tensor) else results
    return judge_outputs(lambda: (ours, [None] * len(ours)), reference, args)
