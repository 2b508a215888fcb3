"""`fuseopt show TARGET REGION`: a region's loop IR and Triton source, or a file that runs it."""

from __future__ import annotations

from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from fuseopt.cli.examine import Examination, examine
from fuseopt.cli.kernels import Place, find_place, places, print_kernel
from fuseopt.cli.options import Options
from fuseopt.cli.output import (
    check_writable,
    is_terminal,
    progress,
    show,
    write_out,
    write_text,
)
from fuseopt.cli.rules import load_rules
from fuseopt.cli.standalone import standalone
from fuseopt.cli.targets import load_target, parse_choices
from fuseopt.config import Config, read_environment
from fuseopt.errors import UsageError
from fuseopt.events import Log
from fuseopt.ir.text import kernel_text
from fuseopt.report.build import build_report
from fuseopt.report.groups import RegionGroup
from fuseopt.report.text import region_block


def run_show(options: Options, region: str, output: str | None) -> int:
    """Print a region's loop IR and source, or write the file that runs it."""
    config = Config(numerics=options.numerics, verify=False, rules=load_rules(options.rules))
    path = check_writable(output) if output else None
    choices = parse_choices(options)
    log = Log()
    with progress(log, options.target):
        target = load_target(options.target, choices)
        made = examine(target, config, read_environment(), log, run=False)
    _refuse_replaced(made, region)
    place = find_place(made, region)
    if path is None:
        _print(made, place)
        return 0
    title = f"{options.target}, region {place.region}."
    write_text(path, standalone(title, place.site, print_kernel(made, place.site)))
    show(Text(f"wrote {path}; run it with: python {path}"))
    return 0


def _refuse_replaced(made: Examination, region: str) -> None:
    """Raise `UsageError` for a region where a rule's own function runs instead of a kernel."""
    generated = {p.region for p in places(made)}
    for found in build_report(made.log).regions:
        if region in (found.region, found.kernel) and found.region not in generated:
            raise UsageError(
                f"{found.region} runs what the rule {found.rule} has of its own: no kernel was "
                "generated for it"
            )


def _print(made: Examination, place: Place) -> None:
    for region in build_report(made.log).regions:
        if region.region == place.region:
            show(region_block(RegionGroup((region,))))
    candidate = print_kernel(made, place.site)
    _section("Loop IR", kernel_text(place.site.region.kernel), "text")
    title = f"Triton source, {candidate.schedule.describe()}"
    for source in candidate.sources:
        _section(title, source.text, "python")
        title = "Triton source of what completes the sums over rows"


def _section(title: str, text: str, language: str) -> None:
    show(Padding(Text(title, style="bold underline"), (1, 0)))
    if is_terminal():
        show(Syntax(text.rstrip(), language, background_color="default", word_wrap=True))
    else:
        write_out(text)  # code is not to be wrapped
