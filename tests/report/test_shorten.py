"""Short forms of paths, lines, ops, tensors and sizes."""

from __future__ import annotations

import pytest
from sample_log import node

from fuseopt.report.shorten import (
    byte_size,
    duration,
    join_siblings,
    ranges,
    region_place,
    short_op,
    short_ops,
    short_tensor,
    short_tensors,
    shorten_paths,
    source_lines,
)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["layers.0.mlp", "layers.1.mlp", "layers.2.mlp"], ["layers.0-2.mlp"]),
        (["layers.0.mlp", "layers.2.mlp", "norm"], ["layers.0,2.mlp", "norm"]),
        (["h.0.fc1", "h.0.fc2"], ["h.0.{fc1,fc2}"]),
        (["h.0.q", "h.0.k", "h.1.q", "h.1.k"], ["h.0-1.{q,k}"]),
        (["s.0.b.0", "s.0.b.1", "s.1.b.0", "s.1.b.1"], ["s.0-1.b.0-1"]),
        (["s.0.b.0", "s.1.b.1", "s.1.b.2"], ["s.*.b.*"]),
        (["l.0 + l.1.norm", "l.1 + l.2.norm"], ["l.0-1 + l.1-2.norm"]),
        (["norm", "norm"], ["norm"]),
        ([], []),
    ],
)
def test_paths_of_equal_layers_are_joined(paths, expected):
    assert shorten_paths(paths) == expected


def test_siblings_share_their_parent():
    assert join_siblings(["a.b.x", "a.b.y", "a.z", "w"]) == ["a.b.{x,y}", "a.z", "w"]


def test_ranges_join_neighbours():
    assert ranges([7, 0, 1, 2, 5, 5]) == "0-2,5,7"


def test_a_region_lies_in_its_innermost_modules():
    nodes = [node("a", "add", "layers.0"), node("b", "mul", "layers.0.norm"), node("c", "neg")]

    assert region_place(nodes) == "layers.0.norm"
    assert region_place([node("c", "neg")]) == "the model itself"


def test_source_lines_are_joined_by_file():
    nodes = [node("a", "add", line=n) for n in (12, 13, 14, 20)]

    assert source_lines(nodes) == "model.py:12-14,20"


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten.add.Tensor", "add"),
        ("aten._to_copy.default", "to"),
        ("aten.native_layer_norm.default", "layer_norm"),
        ("aten._softmax.default", "softmax"),
        ("getitem", "getitem"),
    ],
)
def test_ops_go_by_their_plain_names(op, expected):
    assert short_op(op) == expected


def test_neighbouring_equal_ops_are_counted():
    nodes = [node("a", "mul"), node("b", "mul"), node("c", "add"), node("d", "mul")]

    assert short_ops(nodes) == "mul ×2, add, mul"


def test_tensors_are_shortened_and_counted():
    assert short_tensor("bfloat16[1, 128, 4096]") == "bf16[1,128,4096]"
    assert short_tensors(["float32[4, 8]", "int64[4]", "float32[4, 8]"]) == "2×f32[4,8], i64[4]"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (26_230_000, "26.2 MB"), (1.5e9, "1.5 GB")],
)
def test_sizes_are_decimal(count, expected):
    assert byte_size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(12.34, "12.3 s"), (0.0456, "45.6 ms"), (12.3e-6, "12.3 us"), (2e-7, "0.2 us")],
)
def test_times_take_the_unit_that_suits_them(seconds, expected):
    assert duration(seconds) == expected
