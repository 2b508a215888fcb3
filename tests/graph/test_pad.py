"""Products with rows of awkward lengths get padded operands, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.graph.pad import pad_products
from fuseopt.ops.alignment import missing

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.linear.default)


def traced(function: Callable[..., Any], *args: Any, whole: bool = False) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) for a in args]
        return make_fx(function, pre_dispatch=whole)(*fakes)


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=dtype)


def rows_of(gm: fx.GraphModule) -> set[Any]:
    """The lengths in memory of rows of what products take and give."""
    found = set()
    for node in gm.graph.nodes:
        if node.target in PRODUCTS:
            for n in (node, *node.all_input_nodes):
                value = n.meta["val"]
                if value.dim() > 1:
                    found.add(max(value.stride()))
    return found


CASES = {
    "columns": (lambda a, b: a @ b, matrix(512, 640), matrix(640, 1001)),
    "columns of a transposed weight": (lambda a, b: a @ b.t(), matrix(512, 640), matrix(5001, 640)),
    "inner size": (lambda a, b: a @ b, matrix(512, 1001), matrix(1001, 512)),
    "inner size, both transposed": (lambda a, b: a @ b.t(), matrix(512, 1001), matrix(512, 1001)),
    "rows of a transposed operand": (lambda a, b: a.t() @ b, matrix(512, 1001), matrix(512, 640)),
    "bias": (lambda a, b: torch.addmm(b[0], a, b), matrix(512, 640), matrix(640, 1001)),
    "everything": (lambda a, b: a.t() @ b.t(), matrix(1001, 1003), matrix(1005, 1001)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_padded_product_gives_the_same_from_aligned_rows(name) -> None:
    function, *args = CASES[name]
    gm = traced(function, *args)
    before = gm.graph.output_node().args[0].meta["val"]
    assert pad_products(gm, lambda _: True) == 1
    gm.graph.lint()
    assert all(length % 8 == 0 for length in rows_of(gm))
    result, wanted = gm(*args), function(*args)
    assert result.stride() == wanted.stride() == before.stride()
    torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_padded_in_both_sizes_of_its_weight(bias) -> None:
    args = [torch.randn(2, 512, 1001).half(), matrix(517, 1001).half()]
    args += [torch.randn(517).half()] if bias else []
    gm = traced(F.linear, *args, whole=True)
    assert pad_products(gm, lambda _: True) == 1
    wanted = F.linear(*args)
    assert gm(*args).stride() == wanted.stride()
    torch.testing.assert_close(gm(*args), wanted)
    assert all(length % 8 == 0 for length in rows_of(gm) - {512 * 1008, 512 * 520})


@pytest.mark.parametrize(
    "args",
    [
        (matrix(512, 640), matrix(640, 1024)),  # aligned
        (matrix(512, 64), matrix(64, 1001)),  # a pass over it takes as long as the product
        (matrix(512, 640, torch.float32), matrix(640, 1001, torch.float32)),
    ],
)
def test_others_stay_as_they_are(args) -> None:
    gm = traced(torch.mm, *args)
    assert pad_products(gm, lambda _: True) == 0


def test_rows_that_no_operand_is_laid_out_along_need_no_padding() -> None:
    gm = traced(torch.mm, matrix(1001, 640), matrix(640, 512))
    assert pad_products(gm, lambda _: True) == 0
    gm = traced(lambda a, b: a.t() @ b, matrix(1001, 640), matrix(1001, 512))
    assert pad_products(gm, lambda _: True) == 0


def test_nothing_is_padded_where_it_does_not_pay() -> None:
    gm = traced(torch.mm, matrix(512, 640), matrix(640, 1001))
    assert pad_products(gm, lambda device: device.type == "cuda") == 0


def test_long_rows_are_whole_cache_lines() -> None:
    assert [missing(n) for n in (8, 1000, 1001, 50257, 50264)] == [0, 0, 7, 47, 0]
