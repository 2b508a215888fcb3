"""Kernels called on tensors that are not laid out as they were built for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import random
from torch import nn

import fuseopt
from fuseopt.events import FellBack, RegionFused, RolledBack
from fuseopt.runtime.build import Builder
from fuseopt.runtime.call import ALIGNMENT, realign, restride

WIDTH = 24


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def assert_fused_and_right(function, *calls, kernels=1, **options):
    """Optimise a function for the first inputs, then compare it with the original on each."""
    optimized = fuseopt.optimize(lambda *a: function(*a), **options)
    for args in calls:
        with torch.no_grad():
            found, wanted = optimized(*args), function(*args)
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    assert len(optimized.log.of(RegionFused)) >= kernels
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)
    return optimized


# ------------------------------------------------------------------------------- misaligned views


def view_at(offset: int, *shape: int) -> torch.Tensor:
    """A contiguous tensor that starts `offset` elements into its memory."""
    count = torch.Size(shape).numel()
    return random(count + offset)[offset:].view(shape)


def norm_and_gate(x, y):
    return F.layer_norm(x, (WIDTH,)) * F.silu(y)


def test_a_kernel_built_for_aligned_tensors_takes_misaligned_ones():
    aligned = view_at(0, 8, WIDTH)
    one_off = view_at(1, 8, WIDTH)
    assert aligned.data_ptr() % ALIGNMENT == 0
    assert one_off.data_ptr() % ALIGNMENT == 4

    assert_fused_and_right(
        norm_and_gate,
        (aligned, aligned),
        (one_off, aligned),
        (aligned, one_off),
        (one_off, one_off),
    )


def test_a_graph_that_is_first_called_with_misaligned_tensors():
    one_off = view_at(1, 8, WIDTH)

    assert_fused_and_right(norm_and_gate, (one_off, one_off), (view_at(0, 8, WIDTH), one_off))


def test_symbolic_sizes_and_misaligned_tensors():
    calls = [(view_at(n % 2, 5 + n, WIDTH), view_at(1, 5 + n, WIDTH)) for n in range(3)]

    assert_fused_and_right(norm_and_gate, *calls, dynamic=True)


def test_views_inside_the_graph_may_be_misaligned():
    def function(x):
        shifted = (x @ x)[1:, 1:]
        return torch.exp(shifted * 0.1) + torch.tanh(shifted)

    assert_fused_and_right(function, (random(9, 9),))


def test_a_weight_may_be_misaligned():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(view_at(1, WIDTH))

        def forward(self, x):
            return F.layer_norm(x, (WIDTH,), self.weight) * 2

    model, x = Model(), random(8, WIDTH)
    with torch.no_grad():
        optimized = fuseopt.optimize(model)
        torch.testing.assert_close(optimized(x), model(x))
    assert optimized.log.of(RegionFused)


def shared(result: torch.Tensor, given: torch.Tensor) -> bool:
    return result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: x.chunk(2)[1]]
)
def test_a_view_of_a_misaligned_input_is_of_the_input_itself(view):
    x = view_at(1, 8, WIDTH)
    optimized = fuseopt.optimize(lambda x: (torch.exp(x) * 2, view(x)))

    with torch.no_grad():
        _, found = optimized(x)

    assert optimized.log.of(RegionFused)
    assert found.data_ptr() == view(x).data_ptr()
    assert shared(found, x)


def test_a_copy_that_keeps_the_offset_of_what_it_copies():
    def function(x):
        return torch.slice_scatter(x, torch.ones(8, 2), 1, 3, 5).exp() * 2

    assert_fused_and_right(function, (view_at(1, 8, WIDTH),))


def test_a_misaligned_input_that_is_written_in_parts():
    def function(x):
        x[:, ::2] = x[:, 1::2] + 1
        return (x + 1) * 2

    given, eager = view_at(1, 8, WIDTH), view_at(1, 8, WIDTH)
    optimized = fuseopt.optimize(function)
    with torch.no_grad():
        torch.testing.assert_close(optimized(given), function(eager))
    torch.testing.assert_close(given, eager)
    assert optimized.log.of(RegionFused)


@pytest.mark.parametrize("offset", range(4))
def test_realigning_keeps_strides_and_values(offset):
    for tensor in (
        random(100)[offset:],
        random(20, 20)[offset:, offset:].t(),
        random(40)[offset:].as_strided((8, 8), (2, 1)),
        random(12)[offset : offset + 4].expand(3, 4),
    ):
        made = realign(tensor)

        assert made.data_ptr() % ALIGNMENT == 0
        assert made.stride() == tensor.stride()
        assert torch.equal(made, tensor)
        assert (made is tensor) == (tensor.data_ptr() % ALIGNMENT == 0)


# -------------------------------------------------------------------- strides that are not so


def define(name: str, schema: str, real, fake) -> None:
    library = torch.library.Library("fuseopt_tests", "FRAGMENT")
    library.define(f"{name}{schema}")
    library.impl(name, real, "CPU")
    library.impl(name, fake, "Meta")
    LIBRARIES.append(library)


LIBRARIES: list[torch.library.Library] = []


@pytest.fixture(scope="module", autouse=True)
def lying_ops():
    """Ops whose shape inference says contiguous, and whose results are not."""
    one = "(Tensor x) -> Tensor"
    define("column_major", one, lambda x: (x * 2).t().contiguous().t(), torch.empty_like)
    define("padded", one, lambda x: F.pad(x, (1, 2))[:, 1:-2], torch.empty_like)
    define(
        "both",
        "(Tensor x) -> (Tensor, Tensor)",
        lambda x: ((x + 1).t().contiguous().t(), x * 3),
        lambda x: (torch.empty_like(x), torch.empty_like(x)),
    )
    yield
    for library in LIBRARIES:
        library._destroy()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", ["column_major", "padded"])
def test_strides_that_lie_about_an_opaque_result(op, dynamic):
    call = getattr(torch.ops.fuseopt_tests, op)

    def function(x):
        return F.softmax(call(x) * 0.5, -1) + 1

    assert_fused_and_right(function, (random(6, WIDTH),), dynamic=dynamic)


def test_strides_that_lie_about_one_of_several_results():
    def function(x):
        first, second = torch.ops.fuseopt_tests.both(x)
        return F.gelu(first) * second

    assert_fused_and_right(function, (random(6, WIDTH),))


def test_restriding_keeps_values():
    column_major = random(6, 8).t().contiguous().t()

    assert restride(column_major, (1, 6)) is column_major
    made = restride(column_major, (8, 1))
    assert made.stride() == (8, 1)
    assert torch.equal(made, column_major)


def test_the_stride_of_a_single_row_does_not_matter():
    row = random(1, 8)

    assert restride(row.as_strided((1, 8), (99, 1)), (8, 1)).stride() == (99, 1)


def test_restriding_to_a_repeated_row():
    repeated = random(1, 8).expand(5, 8).contiguous()

    made = restride(repeated, (0, 1))

    assert made.stride() == (0, 1)
    assert torch.equal(made, repeated)


# ------------------------------------------------------------------------ conversions that escape


def test_a_wide_value_that_a_product_and_a_kernel_read():
    matrix = random(WIDTH, 5)

    def function(x):
        wide = x.float()
        return wide @ matrix, torch.exp(wide) * 2 + 1

    assert_fused_and_right(function, (random(6, WIDTH, dtype=torch.bfloat16),))


def test_a_wide_value_that_is_a_result_too():
    def function(x):
        wide = x.float()
        return wide, F.softmax(wide * 2, -1)

    assert_fused_and_right(function, (random(6, WIDTH, dtype=torch.bfloat16),))


def test_a_chain_of_widenings_of_which_the_middle_escapes():
    def function(x):
        single = x.float()
        return single @ single.t(), torch.tanh(single.double()) * 2

    assert_fused_and_right(function, (random(6, WIDTH, dtype=torch.float16),))


# ------------------------------------------------------------------------------ mutation between


def test_what_is_read_before_a_write_keeps_its_old_values():
    def function(x):
        before = torch.exp(x) * 2
        x.add_(1)
        return before + x.sin(), F.softmax(x, -1)

    optimized = fuseopt.optimize(lambda x: function(x))
    first, second = random(6, WIDTH), random(6, WIDTH)
    with torch.no_grad():
        found, wanted = optimized(first), function(second)

    for ours, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, eager)
    assert torch.equal(first, second)
    assert optimized.log.of(RegionFused)
    assert not optimized.log.of(RolledBack)


# ------------------------------------------------------------------------ numbers among the values


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, n: x * n + 1, id="factor"),
        pytest.param(lambda x, n: torch.softmax(x * n, -1).sum(-1), id="reduced"),
        pytest.param(lambda x, n: x[:, n].exp() + 1, id="place"),
        pytest.param(lambda x, n: torch.where(torch.arange(WIDTH) < n, x, 0.0) * 2, id="guard"),
        pytest.param(lambda x, n: (torch.arange(WIDTH) * n + 1) // 2 + x, id="coordinate"),
    ],
)
def test_a_kernel_computes_with_a_number_that_is_no_size_of_its_tensors(function):
    x = random(6, WIDTH)

    assert_fused_and_right(function, *[(x, n) for n in (2, 3, -5, 7)], verify=False)


def test_one_binary_serves_all_values_of_a_number_and_one_each_bucket_of_sizes(monkeypatch):
    built = []
    build = Builder._build_one
    monkeypatch.setattr(
        Builder,
        "_build_one",
        lambda self, order, sizes: built.append(sizes) or build(self, order, sizes),
    )
    calls = [(random(rows, WIDTH), n) for rows in (5, 7, 8, 9) for n in (3, 40, -2, 700)]

    assert_fused_and_right(lambda x, n: torch.softmax(x * n, -1), *calls, dynamic=True)

    assert len(built) == 2
