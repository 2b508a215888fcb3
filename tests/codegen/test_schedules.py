"""Every kind of schedule, printed and run by Triton's interpreter against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import candidates, case, check, random, under

from fuseopt.codegen.schedule import Schedule

LENGTH = 100  # of a row: neither a power of two nor a multiple of a strip


def strips(outer: int, inner: int, count: int, **how):
    return lambda kernel: Schedule(kernel.rows, kernel.columns, outer, inner, count, **how)


ROWS = {
    "several rows a program": strips(4, 128, 1),
    "one resident row": strips(1, 128, 1),
    "strips": strips(1, 32, 4),
    "strips of several rows": strips(2, 32, 4),
    "recomputed strips": strips(1, 32, 4, again=True),
    "loop": strips(1, 16, 2, looped=True),
    "loop of several rows": strips(4, 16, 1, looped=True),
    "shared by two programs": strips(1, 32, 2, parts=2),
    "shared by three, recomputed": strips(1, 16, 3, parts=3, again=True),
}
SHARED = [name for name in ROWS if "shared" in name]


def add_norm(x, residual, weight):
    h = x + residual
    return h, F.rms_norm(h, (LENGTH,), weight)


def manual_softmax(x):
    """The maximum, the exponentials and their sum are results of their own."""
    high = x.amax(-1, keepdim=True)
    grown = torch.exp(x - high)
    return grown / grown.sum(-1, keepdim=True), grown.sum(-1), high * 1


REDUCTIONS = {
    "softmax": (F.softmax, "", {"dim": -1}),
    "log softmax": (F.log_softmax, "", {"dim": -1}),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (LENGTH,), w, b), "wb", {}),
    "residual and norm": (add_norm, "rw", {}),
    "statistics": (lambda x: torch.var_mean(x, -1), "", {}),
    "sums of two inputs": (lambda x, y: (x * y).sum(-1) / y.norm(dim=-1), "r", {}),
}
# Programs that share a row exchange sums and the maxima of softmax, no other.
UNSHARED = {
    "softmax by hand": (manual_softmax, "", {}),
    "extremes": (lambda x: (x.amax(-1), x.amin(-1), x - x.amax(-1, keepdim=True)), "", {}),
    "product": (lambda x: (x * 0.1 + 1).prod(-1), "", {}),
    "truth": (lambda x: ((x > 2).any(-1), (x > -3).all(-1)), "", {}),
}


def arguments(wanted: str, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, then a residual "r", a weight "w" and a bias "b" where wanted."""
    shapes = {"r": (rows, LENGTH), "w": (LENGTH,), "b": (LENGTH,)}
    extra = [random(*shapes[k], dtype=dtype, seed=ord(k)) for k in wanted]
    return [random(rows, LENGTH, dtype=dtype), *extra]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "schedule"),
    [(n, s) for n in (*REDUCTIONS, *UNSHARED) for s in ROWS if n in REDUCTIONS or s not in SHARED],
)
def test_a_row_is_reduced_alike_under_every_schedule(name, schedule, dtype, store):
    function, wanted, options = {**REDUCTIONS, **UNSHARED}[name]

    made = case(lambda *a: function(*a, **options), *arguments(wanted, 3, dtype))

    check(made, under(made, ROWS[schedule]), store)


@pytest.mark.parametrize("schedule", ROWS)
def test_half_precision_is_computed_in_single(schedule, store):
    made = case(add_norm, *arguments("rw", 3, torch.float16))

    check(made, under(made, ROWS[schedule]), store)


@pytest.mark.parametrize("schedule", [n for n in ROWS if n not in SHARED])
def test_double_precision_is_kept(schedule, store):
    args = arguments("wb", 3, torch.float64)
    made = case(lambda x, w, b: F.softmax(F.layer_norm(x, (LENGTH,), w, b) * 0.1, -1), *args)

    check(made, under(made, ROWS[schedule]), store)


# ---------------------------------------------------------------------------- without reductions


def flat(kernel):
    return Schedule(kernel.rows, (), 32, 1)


def tiles(kernel):
    return Schedule(kernel.rows[:-1], kernel.rows[-1:], 4, 16)


def tiles_of_rows(kernel):
    return Schedule(kernel.rows[:-1], kernel.rows[-1:], 1, 16)


POINTWISE = {
    "broadcast": (lambda x, b: F.silu(x + b) * x, [(5, 3, 21), (21,)]),
    "broadcast over rows": (lambda x, b: F.gelu(x) * b, [(5, 3, 21), (5, 1, 1)]),
    "transposed": (lambda x, y: x.transpose(1, 2) * 2 + y, [(5, 21, 6), (5, 6, 21)]),
    "two outputs": (lambda x, y: (torch.tanh(x) * y, x - y), [(5, 3, 21), (5, 3, 21)]),
    "concatenated": (lambda x, y: torch.cat((x * 2, y), 2) + 1, [(5, 3, 13), (5, 3, 8)]),
    "halves rotated": (
        lambda x, c: x * c + torch.cat((-x[..., 11:], x[..., :11]), -1) * (1 - c),
        [(5, 3, 22), (3, 22)],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("schedule", [flat, tiles, tiles_of_rows])
@pytest.mark.parametrize("name", POINTWISE)
def test_elements_are_computed_alike_under_every_schedule(name, schedule, dtype, store):
    function, shapes = POINTWISE[name]

    made = case(function, *(random(*s, dtype=dtype, seed=n) for n, s in enumerate(shapes)))

    check(made, under(made, schedule), store)


# -------------------------------------------------------------------- reductions under a guard


GUARDED = {
    "side by side": lambda x, y: torch.cat((x.sum(-1, keepdim=True), y.amax(-1, keepdim=True)), -1),
    "rows after rows": lambda x, y: torch.cat((x.mean(-1), y.amax(-1))) * 2,
    "norms after norms": lambda x, y: torch.cat((F.softmax(x, -1), F.layer_norm(y, (LENGTH,)))),
    "centred above plain": lambda x, y: torch.cat((x - x.mean(-1, keepdim=True), y)) * 2,
}


@pytest.mark.parametrize("schedule", [n for n in ROWS if n not in SHARED])
@pytest.mark.parametrize("name", GUARDED)
def test_reductions_in_pieces_of_a_concatenation(name, schedule, store):
    made = case(GUARDED[name], random(3, LENGTH), random(3, LENGTH, seed=1))

    check(made, under(made, ROWS[schedule]), store)


# ------------------------------------------------------------------------------- shapes, layouts


SHAPES = [(1,), (7,), (1, 1), (1, 33), (33, 1), (3, 1, 5), (2, 3, 129), (1, 257)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_sizes_and_sizes_of_one(shape, store):
    def function(x):
        return F.softmax(x * 2, -1), x.sum(-1, keepdim=True) * 3, torch.relu(x) + 1

    for single in (
        lambda x: function(x)[0],
        lambda x: function(x)[1],
        lambda x: function(x)[2],
        lambda x: F.layer_norm(x, x.shape[-1:]),
    ):
        made = case(single, random(*shape))
        for candidate in candidates(made.kernel, {}):
            check(made, candidate, store)


LAYOUTS = {
    "transposed": random(70, 40).t(),
    "strided": random(80, 140)[::2, ::2],
    "expanded": random(1, 70).expand(40, 70),
    "offset": random(41, 71)[1:, 1:],
    "overlapping": random(120).as_strided((40, 70), (1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout(layout, store):
    x, y = LAYOUTS[layout], random(40, 70, seed=5)

    for function in (
        lambda x, y: F.gelu(x) + y,
        lambda x, y: F.softmax(x + y, -1),
        lambda x, y: F.softmax(x + y, 0),
    ):
        made = case(function, x, y)
        for candidate in candidates(made.kernel, {}):
            check(made, candidate, store)


def test_channels_last_is_read_and_written_in_its_order(store):
    x = random(2, 24, 5, 7).to(memory_format=torch.channels_last)
    made = case(lambda x, b: F.relu(x + b[:, None, None]), x, random(24))

    candidate = candidates(made.kernel, {})[0]

    assert made.region.kernel.outputs[0].strides == x.stride()
    assert [a.extent for a in candidate.schedule.outer + candidate.schedule.inner][-1] == 24
    check(made, candidate, store)


# -------------------------------------------------------------------------------- dynamic sizes


@pytest.mark.parametrize("schedule", [n for n in ROWS if n not in SHARED])
def test_symbolic_rows_and_lengths(schedule, store):
    made = case(
        lambda x: F.softmax(F.layer_norm(x, x.shape[-1:]), -1), random(3, LENGTH), dynamic=True
    )

    candidate = under(made, ROWS[schedule])

    assert len(candidate.symbols) == 2
    check(made, candidate, store)


@pytest.mark.parametrize("schedule", [flat, tiles, tiles_of_rows])
@pytest.mark.parametrize("shape", [(5, 3, 21), (5, 21, 21)], ids=str)
def test_symbolic_sizes_of_elements(schedule, shape, store):
    made = case(
        lambda x, b: F.silu(x.transpose(1, 2)) + b, random(*shape), random(shape[1]), dynamic=True
    )

    check(made, under(made, schedule), store)


def test_a_square_of_symbolic_size_is_flat(store):
    made = case(lambda x: torch.exp(x) * 2, random(9, 9), dynamic=True)

    candidate = under(made, flat)

    assert "**" not in candidate.source.text
    check(made, candidate, store)


def test_a_kernel_built_for_a_bucket_serves_smaller_sizes(store):
    small = case(lambda x: F.softmax(x, -1), random(3, 70), dynamic=True)
    (bucket,) = [{s: 128 if n == 70 else 4 for s, n in small.sizes.items()}]

    for candidate in candidates(small.kernel, bucket):
        check(small, candidate, store)
