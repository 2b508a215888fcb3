"""Reductions take the axes that their results do not vary along; what does not fit is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import case, lowered, random

from fuseopt.ir import dims
from fuseopt.ir.values import Round
from fuseopt.lower.lower import MOST_PIECES
from fuseopt.lower.nest import NotLowerable
from fuseopt.ops import NotExpressible

REDUCTIONS = {
    "softmax of rows": (lambda x: F.softmax(x, -1), [random(3, 4, 8)], [3, 4], [8]),
    "softmax of columns": (lambda x: F.softmax(x, 1), [random(3, 4, 8)], [3, 8], [4]),
    "softmax in front": (lambda x: F.softmax(x, 0), [random(5, 4)], [4], [5]),
    "sum of all": (lambda x: x.sum() * 2, [random(3, 4)], [], [3, 4]),
    "sum over outer dimensions": (lambda x: x.sum((0, 2)), [random(3, 8, 5)], [8], [3, 5]),
    "centred over outer dimensions": (
        lambda x: x - x.mean((0, 2), keepdim=True),
        [random(3, 8, 5)],
        [8],
        [3, 5],
    ),
    "norm over two dimensions": (lambda x: F.layer_norm(x, (4, 8)), [random(3, 4, 8)], [3], [4, 8]),
    "group norm": (lambda x: F.group_norm(x, 2), [random(2, 6, 3, 4)], [2, 2], [3, 3, 4]),
    "norm after softmax": (
        lambda x: F.softmax(F.layer_norm(x, (6,)), -1),
        [random(4, 6)],
        [4],
        [6],
    ),
    "sum of softmax": (lambda x: F.softmax(x, -1).sum(-1), [random(4, 6)], [4], [6]),
    "any": (lambda x: (x > 1).any(-1), [random(4, 6)], [4], [6]),
    "all": (lambda x: (x > -1).all(0), [random(4, 6)], [6], [4]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), [random(4, 6)], [4], [6]),
    "variance": (lambda x: x.var(-1), [random(4, 6)], [4], [6]),
    "softmax of a concatenation": (
        lambda x, y: F.softmax(torch.cat((x, y), -1), -1),
        [random(3, 5), random(3, 7)],
        [3],
        [12],
    ),
    "reduction of a transpose": (lambda x: x.t().amax(-1), [random(4, 6)], [6], [4]),
    "reduction of an expanded tensor": (
        lambda x: (x.expand(3, 4, 6) * 2).sum(0),
        [random(4, 6)],
        [4, 6],
        [3],
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_has_its_own_axes(name):
    function, args, rows, columns = REDUCTIONS[name]

    kernel = lowered(function, *args).kernel

    assert [a.extent for a in kernel.rows] == rows
    assert [a.extent for a in kernel.columns] == columns


# Groups of a symbolic number of channels are refused, an expansion to numbers has no symbols.
FIXED = ("group norm", "reduction of an expanded tensor")


@pytest.mark.parametrize("name", [n for n in REDUCTIONS if n not in FIXED])
def test_a_reduction_of_symbolic_sizes(name):
    function, args, *_ = REDUCTIONS[name]

    kernel = lowered(function, *args, dynamic=True).kernel

    assert any(dims.symbols_in(a.extent) for a in kernel.axes)


def test_every_fold_runs_over_exactly_the_columns():
    kernel = lowered(lambda x: F.layer_norm(x, (8,)) + F.softmax(x, -1), random(3, 8)).kernel

    assert len(list(kernel.folds())) >= 4
    assert all(set(f.over) == set(kernel.columns) for f in kernel.folds())


def test_statistics_are_written_beside_the_rows():
    made = lowered(lambda x: torch.native_layer_norm(x, [8], None, None, 1e-5), random(3, 8))

    assert [s.axes & set(made.kernel.columns) == set() for s in made.kernel.stores] == [
        False,
        True,
        True,
    ]


def test_a_sum_and_its_norm_are_both_written():
    def add_norm(x, residual):
        h = x + residual
        return h, F.rms_norm(h, (8,))

    kernel = lowered(add_norm, random(3, 8), random(3, 8, seed=2)).kernel

    assert len(kernel.stores) == 2
    assert len(list(kernel.loads())) == 2


# ----------------------------------------------------------------- reductions under a guard


GUARDED = {
    "columns side by side": (
        lambda x, y: torch.cat((x.sum(-1, keepdim=True), y.amax(-1, keepdim=True)), -1) * 2,
        [random(3, 5), random(3, 5, seed=2)],
    ),
    "rows after rows": (
        lambda x, y: torch.cat((x.sum(-1), y.amax(-1))) * 2,
        [random(3, 5), random(4, 5)],
    ),
    "softmax above softmax": (
        lambda x, y: torch.cat((F.softmax(x, -1), F.softmax(y, -1))) * 2,
        [random(3, 5), random(4, 5)],
    ),
    "centred above plain": (
        lambda x, y: torch.cat((x - x.mean(-1, keepdim=True), y)) * 2,
        [random(3, 5), random(4, 5)],
    ),
    "stacked": (
        lambda x, y: torch.stack((x.sum(-1), y.sum(-1)), -1) * 2,
        [random(3, 5), random(3, 5, seed=2)],
    ),
    "under a guard of its own columns": (
        lambda x, y: F.softmax(torch.cat((x, y.amax(-1, keepdim=True)), -1), -1),
        [random(3, 5), random(3, 6)],
    ),
}


@pytest.mark.parametrize("name", [n for n in GUARDED if "own columns" not in n])
def test_a_reduction_in_a_piece_of_a_concatenation(name):
    function, args = GUARDED[name]

    assert lowered(function, *args).kernel.columns


# --------------------------------------------------------------------------------- refusals


REFUSED = {
    "two directions": (
        lambda x: x.sum(0, keepdim=True) + x.sum(1, keepdim=True),
        [random(4, 4)],
        "different-axes",
        "two reductions run over different axes",
    ),
    "one over the other": (
        lambda x: F.softmax(F.softmax(x, -1), 0),
        [random(4, 6)],
        "different-axes",
        "two reductions run over different axes",
    ),
    "rows of two lengths": (
        lambda x, y: F.softmax(x, -1).sum(-1) + y.sum(-1),
        [random(4, 6), random(4, 5)],
        "different-axes",
        "reductions over 5 and over 6 in one region",
    ),
    "rows that take part of an axis": (
        lambda x, y: torch.cat((F.softmax(x, -1), y), -1) * 2,
        [random(3, 5), random(3, 5)],
        "different-axes",
        "a reduction over 5 is spread over axes of 10",
    ),
    "outputs of unrelated shapes": (
        lambda x, y: (x * 2, y * 2),
        [random(4, 6), random(5)],
        "different-axes",
        "an output of shape 5 does not run along the others' axes",
    ),
    "a nested reduction of other rows": (
        GUARDED["under a guard of its own columns"][0],
        GUARDED["under a guard of its own columns"][1],
        "different-axes",
        "",
    ),
    "very many pieces": (
        lambda x: torch.cat([x] * (MOST_PIECES + 1)) * 2,
        [random(2, 3)],
        "index",
        f"concatenation of {MOST_PIECES + 1} tensors",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_one_loop_nest_is_refused(name):
    function, args, code, reason = REFUSED[name]

    with pytest.raises(NotLowerable) as caught:
        case(function, *args)

    assert caught.value.code == code
    assert reason in caught.value.reason


def test_an_op_without_a_definition_is_named():
    with pytest.raises(NotExpressible, match=r"aten\.cumsum\.default is not declared"):
        case(lambda x: x.cumsum(0) * 2, random(4, 6))


def test_sizes_that_cannot_be_proved_equal_are_refused():
    """The halves of an odd size would differ; PyTorch guards that they do not."""
    with pytest.raises(NotExpressible, match="do not broadcast"):
        case(lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], random(4, 6), dynamic=True)


# --------------------------------------------------------------------------------- rounding


def test_eager_numerics_round_where_the_original_rounds():
    def function(x):
        return torch.exp(x * 2) + 1

    x = random(64, 64, dtype=torch.bfloat16)
    exact, eager = lowered(function, x), lowered(function, x, eagerly=True)

    def rounds(made):
        return sum(isinstance(v, Round) for v in made.kernel.values())

    assert (rounds(exact), rounds(eager)) == (0, 3)


def test_a_conversion_that_the_user_wrote_rounds_in_any_case():
    made = lowered(lambda x: x.to(torch.bfloat16).float() * 3, random(8, 8))

    assert [v.to for v in made.kernel.values() if isinstance(v, Round)] == [torch.bfloat16]
    wanted = random(8, 8).to(torch.bfloat16).float() * 3
    assert torch.equal(made.eager[0], wanted)
