"""Where kernels compute functions faster and less exactly, and where they must not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import case, check, random, under

from fuseopt.codegen.fast import fast_values, flushed_exponentials
from fuseopt.codegen.schedule import Schedule
from fuseopt.ir.values import Apply

HALF = torch.bfloat16


def exponentials(function, *args):
    """The exponentials of a kernel, and which of them may be flushed to zero."""
    kernel = case(function, *args).kernel
    found = [v for v in kernel.values() if isinstance(v, Apply) and v.primitive == "exp"]
    flushed = flushed_exponentials(kernel, fast_values(kernel))
    return [id(v) in flushed for v in found]


def written_out(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e, e.sum(-1, keepdim=True)


def total_of_columns(x):
    return written_out(x)[0].sum(0)


def normalised(x):
    e, total = written_out(x)
    return e / total


FLUSHED = {
    "a gate": (lambda x: x / (1 + torch.exp(-x)), HALF, [True]),
    "a gate in float32": (lambda x: x / (1 + torch.exp(-x)), torch.float32, [True]),
    "a product in float32": (lambda x: x * torch.exp(-x), torch.float32, [False]),
    "softplus": (lambda x: torch.log(1 + torch.exp(x)), HALF, [True]),
    "a logarithm of it": (lambda x: torch.log(torch.exp(x) * 2), HALF, [False]),
    "a root of it": (lambda x: torch.rsqrt(torch.exp(x) * 2), HALF, [False]),
    "a division by it": (lambda x: 1 / (torch.exp(x) * 2), HALF, [False]),
    "probabilities": (normalised, HALF, [True]),
    "their logarithm": (lambda x: torch.log(normalised(x)), HALF, [False]),
    "the logarithm of a sum": (lambda x: torch.log(written_out(x)[1]), torch.float32, [True]),
    "one of two results": (written_out, torch.float32, [False]),
}


@pytest.mark.parametrize(("function", "dtype", "expected"), FLUSHED.values(), ids=FLUSHED)
def test_the_smallest_exponentials_are_flushed_where_nothing_makes_much_of_them(
    function, dtype, expected
):
    assert exponentials(function, random(8, 64, dtype=dtype)) == expected


def test_a_sum_over_other_axes_than_the_maximum_has_no_term_of_one():
    assert exponentials(lambda x: total_of_columns(x) * 2, random(8, 64)) == [False]


def test_only_what_reaches_narrow_results_alone_is_fast(tmp_path):
    def function(x):
        both = torch.tanh(x.float())
        return (both * 2).to(HALF), both + 1, torch.tanh(x.float() * 3).to(HALF)

    made = case(function, random(8, 64, dtype=HALF))
    fast = fast_values(made.kernel)
    tangents = [v for v in made.kernel.values() if isinstance(v, Apply) and v.primitive == "tanh"]
    of_input = [not isinstance(v.args[0], Apply) for v in tangents]

    assert sorted(of_input) == [False, True]
    assert [id(v) in fast for v in tangents] == [not direct for direct in of_input]


def test_a_result_of_eight_bits_is_rounded_once():
    def function(x):
        return (F.silu(x) * 2).to(torch.float8_e4m3fn)

    made = case(function, random(8, 64, dtype=HALF))
    candidate = under(made, lambda k: Schedule(k.rows, (), 256, 1), interpreted=False)

    assert candidate.source.text.count(".to(tl.float8e4nv)") == 1


@pytest.mark.parametrize("dtype", [HALF, torch.float16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 30.0, 200.0])
def test_fast_functions_agree_with_pytorch(dtype, size, store):
    def function(x):
        return torch.tanh(x) + F.gelu(x) * torch.erf(x) + x / (1 + torch.exp(-x))

    made = case(function, random(8, 64, dtype=dtype) * size)
    check(made, under(made, lambda k: Schedule(k.rows, (), 256, 1)), store)
