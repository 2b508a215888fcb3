"""`fuseopt rules`, and the rules of the files that `--rules` names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fuseopt.cli.output import show
from fuseopt.match.registry import load_rules as load_file
from fuseopt.match.registry import registry_with
from fuseopt.match.rules import Rule, name_of


def load_rules(paths: Sequence[str]) -> tuple[Any, ...]:
    """Return the rules of some files; `RuleError` says what is wrong with one."""
    return tuple(rule for path in paths for rule in load_file(path))


def run_rules(paths: Sequence[str]) -> int:
    """List the rules in use: the built-in ones, those of installed packages, those of files."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    registry = registry_with(load_rules(paths))
    for rule in (*registry.rules, *registry.early):
        grid.add_row(name_of(rule), rule.anchor, first_sentence(rule))
    show(grid)
    return 0


def first_sentence(rule: type[Rule]) -> str:
    """Return what a rule says about itself: its docstring's first line, or its module's."""
    own = rule.__dict__.get("__doc__") or getattr(inspect.getmodule(rule), "__doc__", "") or ""
    return own.strip().splitlines()[0] if own.strip() else ""
