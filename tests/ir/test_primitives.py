"""Each primitive: what its declaration says, and its Triton spelling against its meaning."""

from __future__ import annotations

import math

import pytest
import torch

from fuseopt.codegen.generate import generate
from fuseopt.ir.combine import COMBINES, identity_of, kind_of
from fuseopt.ir.evaluate import evaluate
from fuseopt.ir.index import Axis, Index, axis_index
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.primitives import PRIMITIVES, Primitive
from fuseopt.ir.values import Values
from fuseopt.runtime.interpret import interpret

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, math.inf, -math.inf, math.nan, 3e38, 1e-40]
DTYPES = {
    "f": (torch.float32, torch.float64),
    "i": (torch.int64, torch.int32, torch.int8, torch.uint8),
    "b": (torch.bool,),
}
CASES = [
    pytest.param(p, dtype, id=f"{p.name}-{str(dtype).removeprefix('torch.')}")
    for p in PRIMITIVES.values()
    for kind in p.kinds
    for dtype in DTYPES[kind]
]


def operands(primitive: Primitive, dtype: torch.dtype) -> list[torch.Tensor]:
    """One vector for each operand; of two, every pair of special values occurs."""
    kind = kind_of(dtype)
    generator = torch.Generator().manual_seed(1)
    if kind == "b":
        pool = torch.tensor([True, False])
    elif kind == "i":
        limits = torch.iinfo(dtype)
        pool = torch.tensor([0, 1, 2, 3, 7, 100, limits.max, limits.min, limits.min + 1])
        pool = pool.to(dtype)
        if primitive.name in ("trunc_div", "rem", "shift_left", "shift_right"):
            pool = torch.tensor([1, 2, 3, 5], dtype=dtype)
    else:
        low, high = primitive.domain
        pool = torch.rand(40, generator=generator, dtype=dtype) * (high - low) + low
        pool = torch.cat([pool, torch.tensor(SPECIAL, dtype=dtype)])
    wanted = primitive.arity - (primitive.name == "where")
    grids = torch.meshgrid(*[pool] * wanted, indexing="ij")
    found = [g.flatten() for g in grids]
    if primitive.name == "where":
        found.insert(0, torch.rand(found[0].shape, generator=generator) > 0.5)
    return found


def kernel_of(primitive: Primitive, given: list[torch.Tensor]) -> LoopKernel:
    """out[i] = primitive(in0[i], in1[i], ...)."""
    make = Values()
    axis = Axis("x", given[0].numel())
    at = axis_index(axis)
    value = make.apply(primitive.name, *(make.load(n, t.dtype, at) for n, t in enumerate(given)))
    inputs = tuple(TensorParam(t.dtype, (t.numel(),), (1,)) for t in given)
    output = TensorParam(value.dtype, (axis.extent,), (1,))
    return LoopKernel((axis,), (), inputs, (output,), (Store(0, at, value),))


def assert_same(got: torch.Tensor, want: torch.Tensor, exact: bool) -> None:
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2e-6, "atol": 1e-30}
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    if exact and got.dtype.is_floating_point:
        numbers = ~want.isnan()
        assert torch.equal(got.signbit()[numbers], want.signbit()[numbers]), "sign of a zero"


@pytest.mark.parametrize(("primitive", "dtype"), CASES)
def test_spelling_means_what_the_function_means(primitive, dtype, store):
    given = operands(primitive, dtype)
    want = primitive.function(*given)
    kernel = kernel_of(primitive, given)

    (evaluated,) = evaluate(kernel, given)
    printed = torch.empty_like(want)
    candidate = generate(kernel, "one", interpreted=True)[0]
    interpret(candidate.source, (candidate.grid({}),), [*given, printed], store)

    assert want.dtype == (torch.bool if primitive.gives_bool else dtype)
    assert_same(evaluated, want, exact=True)
    assert_same(printed, want, exact=primitive.kinds != "f" or primitive.name == "div")


@pytest.mark.parametrize("name", [p.name for p in PRIMITIVES.values() if p.commutative])
def test_commutative_operands_may_be_exchanged(name):
    primitive = PRIMITIVES[name]
    for kind in primitive.kinds:
        a, b = operands(primitive, DTYPES[kind][0])
        assert_same(primitive.function(a, b), primitive.function(b, a), exact=False)


@pytest.mark.parametrize(
    ("combine", "dtype"),
    [(c.name, dtype) for c in COMBINES.values() for kind in c.identity for dtype in DTYPES[kind]],
)
def test_the_identity_of_a_reduction_changes_nothing(combine, dtype):
    pool = operands(PRIMITIVES["eq"], dtype)[0]
    identity = torch.full_like(pool, identity_of(combine, dtype))

    both = COMBINES[combine].function(torch.stack([pool, identity]), (0,))[0]

    same = both.to(dtype)
    torch.testing.assert_close(same, pool, equal_nan=True, rtol=0, atol=0)


def test_every_primitive_of_floats_compiles(store):
    """That NVIDIA's library has the functions that spellings name: one kernel calls them all."""
    from fuseopt.runtime.compile import Target, compile_kernel

    make = Values()
    at = axis_index(Axis("x", 1024))
    x = make.load(0, torch.float32, at)
    total = x
    for primitive in PRIMITIVES.values():
        if "f" not in primitive.kinds:
            continue
        args = [x] * primitive.arity
        if primitive.name == "where":
            args[0] = make.apply("lt", x, total)
        value = make.convert(make.apply(primitive.name, *args), torch.float32)
        total = make.apply("add", total, value)
    param = TensorParam(torch.float32, (1024,), (1,))
    kernel = LoopKernel((next(iter(at.axes)),), (), (param,), (param,), (Store(0, at, total),))
    source = generate(kernel, "all_primitives")[0].source

    binary = compile_kernel(source, Target.parse("sm_90"), store)

    assert "libdevice" in source.text
    assert binary.cubin


def test_a_constant_store_needs_no_input(store):
    make = Values()
    param = TensorParam(torch.float32, (1,), (1,))
    kernel = LoopKernel((), (), (), (param,), (Store(0, Index(), make.number(2.5, torch.float32)),))
    out = torch.zeros(1)
    candidate = generate(kernel, "constant", interpreted=True)[0]

    interpret(candidate.source, (candidate.grid({}),), [out], store)

    assert out.item() == evaluate(kernel, [])[0].item() == 2.5
