"""`fuseopt report TARGET`: what is fused, and what is not, with the reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from fuseopt.cli.examine import Examination, examine, subject
from fuseopt.cli.kernels import compile_kernels
from fuseopt.cli.measure import measure
from fuseopt.cli.options import Options
from fuseopt.cli.output import check_writable, complain, progress, show, write_text
from fuseopt.cli.rules import load_rules
from fuseopt.cli.targets import load_target, parse_choices
from fuseopt.config import Config, read_environment
from fuseopt.errors import UsageError
from fuseopt.events import Log, Reason
from fuseopt.report.build import Report, build_report
from fuseopt.runtime.binary import Target


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a report is to hold and where it goes."""

    strict: bool = False
    time: bool = False
    compile_for: str | None = None
    json_file: str | None = None
    html_file: str | None = None


def run_report(options: Options, wanted: Wanted) -> int:
    """Print the report of a target and return the exit code."""
    json_file, html_file = _path(wanted.json_file), _path(wanted.html_file)
    made = _examined(options, wanted)
    report = build_report(made.log, subject(made))
    try:
        if json_file is not None:
            write_text(json_file, json.dumps(report.to_json(), indent=1) + "\n")
        if html_file is not None:
            write_text(html_file, report.to_html())
    finally:  # what took minutes is not lost with a file that cannot be written
        show(report)
    if made.note:
        show(Text(f"\ntorch.export did not capture the model: {made.note}", style="dim"))
    problems = problems_of(report, strict=wanted.strict)
    for problem in problems:
        complain(problem)
    return 1 if problems else 0


def _path(text: str | None) -> Path | None:
    return None if text is None else check_writable(text)


def _examined(options: Options, wanted: Wanted) -> Examination:
    config = Config(
        numerics=options.numerics, verify=options.verify, rules=load_rules(options.rules)
    )
    arch = Target.parse(wanted.compile_for) if wanted.compile_for else None
    environment = read_environment()
    choices = parse_choices(options)
    on_gpu = choices.device.type == "cuda"
    if wanted.time and not on_gpu:
        raise UsageError("--time needs a GPU: kernels do not run on a CPU")
    log = Log()
    with progress(log, options.target):
        target = load_target(options.target, parse_choices(options, with_data=on_gpu))
        made = examine(target, config, environment, log)
        if arch is not None:
            compile_kernels(made, arch, log)
        if wanted.time:
            log.record(measure(made))
    return made


def problems_of(report: Report, *, strict: bool) -> list[str]:
    """Return what makes the command fail, one line each."""
    found = [f"a check failed: {reason}" for reason in report.failures]
    found += [c.error for r in report.regions for c in r.compiled if c.error]
    if strict:
        found += [f"graph break: {b.reason}" for b in report.graph_breaks]
        found += [f.reason for f in report.fell_back if f.code is not Reason.NO_DEVICE]
        found += [r.reason for r in report.rolled_back if r.code is Reason.COMPILE]
    return list(dict.fromkeys(" ".join(f.split()) for f in found))
