"""Sums over rows: every schedule of both steps, run by Triton's interpreter against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import candidates, case, check, lowered, random

from fuseopt.codegen.generate import generate
from fuseopt.lower.nest import NotLowerable


def rms_norm_backward(x, w, dy):
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    normal = wide * scale
    g = dy.float() * w.float()
    dx = scale * (g - normal * (g * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * normal).sum(0).to(w.dtype)


def layer_norm_backward(x, w, dy):
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)
    shape = [x.shape[-1]]
    mask = [True, True, True]
    given = (dy, x, shape, mean, rstd, w, w)
    return torch.ops.aten.native_layer_norm_backward(*given, mask)


def gelu_backward(x, dy):
    dx = torch.ops.aten.gelu_backward(dy, x)
    return dx, dx.view(-1, dx.shape[-1]).sum(0, keepdim=True).view(-1)


def channels(x, dy):
    dx = torch.ops.aten.threshold_backward(dy, x, 0)
    return dx, dx.sum((0, 2, 3))


def batches(x, dy):
    """Scale and shift of each sample: the batch dimension is kept, the middle one is summed."""
    dx = dy * torch.tanh(x)
    return dx, dx.sum(1)


def finished(x):
    """What follows the sum is computed once, of the whole."""
    return torch.sqrt(x.float().pow(2).mean(0) + 1e-6)


def loss(x, dy):
    """A number for each row, added up over the rows."""
    rows = torch.logsumexp(x.float(), -1)
    return rows, rows.sum(), x - rows[:, None]


def whole(x):
    return x.exp().mean()


def counted(x):
    return (x > 0).sum(0), (x > 1).sum()


ROWS = {
    "rms norm backward": (rms_norm_backward, [(70, 100), (100,), (70, 100)]),
    "rms norm backward, long rows": (rms_norm_backward, [(5, 2500), (2500,), (5, 2500)]),
    "layer norm backward": (layer_norm_backward, [(9, 33), (33,), (9, 33)]),
    "loss": (loss, [(37, 50), (37, 50)]),
}
POINTS = {
    "gelu backward": (gelu_backward, [(4, 30, 50), (4, 30, 50)]),
    "channels": (channels, [(3, 5, 6, 7), (3, 5, 6, 7)]),
    "batches": (batches, [(3, 40, 24), (3, 40, 24)]),
    "finished": (finished, [(300, 20)]),
    "whole": (whole, [(220, 200)]),
    "two sums": (counted, [(300, 17)]),
}


def made(name: str, dtype: torch.dtype):
    function, shapes = {**ROWS, **POINTS}[name]
    args = [random(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]
    return case(function, *args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", [n for n in {**ROWS, **POINTS} if n != "two sums"])
def test_every_schedule_adds_up_all_rows(name, dtype, store):
    region = made(name, dtype)

    found = candidates(region.kernel, region.sizes)

    assert all(c.last is not None for c in found)
    for candidate in found:
        check(region, candidate, store)


@pytest.mark.parametrize("name", [n for n in {**ROWS, **POINTS} if n != "two sums"])
def test_the_interpreter_is_offered_few_programs(name, store):
    region = made(name, torch.float32)

    (candidate,) = generate(region.kernel, "kernel", region.sizes, interpreted=True)

    assert candidate.grid(region.sizes) <= 32
    check(region, candidate, store)


def test_sums_that_keep_different_axes_are_not_of_one_kernel():
    with pytest.raises(NotLowerable, match="different axes"):
        made("two sums", torch.float32)


def test_a_transposed_tensor_is_summed_along_its_memory(store):
    x = random(300, 48).T.contiguous().T

    region = lowered(lambda x, y: (x * y, (x * y).sum(0)), x, random(300, 48).T.contiguous().T)

    for candidate in candidates(region.kernel, region.sizes):
        check(region, candidate, store)


def test_integers_and_doubles_keep_their_width(store):
    numbers = random(300, 40, dtype=torch.int64) * 2**40
    doubles = random(300, 40, dtype=torch.float64)

    for x in (numbers, doubles):
        region = case(lambda x: (x * 2, (x * 2).sum(0)), x)
        for candidate in candidates(region.kernel, region.sizes):
            assert candidate.partials[0][0] == x.dtype
            check(region, candidate, store)


def test_a_sum_needed_by_every_row_is_no_total():
    region = lowered(lambda x: (x * 2 + x.sum(0), x.sum(0) * 1), random(300, 40))

    assert not list(region.kernel.totals())


def test_sizes_may_be_symbols(store):
    args = [random(40, 30, 50), random(40, 30, 50)]
    region = case(gelu_backward, *args, dynamic=True)
    assert list(region.kernel.totals())

    for candidate in candidates(region.kernel, region.sizes):
        check(region, candidate, store)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_group_without_rows_adds_nothing(ahead, store):
    """Sizes may be smaller than those that the number of groups was chosen for."""
    from dataclasses import replace

    region = made("rms norm backward", torch.float32)
    found = candidates(region.kernel, region.sizes)
    one = next(c for c in found if c.schedule.ahead == ahead)
    assert one.last is not None
    groups = one.schedule.groups
    more = {f"% {groups}": f"% {groups + 3}", f"row_tiles, {groups})": f"row_tiles, {groups + 3})"}
    more |= {f"row_tile + {groups},": f"row_tile + {groups + 3},"}

    text = one.source.text
    for old, new in more.items():
        text = text.replace(old, new)
    last = one.last.source.text.replace(f"< {groups}", f"< {groups + 3}")
    schedule = replace(one.schedule, groups=groups + 3)
    wider = replace(
        one,
        schedule=schedule,
        source=replace(one.source, text=text),
        last=replace(one.last, source=replace(one.last.source, text=last)),
    )

    assert text != one.source.text
    check(region, wider, store)


def test_rows_of_unknown_length_keep_no_sums():
    args = [random(70, 96), random(96), random(70, 96)]

    with pytest.raises(NotLowerable, match="more than"):
        case(rms_norm_backward, *args, dynamic=True)


def test_softmax_of_a_bias_gradient_reads_the_sum(store):
    """Rows and totals of one kernel: a softmax backward with the gradient of its bias."""

    def backward(y, dy):
        dx = y * (dy - (y * dy).sum(-1, keepdim=True))
        return dx, dx.sum(0)

    y = F.softmax(random(50, 60), -1)
    region = lowered(backward, y, random(50, 60, seed=1))

    for candidate in candidates(region.kernel, region.sizes):
        check(region, candidate, store)
