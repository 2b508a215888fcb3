"""The layout: imports go one way, files stay readable, the packages listed are the folders."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 400  # lines: a file that grows past this holds two ideas

# A module imports from its own layer and those before it.
LAYERS = (
    ("errors", "config", "events"),
    ("ir",),
    ("ops",),
    ("graph",),
    ("match", "rule"),
    ("lower",),
    ("fuse",),
    ("codegen",),
    ("runtime",),
    ("verify",),
    ("plan", "sites", "heads", "rewrite", "compiler", "pipeline", "report"),
    ("program", "wrap", "assemble", "api", "backend", "checking", "testing"),
    ("bench",),
    ("cli",),
)
LAYER_OF = {name: rank for rank, names in enumerate(LAYERS) for name in names}

SOURCES = sorted((ROOT / "fuseopt").rglob("*.py"))
PATTERNS = sorted((ROOT / "patterns").rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full names of what a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> int:
    """The layer of a module of fuseopt; the package itself only gives its version."""
    return LAYER_OF[module.split(".")[1]] if "." in module else 0


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_go_one_way(path):
    module = name_of(path)
    if module == "fuseopt":
        return
    rank = layer_of(module)

    above = [
        name
        for name in imports_of(path)
        if name.startswith("fuseopt.")
        and not name.startswith("fuseopt.patterns")
        and layer_of(name) > rank
    ]

    assert not above, f"{module} is in layer {LAYERS[rank]}"


@pytest.mark.parametrize("path", PATTERNS, ids=name_of)
def test_rules_import_only_what_rules_need(path):
    allowed = ("__future__", "fuseopt.rule", "torch", "triton", "math", "typing")

    others = [n for n in imports_of(path) if not n.startswith(allowed)]

    assert not others


@pytest.mark.parametrize(
    "path", [*SOURCES, *PATTERNS, *sorted((ROOT / "examples").glob("*.py"))], ids=name_of
)
def test_files_hold_one_idea(path):
    assert len(path.read_text().splitlines()) <= LONGEST


def test_every_module_says_what_it_is_for():
    silent = [p for p in (*SOURCES, *PATTERNS) if not ast.get_docstring(ast.parse(p.read_text()))]

    assert not silent


def test_no_module_is_named_after_nothing():
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

    assert not [p for p in SOURCES if p.stem in vague]


def test_the_packages_listed_are_the_folders():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name_of(p) for p in SOURCES if p.name == "__init__.py"} | {"fuseopt.patterns"}

    assert set(settings["packages"]) == folders
    assert settings["package-dir"] == {"fuseopt.patterns": "patterns"}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_fuseopt_loads_neither_triton_nor_more_than_torch_does():
    extra = loaded_by("import fuseopt") - loaded_by("import torch")

    assert "fuseopt" in extra
    assert not extra & {"triton", "sympy", "rich", "typer", "jinja2", "transformers"}
