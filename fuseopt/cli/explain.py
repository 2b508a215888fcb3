"""`fuseopt explain TARGET NODE`: what became of one operation, module or source line, and why."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import fx

from fuseopt.cli.examine import Examination, examine
from fuseopt.cli.options import Options
from fuseopt.cli.output import progress, show
from fuseopt.cli.rules import load_rules
from fuseopt.cli.targets import load_target, parse_choices
from fuseopt.config import Config, read_environment
from fuseopt.errors import UsageError
from fuseopt.events import Log, NodeInfo, NotFused
from fuseopt.graph.lift import is_free
from fuseopt.graph.locate import node_info
from fuseopt.report.build import FusedRegion, Report, build_report
from fuseopt.report.groups import RegionGroup, group_rejects
from fuseopt.report.shorten import short_op
from fuseopt.report.text import region_block, reject_block


def run_explain(options: Options, text: str) -> int:
    """Print what became of the nodes that `text` names."""
    config = Config(numerics=options.numerics, verify=False, rules=load_rules(options.rules))
    choices = parse_choices(options)
    log = Log()
    with progress(log, options.target):
        target = load_target(options.target, choices)
        made = examine(target, config, read_environment(), log, run=False)
    show(*explanation(made, build_report(log), text))
    return 0


@dataclass(frozen=True, slots=True)
class Found:
    """A node of a graph that the user asked about."""

    graph: int
    node: fx.Node
    info: NodeInfo


def explanation(made: Examination, report: Report, text: str) -> Iterator[RenderableType]:
    """Yield what is printed about the nodes that `text` names; `UsageError` where none are."""
    found = find_nodes(made, text)
    names = {(f.graph, f.info.name) for f in found}
    if len(found) == 1:
        yield Text.assemble((found[0].info.name, "bold"), f"  {_place(found[0].info)}")
        if found[0].info.code:
            yield Text(f"    {found[0].info.code}", style="dim")
    else:
        yield Text(f"{text}: {len(found)} operations", style="bold")
    regions = [r for r in report.regions if _among(r, names)]
    rejects = [r for r in report.rejected if _among(r, names)]
    for region in regions:
        inside = [n.name for n in region.nodes if (region.graph, n.name) in names]
        yield _below(region_block(RegionGroup((region,))))
        if len(found) > 1:
            yield Text(f"    of these: {', '.join(inside)}")
    if rejects:
        yield _below(Text("not fused", style="bold underline"))
    for code, groups in group_rejects(rejects).items():
        yield reject_block(code, groups)
    decided = {(r.graph, n.name) for r in regions for n in r.nodes}
    decided |= {(r.graph, n.name) for r in rejects for n in r.nodes}
    rest = [f for f in found if (f.graph, f.info.name) not in decided]
    for why, members in _without_event(made, rest).items():
        yield _below(Text(f"{why}: {', '.join(members)}"))


def _among(event: FusedRegion | NotFused, names: set[tuple[int, str]]) -> bool:
    return any((event.graph, n.name) in names for n in event.nodes)


def _without_event(made: Examination, found: list[Found]) -> dict[str, list[str]]:
    """The nodes that no decision was needed for, by what they are."""
    reasons: dict[str, list[str]] = {}
    for item in found:
        reasons.setdefault(_otherwise(made, item), []).append(item.info.name)
    return reasons


def _below(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


def find_nodes(made: Examination, text: str) -> list[Found]:
    """Return the nodes that a name, a module path, a source line or an op stands for."""
    everything = [
        Found(graph.number, node, node_info(node))
        for graph, _ in made.graphs
        for node in graph.gm.graph.nodes
        if node.op == "call_function"
    ]
    tests: tuple[Callable[[NodeInfo], bool], ...] = (
        lambda n: text in (n.name, short_op(n.op), n.op),  # the first node of an op has its name
        lambda n: n.location == text,
        lambda n: n.module == text or n.module.startswith(f"{text}."),
    )
    for test in tests if text else ():  # what has no module or line is not meant by ""
        found = [f for f in everything if test(f.info)]
        if found:
            return found
    names = {w for f in everything for w in (f.info.name, f.info.module, f.info.location)}
    close = difflib.get_close_matches(text, names, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"no node, module, source line or op of {made.target.name} is {text!r}{hint}")


def _place(info: NodeInfo) -> str:
    parts = [short_op(info.op), info.module, info.location]
    return "  ".join(p for p in parts if p)


def _otherwise(made: Examination, item: Found) -> str:
    inside = [
        f"g{graph.number}r{number}"
        for graph, examined in made.graphs
        if graph.number == item.graph
        for number, site in enumerate(examined.sites)
        if item.node in site.region.nodes or item.node in site.region.through
    ]
    if inside:
        return f"costs nothing (an index or a constant inside {', '.join(inside)})"
    if is_free(item.node):
        return "costs nothing (a view or a constant: no kernel runs)"
    return "runs no kernel of its own"
