"""The JSON form: described by its schema, and by the README."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from sample_log import full_log, log_of

from fuseopt.report.build import build_report
from fuseopt.report.json import SCHEMA, VERSION

README = Path(__file__).parents[2] / "README.md"


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("log", [full_log(), log_of()], ids=["full", "empty"])
def test_a_report_has_the_form_that_the_schema_describes(log):
    jsonschema.validate(build_report(log, "a model").to_json(), SCHEMA)


def test_json_survives_writing_and_reading():
    data = build_report(full_log()).to_json()

    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_json_says_what_the_report_says():
    report = build_report(full_log(), "a model")

    data = report.to_json()

    assert data["version"] == VERSION == 1
    assert data["subject"] == "a model"
    assert data["totals"]["launches_after"] == report.totals.launches_after
    assert [r["id"] for r in data["regions"]] == [r.region for r in report.regions]
    assert data["regions"][0]["verified"]["passed"] is True
    assert data["regions"][0]["compiled"][0]["registers"] == 32
    assert data["rejected"][2]["rule"] == "rms_norm"
    assert data["rejected"][2]["culprit"]["name"] == "sort_1"
    assert data["graph_checks"] == [
        {
            "graph": 0,
            "passed": True,
            "how": "first call",
            "error": 1e-06,
            "eager_error": 0.0,
            "limit": 1e-3,
            "detail": "",
        }
    ]
    assert data["measured"] == {"device": "a GPU", "seconds_before": 2e-3, "seconds": 1e-3}


def test_the_readme_names_every_field():
    text = README.read_text()

    for name in (*SCHEMA["properties"], *SCHEMA["properties"]["regions"]["items"]["properties"]):
        assert f"`{name}`" in text, name
