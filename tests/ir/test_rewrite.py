"""Rebuilding kernels over other axes: what they compute stays the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import case, lowered, random, under

from fuseopt.codegen.collapse import collapse
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir.evaluate import evaluate
from fuseopt.ir.index import Axis, Index
from fuseopt.ir.rewrite import all_indices, rewrite_indices
from fuseopt.ir.text import kernel_text

FUNCTIONS = {
    "flat": (lambda x, y: x * 2 + y, random(4, 3, 8), random(4, 3, 8)),
    "row": (lambda x: F.softmax(x, -1), random(4, 3, 8)),
    "outer": (lambda x: F.softmax(x, 0), random(4, 3, 8)),
    "norm": (lambda x: F.layer_norm(x, (3, 8)), random(4, 3, 8)),
    "cat": (lambda x, y: torch.cat((x, y.flip(0)), 1) + 1, random(4, 3), random(4, 5)),
    "table": (lambda t, i: t[i] * 2, random(9, 8), random(3, 4, dtype=torch.int64).abs() % 9),
    "roll": (lambda x: x.flatten().roll(5, 0).reshape(12, 8) + 1, random(4, 3, 8)),
}


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "table"])
def test_the_identity_rewrite_gives_an_equal_kernel(name):
    function, *args = FUNCTIONS[name]
    kernel = case(function, *args).kernel

    same = rewrite_indices(kernel, kernel.rows, kernel.columns, lambda index: index)

    assert kernel_text(same) == kernel_text(kernel)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_collapsing_axes_changes_no_result(name):
    function, *args = FUNCTIONS[name]
    made = case(function, *args)
    collapsed = collapse(made.kernel, {})

    before = evaluate(made.kernel, made.inputs)
    after = evaluate(collapsed, made.inputs)

    assert len(collapsed.axes) <= len(made.kernel.axes)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "extents"), [("flat", [96]), ("row", [12, 8]), ("norm", [4, 24]), ("outer", [24, 4])]
)
def test_neighbours_that_are_walked_as_one_become_one_axis(name, extents):
    function, *args = FUNCTIONS[name]

    collapsed = collapse(case(function, *args).kernel, {})

    assert [a.extent for a in collapsed.axes] == extents


def test_an_operand_that_is_broadcast_between_keeps_axes_apart():
    x, bias = random(4, 3, 8), random(3, 1)

    collapsed = collapse(case(lambda x, b: x * 2 + b, x, bias).kernel, {})

    assert [a.extent for a in collapsed.axes] == [4, 3, 8]


def test_a_permuted_tensor_that_is_written_as_it_is_read_becomes_flat():
    collapsed = collapse(
        case(lambda x: torch.exp(x) * 2, random(4, 3, 8).permute(2, 0, 1)).kernel, {}
    )

    assert [a.extent for a in collapsed.axes] == [96]


def test_axes_that_are_nowhere_together_are_put_in_the_order_of_memory():
    made = case(lambda x, w: x * w, random(8, 5).t(), random(5, 1))

    collapsed = collapse(made.kernel, {})

    assert [a.extent for a in collapsed.rows] == [8, 5]


def test_indices_inside_divisions_are_rewritten_too():
    made = lowered(lambda x: x.flatten()[2:14].reshape(3, 4) + 1, random(4, 5))
    axes = {a for i in all_indices(made.kernel) for a in i.axes}
    doubled = {a: Axis(f"{a.name}_new", a.extent) for a in axes}

    def renamed(index: Index) -> Index:
        return Index(index.const, tuple((doubled[a], c) for a, c in index.terms))

    kernel = rewrite_indices(made.kernel, tuple(doubled[a] for a in made.kernel.rows), (), renamed)

    assert {a for i in all_indices(kernel) for a in i.axes} == set(doubled.values())
    torch.testing.assert_close(evaluate(kernel, made.inputs)[0], made.eager[0])


def test_symbolic_sizes_collapse_too(store):
    made = case(lambda x, y: x * 2 + y, random(4, 6), random(4, 6), dynamic=True)

    candidate = under(made, lambda k: Schedule(k.rows, (), 32, 1))

    (axis,) = candidate.kernel.axes
    assert {str(s) for s in candidate.symbols} == {"size0", "size1"}
    assert axis.extent.subs(made.sizes) == 24
