"""The report as a function of the events."""

from __future__ import annotations

import pytest
from sample_log import full_log, heavy, log_of, near_miss, norm_region

import fuseopt
from fuseopt.errors import UsageError
from fuseopt.events import FellBack, GraphCaptured, Reason, RolledBack, Verified
from fuseopt.report.build import Report, build_report


def test_a_report_holds_the_regions_and_rejects_in_order():
    report = build_report(full_log())

    assert [r.region for r in report.regions] == ["g0r0", "g0r1", "g0r2", "g1r7"]
    assert [r.code for r in report.rejected] == [Reason.HEAVY, Reason.HEAVY, Reason.REJECTED]
    assert report.events == tuple(full_log().events)


def test_the_same_events_give_the_same_report():
    assert build_report(full_log()) == build_report(full_log())


def test_totals_count_kernels_once_and_launches_by_region():
    totals = build_report(full_log()).totals

    assert (totals.graphs, totals.graph_breaks, totals.operations) == (2, 1, 50)
    assert (totals.launches_before, totals.launches_after) == (26, 22)
    assert (totals.bytes_before, totals.bytes_after) == (4000, 2400)
    assert (totals.regions, totals.kernels, totals.verified) == (4, 2, 1)
    assert (totals.rolled_back, totals.fell_back) == (1, 1)


def test_regions_carry_the_verdict_on_their_kernel():
    checked, *_, unchecked = build_report(full_log()).regions

    assert checked.verified == Verified("k1", True, "interpreter", 1e-7, 2e-7, 2e-6)
    assert unchecked.verified is None


def test_regions_of_a_graph_that_fell_back_are_planned():
    regions = build_report(full_log()).regions

    assert [r.running for r in regions] == [True, True, True, False]


def test_one_call_that_went_past_a_graph_leaves_it_running():
    why = FellBack(0, Reason.CAPTURE, "autocast is on")
    report = build_report(log_of(GraphCaptured(0, "inference", 4, 2), norm_region(0), why))

    assert report.regions[0].running
    assert report.totals.fell_back == 0


def test_a_graph_that_fails_its_check_stops_its_regions():
    why = RolledBack(0, "graph:0", Reason.WRONG, "output 0 differs by 0.5")
    report = build_report(log_of(norm_region(0), why))

    assert not report.regions[0].running
    assert report.failures == ["output 0 differs by 0.5"]


def test_seconds_are_summed_over_graphs():
    assert build_report(full_log()).seconds == {"grow": 0.2, "verify": 2.0}


def test_regions_name_their_modules_once():
    assert build_report(full_log()).regions[0].modules == ("layers.0.norm",)


def test_assert_fused_passes_where_the_rule_fused_enough():
    build_report(full_log()).assert_fused("residual_norm", at_least=3)


def test_assert_fused_says_what_was_found_and_the_nearest_miss():
    report = build_report(log_of(norm_region(0, rule="rms_norm"), near_miss("rms_norm")))

    with pytest.raises(AssertionError) as raised:
        report.assert_fused("rms_norm", at_least=2)

    assert str(raised.value) == (
        "expected at least 2 regions of rule 'rms_norm', found 1 (g0r0 in layers.0.norm); "
        "1 near misses, the first: the row is sorted before it is normalised"
    )


def test_assert_fused_lists_the_rules_there_are():
    report = build_report(log_of(norm_region(0, rule="layer_norm"), heavy(0)))

    with pytest.raises(AssertionError, match="rules that fused something: layer_norm"):
        report.assert_fused("softmax")


def test_an_empty_log_gives_an_empty_report():
    report = build_report(log_of())

    assert report.regions == ()
    assert report.totals.launches_after == 0
    assert repr(report) == "<Report: 0 regions in 0 graphs, 0 rejected>"


@pytest.mark.parametrize(
    ("name", "begins"), [("r.json", "{"), ("r.html", "<!doctype"), ("r.txt", "cap")]
)
def test_a_report_is_saved_in_the_form_of_its_name(tmp_path, name, begins):
    build_report(full_log()).save(tmp_path / name)

    assert (tmp_path / name).read_text().startswith(begins)


def test_saving_in_an_unknown_form_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=r"as \.json, \.html or \.txt, not as r\.pdf"):
        build_report(full_log()).save(tmp_path / "r.pdf")


def test_the_class_is_public():
    assert fuseopt.Report is Report
