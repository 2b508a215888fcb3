"""The README says what is there: commands, reasons, rules, variables, and what CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuseopt.cli.commands import COMMANDS
from fuseopt.config import _VARIABLES, Config, read_environment
from fuseopt.errors import UsageError
from fuseopt.events import Reason
from fuseopt.match.registry import default_registry
from fuseopt.match.rules import name_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def rows(heading: str) -> list[str]:
    """The first cells of the tables below a heading."""
    part = README.partition(f"\n{heading}\n")[2]
    part = re.split(r"\n#+ ", part)[0]
    return re.findall(r"^\| (`.+?`) \|", part, re.MULTILINE)


def test_every_command_is_in_the_table():
    commands = [row.split()[1].strip("`") for row in rows("## From the command line")]

    assert sorted(commands) == sorted(c.__name__ for c in COMMANDS)


def test_every_reason_is_in_the_table():
    codes = [code for row in rows("### Reasons") for code in re.findall(r"`(.+?)`", row)]

    assert sorted(codes) == sorted(Reason)


def test_every_rule_is_in_the_table():
    names = {row.strip("`") for row in rows("## Rules")}

    assert names >= {
        name_of(r) for r in default_registry().rules if r.__module__.startswith("fuseopt.patterns")
    }


def test_every_setting_and_variable_is_in_a_table():
    cells = {row.strip("`") for row in rows("## From Python")}

    assert cells >= set(Config.__dataclass_fields__)
    variables = {row.strip("`") for row in rows("### Environment")}
    assert variables == set(_VARIABLES)
    for name in variables:
        read_environment({name: ""})
    with pytest.raises(UsageError):
        read_environment({"FUSEOPT_OTHER": ""})


def test_ci_runs_what_the_readme_says():
    ci = (ROOT / ".ci" / "run").read_text()

    for part in ("torch==2.13.0", "-m pytest -n auto"):
        assert part in README
        assert part in ci


def test_recipes_are_short():
    recipes = re.split(
        r"^\*\*", README.partition("## Recipes\n")[2].partition("\n## ")[0], flags=re.M
    )

    for recipe in recipes[1:]:
        lines = [line for line in recipe.splitlines() if line.strip()]
        assert len(lines) <= 12, recipe


def test_files_that_the_readme_names_are_there():
    for name in re.findall(r"`((?:fuseopt|patterns|tests|examples)/[\w/.]*)`", README):
        if "/x.py" not in name and "test_x" not in name:
            assert (ROOT / name).exists(), name
