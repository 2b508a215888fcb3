"""The report as a page."""

from __future__ import annotations

from dataclasses import replace

from sample_log import full_log, log_of, norm_region

from fuseopt.report.build import build_report


def test_a_page_holds_what_the_report_says():
    page = build_report(full_log(), "a model").to_html()

    for part in (
        "<title>fuseopt: a model</title>",
        "residual_norm",
        "layers.0-2.norm",
        "no Triton device: runs on cpu",
        "heavy-op",
        "nearest rule: rms_norm",
        "26 → <b>22</b>",
    ):
        assert part in page


def test_names_cannot_inject_markup():
    region = replace(norm_region(0), kernel="<script>alert(1)</script>")

    page = build_report(log_of(region)).to_html()

    assert "<script>" not in page
    assert "&lt;script&gt;" in page
