"""Loop kernels as text."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.config import Config
from fuseopt.events import Log
from fuseopt.graph.export import normalise_program
from fuseopt.ir.index import Axis, Index, Quotient, Remainder, axis_index
from fuseopt.ir.text import index_text, kernel_text
from fuseopt.plan import plan_graph


def text_of(function, *args) -> str:
    """Return the text of the one kernel that a function becomes."""

    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    with torch.no_grad():
        program = torch.export.export(Module(), args, strict=False)
    graph = normalise_program(program, 0).graph
    (site,) = plan_graph(graph, torch.device("cpu"), Config(), Log()).sites
    return kernel_text(site.region.kernel)


def test_a_row_kernel_prints_loads_folds_and_stores():
    text = text_of(lambda x: (x - x.amax(-1, keepdim=True)) * 2, torch.randn(6, 32))

    lines = text.splitlines()
    assert lines[0] == "in0: float32[6, 32]"
    assert lines[1] == "out0: float32[6, 32]"
    assert lines[2].startswith("for ")
    assert lines[2].endswith("< 32 (column):")
    assert "load in0[" in text
    assert "fold max over" in text
    assert lines[-1].startswith("    out0[")


def test_every_value_is_printed_before_what_uses_it():
    text = text_of(lambda x: torch.tanh(x) * x + torch.exp(x), torch.randn(64))

    known: set[str] = set()
    for line in text.splitlines():
        name, equals, rest = line.strip().partition(" = ")
        used = {w.strip(",") for w in rest.split() if w.startswith("%")}
        assert used <= known, line
        if equals and name.startswith("%"):
            known.add(name)
    assert len(known) >= 5


def test_equal_kernels_have_equal_text():
    def function(x):
        return F.softmax(x * 0.5, -1)

    assert text_of(function, torch.randn(4, 8)) == text_of(function, torch.randn(4, 8))


def test_strides_are_printed_where_memory_is_not_in_order():
    text = text_of(lambda x: torch.relu(x) + 1, torch.randn(8, 4).t())

    assert "in0: float32[4, 8] strides (1, 4)" in text


def test_guards_are_printed():
    text = text_of(lambda x, y: torch.cat((x, y), -1) * 2, torch.randn(4, 8), torch.randn(4, 8))

    assert " where %" in text


def test_indices_read_as_people_write_them():
    row, column = Axis("r", 4), Axis("c", 8)
    index = axis_index(row) * 8 + axis_index(column) + 3

    assert index_text(index, {}) == "8*r + c + 3"
    assert index_text(axis_index(row) * -1 + 3, {}) == "-1*r + 3"
    assert index_text(Index(), {}) == "0"
    assert index_text(Index(0, ((Quotient(axis_index(row), 3), 1),)), {}) == "((r) // 3)"
    assert index_text(Index(0, ((Remainder(axis_index(row), 3), 2),)), {}) == "2*((r) % 3)"
