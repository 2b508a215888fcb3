"""Equal values are computed once, unless somebody could tell."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.graph.share import share_equal_values

X = torch.randn(4, 8)


def shared(function, *args):
    gm = make_fx(function)(*args)
    count = share_equal_values(gm)
    gm.graph.lint()
    torch.testing.assert_close(gm(*args), function(*args))
    return count


def test_equal_clones_become_one():
    assert shared(lambda x: x.clone().exp().sum() + x.clone().exp().sum(), X) == 3


def test_numbers_of_different_types_differ():
    # An integer tensor times 1.0 is a float tensor.
    ints = torch.arange(4)
    assert shared(lambda i: torch.exp(i * 1) + torch.exp(i * 1.0), ints) == 0


def test_operands_and_order_matter():
    assert shared(lambda x, y: (x - y).exp() + (y - x).exp(), X, X + 1) == 0


def test_results_keep_memory_of_their_own():
    gm = make_fx(lambda x: (x.clone(), x.clone()))(X)

    assert share_equal_values(gm) == 0
    first, second = gm(X)
    assert first.data_ptr() != second.data_ptr()


def test_views_of_results_keep_memory_of_their_own():
    gm = make_fx(lambda x: (x.clone().view(8, 4), x.clone().view(32)))(X)

    assert share_equal_values(gm) == 0


def test_what_is_written_to_is_not_shared():
    def function(x):
        kept = x.clone()
        changed = x.clone().add_(1)
        return kept.exp() + changed.exp()

    assert shared(function, X) == 0


def test_random_numbers_are_drawn_each_time():
    gm = make_fx(lambda x: torch.rand_like(x).exp() + torch.rand_like(x).exp())(X)

    assert share_equal_values(gm) == 0
