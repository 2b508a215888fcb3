"""Normal form: terms that are equal by algebra are one object, others are not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from spellings import W, X, Y, subject_of, tensor

from fuseopt.match.algebra import add, exponential, multiply, negate, raised, scale
from fuseopt.match.folds import fold, opened, substitute
from fuseopt.match.indices import Axis, along, fixed
from fuseopt.match.terms import Fold, Literal, Load, Table, Term

D, R = Axis("d", 8), Axis("r", 8)


def load(table: Table, name: str, *axes: Axis) -> Load:
    source = table.source("input", name, [a.extent for a in axes], name)
    return table.load(source, map(along, axes))


def text_of(function, *args) -> str:
    """The term of a function's result as text."""
    return str(subject_of(function, *args).roots()[0].term)


def test_equal_terms_are_one_object():
    table = Table()
    x, y = load(table, "x", D), load(table, "y", D)

    assert add(table, 0.0, [(x, 1.0), (y, 1.0)]) is add(table, 0.0, [(y, 1.0), (x, 1.0)])
    assert multiply(table, 1.0, [(x, 1.0), (x, 1.0)]) is raised(table, x, 2.0)
    assert add(table, 1.0, [(x, 1 / 3)]) is add(table, 1.0, [(x, 0.1 + 0.7 / 3)])


def test_a_shared_factor_goes_out_of_a_sum():
    table = Table()
    x, y = load(table, "x", D), load(table, "y", D)

    total = add(table, 0.0, [(x, 0.5), (multiply(table, 0.5, [(x, 1.0), (y, 1.0)]), 1.0)])

    assert total is multiply(table, 0.5, [(x, 1.0), (add(table, 1.0, [(y, 1.0)]), 1.0)])


def test_a_positive_power_is_not_distributed():
    table = Table()
    x = load(table, "x", D)

    assert str(raised(table, scale(table, 2.0, x), 2.0)) == "2*x[d]**2"
    assert raised(table, scale(table, 4.0, x), -0.5) is multiply(table, 0.5, [(x, -0.5)])
    assert str(raised(table, raised(table, x, 2.0), 0.5)) == "x[d]**2**0.5"  # |x|


def test_exponentials_cancel():
    table = Table()
    x, m = load(table, "x", D), load(table, "m")

    product = multiply(
        table, 1.0, [(exponential(table, add(table, 0.0, [(x, 1.0), (m, -1.0)])), 1.0)]
    )
    back = multiply(table, 1.0, [(product, 1.0), (exponential(table, m), 1.0)])

    assert back is exponential(table, x)


def test_a_logistic_function_has_one_orientation():
    table = Table()
    x = load(table, "x", D)
    grown = exponential(table, x)

    left = multiply(table, 1.0, [(grown, 1.0), (add(table, 1.0, [(grown, 1.0)]), -1.0)])
    right = raised(table, add(table, 1.0, [(exponential(table, negate(table, x)), 1.0)]), -1.0)

    assert left is right


def test_a_sum_of_distances_from_the_mean_is_nothing():
    table = Table()
    x = load(table, "x", R)
    mean = scale(table, 1 / 8, fold(table, "sum", [D], load(table, "x", D)))

    spread = add(table, 0.0, [(x, 1.0), (mean, -1.0)])

    assert fold(table, "sum", [R], spread) is table.literal(0.0)


def test_reductions_do_not_depend_on_names():
    table = Table()
    one = fold(table, "sum", [D], raised(table, load(table, "x", D), 2.0))
    other = fold(table, "sum", [R], raised(table, load(table, "x", R), 2.0))

    assert one is other


def test_substitution_does_not_capture():
    table = Table()
    inner = Axis("q", 8)
    body = multiply(table, 1.0, [(load(table, "x", D), 1.0), (load(table, "y", inner, D), 1.0)])
    total = fold(table, "sum", [inner], body)
    assert isinstance(total, Fold)

    moved = substitute(table, total, {D: along(total.over[0])})

    assert isinstance(moved, Fold)
    assert total.over[0] in moved.axes


def test_shared_values_are_read_by_name():
    subject = subject_of(lambda x, y: (x + y) * torch.sin(x + y), X, Y)
    root = subject.roots()[0]

    assert str(root.term) in ("v0[a0, a1, a2]*sin(v0[a0, a1, a2])",)
    (shared,) = (t for t in root.term.operands if isinstance(t, Load))
    assert str(opened(root.shadow.table, shared)) == "(i0[a0, a1, a2] + i1[a0, a1, a2])"


def test_deep_networks_stay_small():
    def stream(x, w):
        for _ in range(60):
            x = x + F.rms_norm(x, (16,), w, 1e-6)
        return x

    subject = subject_of(stream, X, W)
    made = len(subject.roots()[0].shadow.table.made)

    assert made < 60 * 100


EQUAL = {
    "variance": (
        lambda x: x.var(-1, correction=0),
        lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1),
    ),
    "eps": (
        lambda x: (x.pow(2).mean(-1) + 1e-3).rsqrt(),
        lambda x: math.sqrt(16) / (x.pow(2).sum(-1) + 16e-3).sqrt(),
    ),
    "tanh": (
        lambda x: torch.tanh(x),
        lambda x: 2 * torch.sigmoid(2 * x) - 1,
    ),
    "softplus": (lambda x: F.softplus(x), lambda x: torch.log(1 + torch.exp(x))),
    "mean of means": (lambda x: x.mean((-1, -2)), lambda x: x.mean(-1).mean(-1)),
    "constant axes": (lambda x: x.expand(4, 2, 3, 16)[0], lambda x: x * 1.0),
    "safe softmax": (
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        lambda x: F.softmax(x, -1),
    ),
    "split": (
        lambda x: x.view(2, 3, 4, 4).transpose(2, 3).flatten(2) * 2,
        lambda x: x.view(2, 3, 4, 4).permute(0, 1, 3, 2).reshape(2, 3, 16) * 2,
    ),
    "casts": (lambda x: x.half().exp().float(), lambda x: x.double().exp()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_spellings_have_one_term(name):
    one, other = EQUAL[name]

    assert text_of(lambda x: one(x) * 1.5, X) == text_of(lambda x: other(x) * 1.5, X)


DIFFERENT = {
    "signs": (lambda x, y: x - y * y, lambda x, y: y * y - x),
    "dimensions": (lambda x, y: x.mean(-1).sum(), lambda x, y: (x * y).mean(1).sum()),
    "squares": (lambda x, y: (x + y) ** 2, lambda x, y: x**2 + y**2),
    "integers": (lambda x, y: x.to(torch.int32) + 0.5, lambda x, y: x + 0.5),
    "maxima": (lambda x, y: torch.maximum(x, y), lambda x, y: torch.minimum(x, y)),
    "negation": (lambda x, y: torch.where(x < y, x, 1.0), lambda x, y: torch.where(x < y, 1.0, x)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_have_different_terms(name):
    one, other = DIFFERENT[name]

    assert text_of(one, X, Y) != text_of(other, X, Y)


def test_sizes_of_a_dynamic_graph_stay_symbols():
    subject = subject_of(lambda x: x.mean(-1), tensor(4, 6), dynamic=True)

    assert "size" in str(subject.roots()[0].term)


def test_a_shift_of_an_index_is_seen():
    table = Table()
    source = table.source("input", "x", [8], "x")
    x: Term = table.load(source, [along(D)])

    moved = substitute(table, x, {D: along(D) + fixed(3)})

    assert str(moved) == "x[d + 3]"
    assert not isinstance(moved, Literal)
