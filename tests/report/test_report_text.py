"""The printed report: what it says, and that it fits a terminal."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console
from sample_log import full_log, heavy, log_of, near_miss, norm_region

from fuseopt.events import FellBack, GraphCaptured, NodeInfo, NotFused, Reason
from fuseopt.report.build import build_report


def text_of(*events: object) -> str:
    return str(build_report(log_of(*events)))


def test_the_summary_comes_first():
    text = str(build_report(full_log(), "a model"))
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert lines[0] == "a model"
    assert lines[1] == "captured 2 graphs, 50 operations, 1 graph break"
    assert lines[2] == "launches 26 → 22"
    assert "4 kB → 2.4 kB in the fused parts (40% less)" in lines[3]
    assert "4 regions by 2 distinct kernels, 1 verified (interpreter), 1 rolled back" in lines[4]


def test_repeated_layers_are_printed_once():
    text = text_of(*(norm_region(n) for n in range(24)))

    assert text.count("fused_add_layer_norm") == 1
    assert "g0r0 ×24" in text
    assert "layers.0-23.norm" in text


def test_a_region_says_what_where_and_how_large():
    text = text_of(norm_region(0, rule="residual_norm"))

    for part in (
        "residual_norm",
        "2 launches → 1",
        "1 kB → 600 B",
        "add, layer_norm",
        "layers.0.norm  model.py:10-11",
        "2×f32[4,8], f32[8] → f32[4,8]",
        "fused_add_layer_norm  tile 1x8, 4 warps",
        "not verified",
    ):
        assert part in text


def test_a_planned_report_says_so_in_one_line():
    text = text_of(norm_region(0), FellBack(0, Reason.NO_DEVICE, "no Triton device: runs on cpu"))

    assert "Planned, not running: no Triton device: runs on cpu" in text.splitlines()
    assert "Would be fused" in text


def test_the_same_fallback_of_several_graphs_is_said_once():
    why = [FellBack(n, Reason.NO_DEVICE, "no Triton device") for n in range(3)]

    assert text_of(*why).count("no Triton device") == 1


def test_rejects_are_grouped_by_reason():
    text = text_of(heavy(0, "up"), heavy(1, "up"), heavy(0, "down"), heavy(1, "down"))

    assert "heavy-op  4 operations: left to the vendor's kernel" in text
    assert "4×  linear  layers.0-1.{up,down}" in text


def test_a_near_miss_names_the_rule_and_the_first_node_that_did_not_fit():
    text = text_of(near_miss("rms_norm"))

    assert "the row is sorted before it is normalised" in text
    assert "nearest rule: rms_norm; did not fit: sort_1 (sort) model.py:30  x = f(x)" in text


def test_heavy_operations_come_last():
    text = text_of(heavy(0), near_miss())

    assert text.index("rule-rejected") < text.index("heavy-op")


def test_rolled_back_kernels_and_graph_breaks_are_said():
    text = str(build_report(full_log()))

    assert "Rolled back: fused_mul disagrees with the operations it replaces" in text
    assert "Graph break at model.py:5: print is called" in text
    assert "not replayed  graph 1: it runs on cpu" in text


def test_times_and_resources_appear_where_they_were_measured():
    text = " ".join(str(build_report(full_log())).split())

    assert "one call 2 ms → 1 ms (2.00x) on a GPU" in text
    assert "sm_90 32 registers, 0 spill instructions, 128 bytes of shared memory" in text
    assert "results graph 0 agrees with the original, difference 1.0e-06" in text


def test_every_line_fits_a_hundred_columns():
    long = replace(norm_region(0), kernel="fused_" + "very_long_name_" * 12)
    node = NodeInfo("n" * 80, "aten.some_operation.default", "m." * 90 + "end")
    reject = NotFused(0, (node,), Reason.NO_DEFINITION, "a reason " * 30, node, "a_rule")

    text = text_of(GraphCaptured(0, "inference", 3, 3), long, reject)

    assert max(map(len, text.splitlines())) <= 100


def test_lines_have_no_trailing_blanks():
    text = str(build_report(full_log()))

    assert all(line == line.rstrip() for line in text.splitlines())


def test_markup_in_names_is_printed_as_it_is():
    assert "[bold]" in text_of(replace(norm_region(0), kernel="odd[bold]name"))


def test_rich_prints_the_report_in_a_narrow_terminal():
    console = Console(file=StringIO(), width=60, no_color=True)
    console.print(build_report(full_log()))

    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 distinct kernels" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 60
