"""The report on a terminal: a summary, what was fused, what was not and why."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fuseopt.events import KernelCompiled, NodeInfo, NotFused, Reason, Verified
from fuseopt.report.build import FusedRegion, Report
from fuseopt.report.groups import MEANINGS, RegionGroup, RejectGroup, group_regions, group_rejects
from fuseopt.report.shorten import (
    byte_size,
    duration,
    ranges,
    short_op,
    short_ops,
    short_tensors,
    source_lines,
)

WIDTH = 100  # columns of the plain text
SHORTEST_STEP = 0.05  # seconds; steps below this are not worth a word


def plain_text(part: RenderableType) -> str:
    """Return what rich would print as text without styles, 100 columns wide."""
    # To a buffer of its own: bold and underline of a terminal have no place in text that is saved.
    printed = StringIO()
    console = Console(
        file=printed, width=WIDTH, force_terminal=False, highlight=False, legacy_windows=False
    )
    console.print(part)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


def render(report: Report) -> RenderableType:
    """Return the whole report for rich to print."""
    return Group(*_parts(report))


def _parts(report: Report) -> Iterator[RenderableType]:
    if report.subject:
        yield Text(report.subject, style="bold")
    yield summary(report)
    yield from _notes(report)
    if report.regions:
        running = any(r.running for r in report.regions)
        yield _heading("Fused" if running else "Would be fused")
        for group in group_regions(report.regions):
            yield _below(region_block(group))
    if report.rejected:
        yield _heading("Not fused")
        for code, groups in group_rejects(report.rejected).items():
            yield _below(reject_block(code, groups))


def _heading(text: str) -> RenderableType:
    return _below(Text(text, style="bold underline"))


def _below(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


# --- summary -------------------------------------------------------------------------------------


def summary(report: Report) -> RenderableType:
    """Return the figures that come first."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    t = report.totals
    graphs = f"{_count(t.graphs, 'graph')}, {_count(t.operations, 'operation')}"
    if t.graph_breaks:
        graphs += f", {_count(t.graph_breaks, 'graph break')}"
    grid.add_row("captured", graphs)
    grid.add_row("launches", _change(str(t.launches_before), str(t.launches_after)))
    if t.regions:
        saved = 1 - t.bytes_after / max(t.bytes_before, 1)
        text = _change(byte_size(t.bytes_before), byte_size(t.bytes_after))
        grid.add_row("traffic", text + Text(f" in the fused parts ({saved:.0%} less)"))
    grid.add_row("fused", _fused(report))
    grid.add_row("not fused", _left(report))
    if report.measured is not None:
        grid.add_row("one call", _measured(report))
    checks = [v for v in report.of(Verified) if v.passed and v.key.startswith("graph:")]
    if checks:
        numbers = ranges(int(v.key.partition(":")[2]) for v in checks)
        worst = max(v.error for v in checks)
        grid.add_row("results", f"graph {numbers} agrees with the original, difference {worst:.1e}")
    for refused in report.not_replayed:
        grid.add_row("not replayed", f"graph {refused.graph}: {refused.reason}")
    steps = [f"{n} {duration(s)}" for n, s in report.seconds.items() if s >= SHORTEST_STEP]
    if steps:
        grid.add_row("time spent", ", ".join(steps))
    return grid


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _change(before: str, after: str) -> Text:
    return Text.assemble(f"{before} → ", (after, "bold green"))


def _fused(report: Report) -> Text:
    t = report.totals
    text = Text(f"{_count(t.regions, 'region')} by {_count(t.kernels, 'distinct kernel')}")
    how = sorted({r.verified.how for r in report.regions if r.verified is not None})
    if t.verified:
        text.append(f", {t.verified} verified ({', '.join(how)})")
    elif t.regions:
        text.append(", not verified", style="yellow")
    if t.rolled_back:
        text.append(f", {t.rolled_back} rolled back", style="red")
    return text


def _left(report: Report) -> str:
    heavy = sum(len(r.nodes) for r in report.rejected if r.code is Reason.HEAVY)
    others = sum(len(r.nodes) for r in report.rejected) - heavy
    return f"{_count(heavy, 'heavy operation')}, {_count(others, 'other')}"


def _measured(report: Report) -> Text:
    measured = report.measured
    assert measured is not None
    ratio = measured.seconds_before / measured.seconds
    text = _change(duration(measured.seconds_before), duration(measured.seconds))
    return text + Text(f" ({ratio:.2f}x) on {measured.device}")


def _notes(report: Report) -> Iterator[RenderableType]:
    for reason, code in {f.reason: f.code for f in report.fell_back}.items():
        planned = code is Reason.NO_DEVICE
        label = "Planned, not running" if planned else "Fell back to the original operations"
        yield _below(Text(f"{label}: {reason}", style="yellow"))
    for reason in dict.fromkeys(r.reason for r in report.rolled_back):
        yield _below(Text(f"Rolled back: {reason}", style="red"))
    for broken in report.graph_breaks:
        place = f" at {broken.location}" if broken.location else ""
        yield _below(Text(f"Graph break{place}: {broken.reason}", style="yellow"))


# --- regions -------------------------------------------------------------------------------------


def region_block(group: RegionGroup) -> RenderableType:
    """Return what is shown of regions that share a kernel."""
    region = group.first
    where = Text("; ".join(group.places))
    where.append(f"  {source_lines(group.nodes)}", style="dim")
    details = _details()
    details.add_row("ops", short_ops(region.nodes))
    details.add_row("where", where)
    details.add_row("shapes", f"{short_tensors(region.inputs)} → {short_tensors(region.outputs)}")
    details.add_row("kernel", _kernel(region))
    if region.memory_saved:
        details.add_row("memory", f"{byte_size(region.memory_saved)} less at the peak")
    if region.verified is not None and region.verified.limit:
        error, eager = region.verified.error, region.verified.eager_error
        details.add_row("error", f"{error:.1e} against float64, the original's {eager:.1e}")
    if region.seconds:
        text = f"{duration(region.seconds)}, the original operations"
        details.add_row("time", f"{text} {duration(region.seconds_before)}")
    for made in region.compiled:
        details.add_row(made.target, _resources(made))
    return Group(_title(group), Padding(details, (0, 0, 0, 4)))


def _details() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _title(group: RegionGroup) -> RenderableType:
    region = group.first
    name = Text(region.region, style="bold cyan")
    if len(group.regions) > 1:
        name.append(f" ×{len(group.regions)}", style="bold")
    rule = Text(region.rule or "chain", style="bold" if region.rule else "")
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(width=10, no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True)
    for width in (15, 20, 12):
        grid.add_column(width=width, justify="right", no_wrap=True)
    launches = f"{region.launches_before} launch{'es' * (region.launches_before != 1)}"
    size = f"{byte_size(region.bytes_before)} → {byte_size(region.bytes_after)}"
    grid.add_row(name, rule, f"{launches} → {region.launches_after}", size, _verdict(region))
    return grid


def _verdict(region: FusedRegion) -> Text:
    if region.verified is None:
        return Text("not verified", style="yellow")
    return Text("verified", style="green")


def _kernel(region: FusedRegion) -> Text:
    text = Text(region.kernel)
    if region.schedule:
        text.append(f"  {region.schedule}", style="dim")
    return text


def _resources(made: KernelCompiled) -> Text:
    if made.error:
        return Text(made.error, style="red")
    figures = [
        (made.registers, "registers"),
        (made.spills, "spill instructions"),
        (made.shared_bytes, "bytes of shared memory"),
    ]
    known = [f"{value} {what}" for value, what in figures if value is not None]
    return Text(", ".join(known) or "compiled", style="red" if made.spills else "")


# --- rejects -------------------------------------------------------------------------------------


def reject_block(code: Reason, groups: list[RejectGroup]) -> RenderableType:
    """Return what is shown of the rejects with one code."""
    total = sum(len(r.nodes) for g in groups for r in g.rejects)
    title = Text.assemble(
        (code.value, "bold cyan"), f"  {_count(total, 'operation')}: {MEANINGS[code]}"
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for group in groups:
        grid.add_row(f"{len(group.rejects)}×", group.ops, _why(code, group))
    return Group(title, Padding(grid, (0, 0, 0, 4)))


def _why(code: Reason, group: RejectGroup) -> RenderableType:
    first = group.first
    where = Text("; ".join(group.places))
    if code is Reason.HEAVY:
        return where
    where.append(f"  {source_lines(n for r in group.rejects for n in r.nodes)}", style="dim")
    lines: list[RenderableType] = [where]
    if group.sentence:
        lines.append(Text(group.sentence))
    if first.rule:
        lines.append(Text(f"nearest rule: {first.rule}{_culprit(first)}"))
    return Group(*lines)


def _culprit(reject: NotFused) -> str:
    return f"; did not fit: {node_text(reject.culprit)}" if reject.culprit else ""


def node_text(node: NodeInfo) -> str:
    """Return a node in one line: its name, op, place and source."""
    code = f"  {node.code}" if node.code else ""
    return f"{node.name} ({short_op(node.op)}) {node.location}{code}"
