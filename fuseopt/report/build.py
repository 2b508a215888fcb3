"""The report of an optimised model: a pure function of the events recorded while it was made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseopt.errors import UsageError
from fuseopt.events import (
    Event,
    EventT,
    FellBack,
    GraphBroken,
    GraphCaptured,
    KernelCompiled,
    Log,
    Measured,
    NodeInfo,
    NotFused,
    NotReplayed,
    Reason,
    RegionFused,
    RolledBack,
    Spliced,
    Timed,
    Verified,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class FusedRegion(RegionFused):
    """A fused region, with the verdict on its kernel and whether the kernel is in use.

    verified: None where the kernel was not checked. running: False where the graph around the
    region runs its original operations, and the region is only what would be fused.
    """

    verified: Verified | None = None
    running: bool = True
    compiled: tuple[KernelCompiled, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The paths of the modules that the region's operations belong to, in order."""
        return tuple(dict.fromkeys(n.module for n in self.nodes))

    @property
    def launches_saved(self) -> int:
        """How many kernel launches the region saves."""
        return self.launches_before - self.launches_after


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures over all graphs of a report. Planned regions count as if they ran.

    operations: nodes of the captured graphs. launches: kernels that one call starts. bytes: memory
    traffic of the fused operations alone. kernels: distinct ones, of which `verified` passed their
    check. rolled_back: kernels that were put back. fell_back: graphs that run as written.
    """

    graphs: int
    graph_breaks: int
    operations: int
    launches_before: int
    launches_after: int
    bytes_before: int
    bytes_after: int
    regions: int
    kernels: int
    verified: int
    rolled_back: int
    fell_back: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was fused and what was not, with the reasons. Prints itself.

    regions: the fused regions, in graph order. rejected: groups of operations left as they were.
    events: all that was recorded, in order. subject: what the report is about, in a few words.
    """

    regions: tuple[FusedRegion, ...]
    rejected: tuple[NotFused, ...]
    events: tuple[Event, ...]
    subject: str = ""

    @classmethod
    def from_log(cls, log: Log, subject: str = "") -> Report:
        """Return the report of a log so far: for users of the `torch.compile` backend."""
        return build_report(log, subject)

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one kind, oldest first."""
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def totals(self) -> Totals:
        """The figures of the summary."""
        graphs = self.of(GraphCaptured)
        before = sum(g.kernels_before for g in graphs)
        checked = {r.key for r in self.regions if r.verified is not None and r.verified.passed}
        return Totals(
            graphs=len(graphs),
            graph_breaks=len(self.graph_breaks),
            operations=sum(g.nodes for g in graphs),
            launches_before=before,
            launches_after=_launches_after(graphs, self.of(Spliced)),
            bytes_before=sum(r.bytes_before for r in self.regions),
            bytes_after=sum(r.bytes_after for r in self.regions),
            regions=len(self.regions),
            kernels=len({r.key for r in self.regions}),
            verified=len(checked),
            rolled_back=len({e.key for e in self.of(RolledBack)}),
            fell_back=len(_stopped(self.events)),
        )

    @property
    def graph_breaks(self) -> list[GraphBroken]:
        """Where capture split the model."""
        return self.of(GraphBroken)

    @property
    def fell_back(self) -> list[FellBack]:
        """Graphs and calls that ran their original operations."""
        return self.of(FellBack)

    @property
    def rolled_back(self) -> list[RolledBack]:
        """Kernels, or whole graphs, that were put back to the original operations."""
        return self.of(RolledBack)

    @property
    def not_replayed(self) -> list[NotReplayed]:
        """Graphs that are not replayed as CUDA graphs, though that was asked for."""
        return self.of(NotReplayed)

    @property
    def failures(self) -> list[str]:
        """Checks that did not pass, one line each: replacements that were wrong."""
        return [e.reason for e in self.rolled_back if e.code is Reason.WRONG]

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in each step, over all graphs, in order of first use."""
        spent: dict[str, float] = {}
        for event in self.of(Timed):
            spent[event.step] = spent.get(event.step, 0.0) + event.seconds
        return spent

    @property
    def measured(self) -> Measured | None:
        """The time of a whole call, where it was measured last."""
        return next(iter(reversed(self.of(Measured))), None)

    def assert_fused(self, rule: str, *, at_least: int = 1) -> None:
        """Raise `AssertionError` unless a rule has made that many regions, running or planned."""
        found = [r for r in self.regions if r.rule == rule]
        if len(found) >= at_least:
            return
        raise AssertionError(
            f"expected at least {at_least} regions of rule {rule!r}, found {len(found)}"
            f"{_places(found)}; {self._nearest(rule)}"
        )

    def _nearest(self, rule: str) -> str:
        misses = [e for e in self.rejected if e.rule == rule]
        if misses:
            return f"{len(misses)} near misses, the first: {misses[0].reason}"
        known = sorted({r.rule for r in self.regions if r.rule})
        return f"rules that fused something: {', '.join(known)}" if known else "no rule fused"

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data; `fuseopt.report.json.SCHEMA` describes it."""
        from fuseopt.report.json import report_data

        return report_data(self)

    def to_html(self) -> str:
        """Return the report as one HTML page."""
        from fuseopt.report.html import report_html

        return report_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, in the form its name ends in: .json, .html or .txt."""
        path = Path(path)
        forms: dict[str, Callable[[], str]] = {
            ".json": lambda: json.dumps(self.to_json(), indent=1) + "\n",
            ".html": self.to_html,
            ".txt": lambda: f"{self}\n",
        }
        if path.suffix not in forms:
            raise UsageError(f"a report is saved as .json, .html or .txt, not as {path.name}")
        path.write_text(forms[path.suffix](), encoding="utf-8")

    # The renderers are imported where they are used: rich and jinja2 are not needed to run a model.
    def __rich__(self) -> RenderableType:
        from fuseopt.report.text import render

        return render(self)

    def __str__(self) -> str:
        from fuseopt.report.text import plain_text, render

        return plain_text(render(self))

    def __repr__(self) -> str:
        t = self.totals
        return f"<Report: {t.regions} regions in {t.graphs} graphs, {len(self.rejected)} rejected>"


def build_report(log: Log, subject: str = "") -> Report:
    """Return the report of what a log holds so far."""
    events = tuple(log.events)
    verdicts = {e.key: e for e in events if isinstance(e, Verified)}
    stopped = _stopped(events)
    compiled = [e for e in events if isinstance(e, KernelCompiled)]
    put_back = {(e.graph, e.nodes) for e in events if isinstance(e, NotFused)}
    regions = tuple(
        FusedRegion(
            **{f.name: getattr(e, f.name) for f in fields(RegionFused)},
            verified=verdicts.get(e.key),
            running=e.graph not in stopped,
            compiled=tuple(c for c in compiled if c.key == e.key),
        )
        for e in events
        if isinstance(e, RegionFused) and (e.graph, e.nodes) not in put_back
    )
    rejected = tuple(e for e in events if isinstance(e, NotFused))
    return Report(regions, rejected, events, subject)


def _stopped(events: Iterable[Event]) -> set[int]:
    """The graphs that run their original operations.

    A fallback by reason of capture is one call that went past a graph, which stays in use.
    """
    found: set[int] = set()
    for event in events:
        if isinstance(event, FellBack) and event.code is not Reason.CAPTURE:
            found.add(event.graph)
        if isinstance(event, RolledBack) and event.key.startswith("graph:"):
            found.add(event.graph)
    return found


def _places(regions: list[FusedRegion]) -> str:
    if not regions:
        return ""
    return f" ({', '.join(f'{r.region} in {_module(r.nodes)}' for r in regions)})"


def _module(nodes: tuple[NodeInfo, ...]) -> str:
    return nodes[-1].module or "the model itself"


def _launches_after(graphs: list[GraphCaptured], spliced: list[Spliced]) -> int:
    known = {s.graph: s.launches for s in spliced}
    return sum(known.get(g.graph, g.kernels_before) for g in graphs)
