"""Which schedules a shape gets: the first candidate is what is used where nothing is timed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import random, region_of, trace

from fuseopt.codegen.candidates import INT32_LIMIT, schedules
from fuseopt.codegen.collapse import collapse
from fuseopt.codegen.generate import generate

HALF = torch.bfloat16


def kernel_of(function, *args: torch.Tensor, dynamic: bool = False):
    return region_of(trace(function, *args, dynamic=dynamic)).kernel


def chosen(function, *shapes, dtype=HALF, sequential=False):
    """The candidates for a function of tensors of these shapes, which are never touched."""
    args = [torch.empty(s, dtype=dtype) for s in shapes]
    found = generate(kernel_of(function, *args), "kernel", in_order=sequential)
    return [candidate.schedule for candidate in found]


def softmax(x):
    return F.softmax(x, -1)


def norm(x):
    return F.rms_norm(x, x.shape[-1:])


@pytest.mark.parametrize(
    ("function", "shapes", "text"),
    [
        (lambda x: F.gelu(x * 2), [(4096, 1024)], "flat 1024, 4 warps"),
        (lambda x: F.gelu(x * 2), [(100,)], "flat 128, 4 warps"),
        (lambda x, b: x * 2 + b, [(4096, 1024), (1024,)], "tile 1x1024, 4 warps"),
        (lambda x, y: x.t() * 2 + y, [(1024, 4096), (4096, 1024)], "tile 64x64, 4 warps"),
        (softmax, [(8192, 512)], "tile 4x512, 4 warps"),
        (softmax, [(8192, 64)], "tile 32x64, 4 warps"),
        (norm, [(4096, 4096)], "tile 1x4096, 8 warps"),
        (norm, [(4096, 12000)], "tile 1x1024x12, 4 warps"),
        (softmax, [(4096, 32768)], "tile 1x8192x4, 32 warps"),
        (norm, [(64, 131072)], "tile 1x8192 of 16 parts, 16 warps"),
        (lambda x: torch.logsumexp(x, -1), [(4096, 131072)], "looped 1x2048x4, 8 warps"),
        (lambda x: F.softmax(x, 1), [(64, 256, 1024)], "tile 32x256, 8 warps"),
        (lambda x: x.amax(0), [(100000, 64)], "looped 64x32x2, 8 warps"),
        (lambda x: x.sum(0), [(100000, 64)], "tile 64x64 in 528 groups read ahead, 8 warps"),
        (lambda x: x.sum(), [(100000, 64)], "flat 2048 in 1056 groups, 4 warps"),
    ],
)
def test_the_best_guess(function, shapes, text):
    assert chosen(function, *shapes)[0].describe() == text


def test_a_row_too_long_for_one_program_has_several_plans():
    found = [s.describe() for s in chosen(softmax, (64, 32768))]

    assert any("parts" in text for text in found)
    assert any("recomputed" in text for text in found)
    assert any("looped" in text for text in found)


def test_programs_that_run_in_turn_never_wait_for_each_other():
    assert all(s.parts == 1 for s in chosen(softmax, (64, 131072), sequential=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.amax(-1, keepdim=True) - x,
        lambda x: torch.expm1(x).prod(-1, keepdim=True) * x,
    ],
)
def test_reductions_that_cannot_be_exchanged_are_looped(function):
    assert all(s.parts == 1 for s in chosen(function, (64, 131072)))


def test_double_precision_sums_are_not_exchanged():
    assert all(s.parts == 1 for s in chosen(softmax, (64, 131072), dtype=torch.float64))


def test_a_length_known_only_at_run_time_is_not_shared():
    kernel = kernel_of(softmax, random(4, 8), dynamic=True)
    hints = {
        symbol: 131072 if symbol in kernel.column_count.free_symbols else 64
        for axis in kernel.axes
        for symbol in axis.extent.free_symbols
    }

    assert all(s.looped for s in schedules(collapse(kernel, hints), hints))


def test_offsets_beyond_31_bits_are_computed_in_64():
    beyond = INT32_LIMIT // 1024 + 2

    assert not any(s.wide_outer for s in chosen(norm, (4096, 1024)))
    assert all(s.wide_outer for s in chosen(norm, (beyond, 1024)))
    assert all(s.wide_outer for s in chosen(lambda x: x * 2 + 1, (beyond, 1024)))
    assert not any(s.wide_inner for s in chosen(norm, (beyond, 1024)))


def test_every_candidate_covers_the_row_and_all_rows():
    for rows, length in ((1, 1), (3, 17), (1000, 700), (64, 5000), (64, 20000), (8, 300000)):
        for schedule in chosen(softmax, (rows, length)):
            assert schedule.looped or schedule.width * schedule.parts >= length
            assert schedule.outer_block & (schedule.outer_block - 1) == 0
            assert schedule.inner_block & (schedule.inner_block - 1) == 0
            assert 1 <= schedule.num_warps <= 32


def test_candidates_differ():
    for shape in ((8192, 512), (4096, 4096), (64, 32768)):
        found = chosen(softmax, shape)
        assert len(set(found)) == len(found)
