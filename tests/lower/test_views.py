"""Views, rearrangements and gathers become indices: checked by evaluation against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import lowered, random

from fuseopt.ir.index import Quotient, Remainder
from fuseopt.ir.rewrite import all_indices
from fuseopt.ir.text import kernel_text

CHANNELS_LAST = torch.channels_last


def ids(*shape: int, below: int) -> torch.Tensor:
    return random(*shape, dtype=torch.int64).abs() % below


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def interleave(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


# name: function, arguments, row extents, column extents
VIEWS = {
    "view": (lambda x: x.view(2, 6, 4) * 2, [random(12, 4)], [2, 6, 4], []),
    "reshape that does not factor": (lambda x: x.reshape(8, 6) * 2, [random(12, 4)], [8, 6], []),
    "flatten": (lambda x: x.flatten(1) + 1, [random(3, 4, 5)], [3, 4, 5], []),
    "transpose": (lambda x: x.transpose(1, 2).contiguous() * 2, [random(3, 5, 4)], [3, 4, 5], []),
    "split into heads": (
        lambda x: [t.view(2, 5, 2, 3).transpose(1, 2) * 2 for t in x.chunk(3, -1)],
        [random(2, 5, 18)],
        [2, 2, 5, 3],
        [],
    ),
    "chunk": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], [random(3, 16)], [3, 8], []),
    "slice": (lambda x: x[1:, ::2] * 2, [random(3, 6)], [2, 3], []),
    "flip": (lambda x: x.flip(0, 1) * 2, [random(3, 5)], [3, 5], []),
    "roll": (lambda x: x.roll((2, 1), (0, 1)) * 2, [random(3, 4)], [3, 4], []),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5) * 2, [random(3, 4)], [4, 7], []),
    "cut": (lambda x: F.pad(x, (-1, 2)) * 2, [random(3, 4)], [3, 5], []),
    "repeat": (lambda x: x.repeat(2, 3) * 2, [random(3, 4)], [2, 3, 3, 4], []),
    "expand": (
        lambda x, b: x * b[:, None].expand(3, 5, 4),
        [random(3, 5, 4), random(3, 4)],
        [3, 5, 4],
        [],
    ),
    "outer product": (lambda x, y: x[:, None] * y, [random(4), random(6)], [4, 6], []),
    "cat": (lambda x, y: torch.cat((x, y), 0) * 2, [random(3, 5), random(2, 5)], [5, 5], []),
    "cat of three": (
        lambda x, y: torch.cat((x, y, x), 1) * 2,
        [random(3, 5), random(3, 2)],
        [3, 12],
        [],
    ),
    "stack": (lambda x, y: torch.stack((x, y), 1) * 2, [random(3, 5)] * 2, [3, 2, 5], []),
    "rotary, halves": (
        lambda x, c, s: x * c + rotate_half(x) * s,
        [random(2, 3, 4, 8), random(4, 8), random(4, 8, seed=3)],
        [2, 3, 4, 8],
        [],
    ),
    "rotary, pairs": (
        interleave,
        [random(2, 3, 4, 8), random(4, 4), random(4, 4, seed=3)],
        [2, 3, 4, 4, 2],
        [],
    ),
    "channels last": (
        lambda x: F.relu(x) + 1,
        [random(2, 3, 4, 5).to(memory_format=CHANNELS_LAST)],
        [2, 3, 4, 5],
        [],
    ),
    "channels last with contiguous": (
        lambda x, y: x * 2 + y,
        [random(2, 3, 4, 5).to(memory_format=CHANNELS_LAST), random(2, 3, 4, 5)],
        [2, 3, 4, 5],
        [],
    ),
    "strided input": (lambda x: x * 2 + 1, [random(8, 8)[::2, 1::3]], [4, 3], []),
    "expanded input": (lambda x: x * 2 + 1, [random(1, 8).expand(5, 8)], [5, 8], []),
    "overlapping input": (lambda x: x * 2, [random(10).as_strided((4, 4), (2, 1))], [4, 4], []),
    "size one": (lambda x: x.sum(1, keepdim=True) * 2, [random(3, 1, 4)], [3, 4], []),
    "no dimension": (lambda x: x * 2 + 1, [torch.tensor(3.0)], [], []),
    "embedding": (
        lambda t, i: F.embedding(i, t) * 2,
        [random(7, 4), ids(2, 3, below=7)],
        [2, 3, 4],
        [],
    ),
    "norm of an embedding": (
        lambda t, i: F.layer_norm(F.embedding(i, t), (4,)),
        [random(7, 4), ids(2, 3, below=7)],
        [2, 3],
        [4],
    ),
    "negative indices": (
        lambda t, i: t[:, i] * 2,
        [random(3, 7, 4), ids(2, 3, below=7) - 3],
        [3, 2, 3, 4],
        [],
    ),
    "gather": (lambda x, i: x.gather(1, i) * 2, [random(3, 7), ids(3, 2, below=7)], [3, 2], []),
    "gather after a reduction": (
        lambda x, i: F.log_softmax(x, -1).gather(1, i),
        [random(3, 7), ids(3, 1, below=7)],
        [3],
        [7],
    ),
    "causal mask from arange": (
        lambda x: F.softmax(
            x.masked_fill(torch.arange(5)[None] > torch.arange(5)[:, None], -torch.inf), -1
        ),
        [random(2, 5, 5)],
        [2, 5],
        [5],
    ),
    "triangle": (lambda x: x.triu(1) * 2, [random(2, 4, 5)], [2, 4, 5], []),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_an_index(name):
    function, args, rows, columns = VIEWS[name]

    kernel = lowered(function, *args).kernel

    assert [a.extent for a in kernel.rows] == rows
    assert [a.extent for a in kernel.columns] == columns


DYNAMIC = [
    "flatten",
    "transpose",
    "flip",
    "pad",
    "cut",
    "outer product",
    "cat",
    "cat of three",
    "stack",
    "channels last",
    "strided input",
    "overlapping input",
    "embedding",
    "norm of an embedding",
    "negative indices",
    "gather after a reduction",
    "triangle",
]


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_view_of_symbolic_sizes_is_an_index(name):
    function, args, *_ = VIEWS[name]

    made = lowered(function, *args, dynamic=True)

    assert made.sizes


def divides(name: str) -> bool:
    kernel = lowered(*VIEWS[name][:1], *VIEWS[name][1]).kernel
    atoms = [atom for index in all_indices(kernel) for atom, _ in index.terms]
    return any(isinstance(a, (Quotient, Remainder)) for a in atoms)


def test_an_index_divides_only_where_a_view_does_not_factor():
    assert [name for name in VIEWS if divides(name)] == ["reshape that does not factor"]


def test_an_axis_that_views_regroup_is_split():
    def both(x):
        h = x.view(4, 6) + 1
        return h, h.view(4, 2, 3).transpose(1, 2) * 2

    kernel = lowered(both, random(24)).kernel

    assert sorted(a.extent for a in kernel.rows) == [2, 3, 4]


def test_a_tensor_read_twice_at_one_place_is_loaded_once():
    kernel = lowered(lambda x: torch.exp(x) * x + x.view(2, 12).view(4, 6), random(4, 6)).kernel

    assert len(list(kernel.loads())) == 1


def test_pieces_of_a_concatenation_are_loaded_under_their_guard():
    made = lowered(lambda x, y: torch.cat((x, y), 1) * 2, random(3, 5), random(3, 2))

    text = kernel_text(made.kernel)

    assert [len(load.guard) for load in made.kernel.loads()] == [1, 1]
    assert text.count(" where %") == 2 + 1  # both loads and the choice between them
    assert made.kernel.stores[0].guard == ()


def test_a_slice_of_one_piece_of_a_concatenation_needs_no_guard():
    def second(x, y):
        return torch.cat((x, y), 1)[:, 5:] * 2

    kernel = lowered(second, random(3, 5), random(3, 2)).kernel

    assert [(load.param, load.guard) for load in kernel.loads()] == [(1, ())]


def test_a_constant_is_no_input():
    def shifted(x):
        return x + torch.arange(6).float() * 0.5 + torch.ones(4, 6)

    made = lowered(shifted, random(4, 6))

    assert len(made.kernel.inputs) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_values_are_computed_wide_and_stored_in_their_dtype(dtype):
    made = lowered(lambda x: torch.cat((x * x, x[:, :2] + 3), 1), random(4, 6, dtype=dtype))
    wide = torch.float32 if dtype.itemsize == 2 else dtype

    assert made.kernel.outputs[0].dtype == dtype
    assert {v.dtype for v in made.kernel.values() if type(v).__name__ == "Apply"} <= {
        wide,
        torch.bool,
    }
