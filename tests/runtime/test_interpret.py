from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from sample_kernels import (
    HEAD,
    NAN_MAX,
    WELFORD,
    kernel,
    norm_kernel,
    pointers,
    scalars_kernel,
    unary_kernel,
    wide_kernel,
)

from fuseopt.codegen.source import KernelSource, Param
from fuseopt.errors import KernelError
from fuseopt.runtime.compile import Target, compile_kernel
from fuseopt.runtime.interpret import interpret

SM90 = Target.parse("sm_90")
N = 300  # neither a power of two nor a multiple of the block


def values(dtype: torch.dtype = torch.float32, count: int = N) -> torch.Tensor:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0)) * 3
    return x.abs().to(dtype) if dtype == torch.bool else x.to(dtype)


def run_unary(store, expression: str, x: torch.Tensor, source: str, target: str, out: torch.dtype):
    result = torch.zeros(len(x), dtype=out)
    program = unary_kernel(expression, source, target)
    interpret(program, (math.ceil(len(x) / 128),), (x, result, len(x)), store)
    return result


@pytest.mark.parametrize(
    ("expression", "truth"),
    [
        ("tl.exp(x)", torch.exp),
        ("tl.exp2(x)", torch.exp2),
        ("tl.log(x * x)", lambda x: torch.log(x * x)),
        ("tl.erf(x)", torch.erf),
        ("tl.rsqrt(x * x)", lambda x: torch.rsqrt(x * x)),
        ("tl.sqrt(tl.abs(x))", lambda x: x.abs().sqrt()),
        ("tl.sqrt_rn(x * x)", lambda x: (x * x).sqrt()),
        ("tl.div_rn(x, 3.0)", lambda x: x / 3),
        ("tl.sigmoid(x)", torch.sigmoid),
        ("tl.floor(x) + tl.ceil(x)", lambda x: x.floor() + x.ceil()),
        ("tl.sin(x) + tl.cos(x)", lambda x: x.sin() + x.cos()),
        ("tl.where(x > 0.0, x, 0.25 * x)", lambda x: torch.where(x > 0, x, x / 4)),
        ("tl.minimum(tl.maximum(x, -1.0), 1.0)", lambda x: x.clamp(-1, 1)),
        ("tl.clamp(x, -1.0, 1.0)", lambda x: x.clamp(-1, 1)),
        ("tl.fma(x, x, 1.0)", lambda x: x * x + 1),
        ("-x", torch.neg),
    ],
)
def test_float_functions_agree_with_torch(store, expression, truth):
    x = values()
    result = run_unary(store, expression, x, "fp32", "fp32", torch.float32)
    torch.testing.assert_close(result, truth(x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp64", torch.float64),
        ("fp32", torch.float32),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("i64", torch.int64),
        ("i32", torch.int32),
        ("i16", torch.int16),
        ("i8", torch.int8),
        ("u8", torch.uint8),
        ("i1", torch.bool),
    ],
)
def test_every_element_type_is_loaded_cast_and_stored(store, name, dtype):
    x = values(dtype)
    result = run_unary(store, "x.to(tl.float32) * 0.5", x, name, "fp32", torch.float32)
    torch.testing.assert_close(result, x.float() * 0.5, rtol=0, atol=0)
    y = values()
    if dtype == torch.uint8:
        y = y.abs()
    kind = {"u8": "tl.uint8", "i1": "tl.int1"}.get(name) or f"tl.{str(dtype)[6:]}"
    result = run_unary(store, f"x.to({kind})", y, "fp32", name, dtype)
    torch.testing.assert_close(result, y.to(dtype), rtol=0, atol=0)


def all_halves() -> torch.Tensor:
    """Every float32 whose low half is 0, 0x7fff, 0x8000, 0x8001 or 0xffff."""
    high = torch.arange(0, 1 << 16, dtype=torch.int64) << 16
    low = torch.tensor([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (high[:, None] | low).reshape(-1)
    return (bits - (bits >> 31 << 32)).to(torch.int32).view(torch.float32)


def test_bfloat16_is_rounded_to_nearest_even(store):
    x = all_halves()
    out = torch.zeros(len(x), dtype=torch.bfloat16)
    source = unary_kernel("x.to(tl.bfloat16)", "fp32", "bf16", block=1 << 19)
    interpret(source, (1,), (x, out, len(x)), store)
    truth = x.to(torch.bfloat16)
    known = ~truth.isnan()
    assert torch.equal(out[known].view(torch.int16), truth[known].view(torch.int16))
    assert bool(out[~known].isnan().all())


def test_bfloat16_arithmetic_rounds_each_result(store):
    x = values(torch.bfloat16)
    result = run_unary(store, "(x * x + x) / (x - 0.3)", x, "bf16", "bf16", torch.bfloat16)
    third = torch.tensor(0.3, dtype=torch.bfloat16)
    assert torch.equal(result, (x * x + x) / (x - third))
    larger = run_unary(store, "x > -x", x, "bf16", "i1", torch.bool)
    assert torch.equal(larger, x > 0)


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "largest"),
    [
        ("fp8e4nv", "tl.float8e4nv", torch.float8_e4m3fn, 448.0),
        ("fp8e5", "tl.float8e5", torch.float8_e5m2, 57344.0),
    ],
)
def test_8_bit_floats_round_to_nearest_even_and_saturate(store, name, kind, dtype, largest):
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    back = run_unary(store, "x.to(tl.float32)", codes, name, "fp32", torch.float32)
    torch.testing.assert_close(back, codes.float(), rtol=0, atol=0, equal_nan=True)

    exact = codes.float()[codes.float().isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    noise = values(count=500).exp() * torch.tensor([1.0, -1e-3]).repeat(250)
    edges = torch.tensor([1e6, -1e6, math.inf, -math.inf, math.nan, 0.0, -0.0])
    x = torch.cat([exact, middles, noise, edges])
    result = run_unary(store, f"x.to({kind})", x, "fp32", name, dtype)
    truth = x.clamp(-largest, largest).to(dtype)
    known = ~truth.float().isnan()
    assert torch.equal(result[known].view(torch.uint8), truth[known].view(torch.uint8))
    assert bool(result[~known].float().isnan().all())


def test_int64_arithmetic_does_not_pass_through_smaller_types(store):
    x = torch.tensor([0, 5, -7, (1 << 40) + 3, -(1 << 62)])
    result = run_unary(store, "x // 3 * 5 + x % 3 - (x << 1) + (x >> 2)", x, "i64", "i64", x.dtype)
    # Division truncates, as it does on the device.
    quotient = torch.div(x, 3, rounding_mode="trunc")
    assert torch.equal(result, quotient * 5 + (x - quotient * 3) - (x << 1) + (x >> 2))


def test_truth_values_are_loaded_combined_and_stored(store):
    x = torch.tensor([True, False, True, False])
    y = torch.tensor([True, True, False, False])
    body = """
x = tl.load(x_ptr + i, mask=i < 4, other=0)
y = tl.load(y_ptr + i, mask=i < 4, other=0)
tl.store(and_ptr + i, x & y, mask=i < 4)
tl.store(not_ptr + i, x == 0, mask=i < 4)
tl.store(pick_ptr + i, tl.where(x, 1.5, -1.5), mask=i < 4)
"""
    params = pointers(x_ptr="i1", y_ptr="i1", and_ptr="i1", not_ptr="i1", pick_ptr="fp32")
    both, inverse, pick = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(4)
    interpret(kernel("truth", body, params), (1,), (x, y, both, inverse, pick), store)
    assert torch.equal(both, x & y)
    assert torch.equal(inverse, ~x)
    assert torch.equal(pick, torch.where(x, 1.5, -1.5))


def test_a_norm_agrees_with_torch(store):
    x, w = torch.randn(3, 256).bfloat16(), torch.randn(256).bfloat16()
    out = torch.zeros_like(x)
    interpret(norm_kernel(256), (3,), (x, w, out), store)
    truth = torch.nn.functional.layer_norm(x.float(), (256,), w.float())
    torch.testing.assert_close(out.float(), truth, rtol=1e-2, atol=1e-2)


REDUCTIONS = """
x = tl.load(x_ptr + i[:, None] * 16 + tl.arange(0, 16)[None, :])
j = tl.arange(0, 16)
tl.store(out_ptr + i, tl.sum(x, 1))
tl.store(out_ptr + 8 + i, tl.max(x, axis=1))
tl.store(out_ptr + 16 + i, tl.min(x, axis=1))
tl.store(out_ptr + 24 + i, tl.sum(tl.max(x, 0, keep_dims=True), 1))
tl.store(out_ptr + 32 + i, tl.sum(tl.reduce(x, 1, largest, keep_dims=True), 1))
tl.store(out_ptr + 40 + i, tl.argmax(x, 1).to(tl.float32))
tl.store(out_ptr + 48 + i, x.sum(0, keep_dims=True).sum())
tl.store(out_ptr + 56 + i, tl.sum((x > 0.0).to(tl.int1), 1).to(tl.float32))
tl.store(out_ptr + 64 + i, tl.sum(x))
"""


def test_reductions_agree_with_torch(store):
    x, out = torch.randn(8, 16), torch.zeros(9, 8)
    source = kernel("reductions", REDUCTIONS, pointers(x_ptr="fp32", out_ptr="fp32"), 8, NAN_MAX)
    interpret(source, (1,), (x, out), store)
    truth = torch.stack(
        [
            x.sum(1),
            x.amax(1),
            x.amin(1),
            x.amax(0).sum().expand(8),
            x.amax(1),
            x.argmax(1).float(),
            x.sum().expand(8),
            (x > 0).sum(1).float(),
            x.sum().expand(8),
        ]
    )
    torch.testing.assert_close(out, truth, rtol=1e-5, atol=1e-5)


def test_nan_is_dropped_or_propagated_as_on_the_device(store):
    x, out = torch.randn(8, 16), torch.zeros(9, 8)
    x[3, 5] = math.nan
    source = kernel("reductions", REDUCTIONS, pointers(x_ptr="fp32", out_ptr="fp32"), 8, NAN_MAX)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interpret(source, (1,), (x, out), store)
    assert out[1].isnan().sum() == 0
    assert out[4].isnan().tolist() == [row == 3 for row in range(8)]
    assert out[1, 3] == x[3][~x[3].isnan()].max()
    body = "x = tl.load(x_ptr + i)\ntl.store(out_ptr + i, tl.maximum(x, 0.0))"
    body += "\ntl.store(out_ptr + BLOCK + i, tl.maximum(x, 0.0, tl.PropagateNan.ALL))"
    source = kernel("relu", body, pointers(x_ptr="fp32", out_ptr="fp32"), 2)
    pair, results = torch.tensor([math.nan, -1.0]), torch.ones(4)
    interpret(source, (1,), (pair, results), store)
    torch.testing.assert_close(results, torch.tensor([0, 0, math.nan, 0]), equal_nan=True)


def test_a_reduction_of_tuples_is_welfords(store):
    body = """
row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
x = tl.load(x_ptr + row, mask=tl.arange(0, BLOCK) < n, other=0.0)
ones = tl.where(tl.arange(0, BLOCK) < n, 1.0, 0.0)
mean, m2, count = tl.reduce((x, tl.zeros_like(x), ones), 0, merge)
tl.store(out_ptr + tl.program_id(0) * 2, mean)
tl.store(out_ptr + tl.program_id(0) * 2 + 1, m2 / count)
"""
    params = (*pointers(x_ptr="fp32", out_ptr="fp32"), Param("n", "int", "i32"))
    x, out = torch.randn(4, 1024) + 100, torch.zeros(4, 2)
    interpret(kernel("welford", body, params, 1024, WELFORD), (4,), (x, out, 1000), store)
    truth = torch.stack([x[:, :1000].mean(1), x[:, :1000].var(1, correction=0)], 1)
    torch.testing.assert_close(out, truth, rtol=1e-4, atol=1e-4)


LOOPS = """
total = tl.zeros([BLOCK], tl.float32)
for start in range(0, n, BLOCK):
    j = start + tl.arange(0, BLOCK)
    total += tl.load(x_ptr + j, mask=j < n, other=0.0, eviction_policy="evict_last")
for start in tl.range(0, size, BLOCK, num_stages=1):
    j = start.to(tl.int64) + tl.arange(0, BLOCK)
    total += tl.load(x_ptr + j, mask=j < n, other=0.0, cache_modifier=".cg")
for k in tl.static_range(2):
    total = total * 2.0 + k
count = 0
for start in range(tl.cdiv(n, BLOCK)):
    count += start
if count > 0:
    total += 1.0
while count > 2:
    count -= 2
tl.store(out_ptr + tl.arange(0, BLOCK), total + count, eviction_policy="evict_first")
"""


def test_loops_run_to_runtime_and_constant_bounds(store):
    params = (
        *pointers(x_ptr="fp32", out_ptr="fp32"),
        Param("n", "int", "i32"),
        Param("size", "int", "i64"),
    )
    x, out = values(), torch.zeros(64)
    interpret(kernel("loops", LOOPS, params, 64), (1,), (x, out, N, N), store)
    padded = torch.nn.functional.pad(x, (0, 320 - N)).reshape(5, 64).sum(0)
    torch.testing.assert_close(out, padded * 8 + 1 + 1 + 2, rtol=1e-5, atol=1e-4)


def test_a_loop_over_int64_bounds_counts_in_int64(store):
    body = """
for k in range(low, low + 2):
    tl.store(out_ptr + (k - low), k * 4)
"""
    params = (*pointers(out_ptr="i64"), Param("low", "int", "i64"))
    out = torch.zeros(2, dtype=torch.int64)
    interpret(kernel("count", body, params), (1,), (out, 1 << 30), store)
    assert out.tolist() == [1 << 32, (1 << 32) + 4]


def test_numbers_have_the_declared_type(store):
    out = torch.zeros(8, dtype=torch.float64)
    interpret(scalars_kernel(), (1,), (out, -5, 7, 0.1, 0.1, True), store)
    single = torch.tensor(0.1, dtype=torch.float32).double().item()
    assert out.tolist() == [-5 + 7 + single + 0.1 + 1] * 8
    body = "tl.store(out_ptr + tl.arange(0, 1), n * (1 << 20) + tl.zeros([1], tl.int64))"
    big = torch.zeros(1, dtype=torch.int64)
    for dtype, expected in (("i64", 1 << 40), ("i32", 0)):
        params = (*pointers(out_ptr="i64"), Param("n", "int", dtype))
        interpret(kernel("product", body, params), (1,), (big, 1 << 20), store)
        assert big.item() == expected


def test_programs_of_a_three_dimensional_grid_are_numbered(store):
    body = """
x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
flat = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
tl.store(out_ptr + flat, x * 100 + y * 10 + z)
"""
    out = torch.zeros(2, 3, 4, dtype=torch.int32)
    interpret(kernel("grid", body, pointers(out_ptr="i32")), (2, 3, 4), (out,), store)
    index = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4))
    assert torch.equal(out.flatten(), (index @ torch.tensor([100, 10, 1])).int())
    before = out.clone()
    interpret(kernel("grid", body, pointers(out_ptr="i32")), (0, 3), (out,), store)
    assert torch.equal(out, before)


def philox(seed: int, offset: int) -> int:
    """The first word of Philox 4x32-10."""
    c, key = [offset, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b, (a >> 32) ^ c[3] ^ key[1], a]
        c = [w & 0xFFFFFFFF for w in c]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def test_random_numbers_are_philox(store):
    body = "tl.store(bits_ptr + i, tl.randint(seed, i))\ntl.store(out_ptr + i, tl.rand(seed, i))"
    params = (*pointers(bits_ptr="i32", out_ptr="fp32"), Param("seed", "int", "i64"))
    bits, out = torch.zeros(16, dtype=torch.int32), torch.zeros(16)
    seed = 0x123456789ABCDEF
    interpret(kernel("random", body, params, 16), (1,), (bits, out, seed), store)
    assert [b & 0xFFFFFFFF for b in bits.tolist()] == [philox(seed, i) for i in range(16)]
    magnitude = torch.where(bits < 0, -bits - 1, bits).double()
    torch.testing.assert_close(out, (magnitude * 4.6566127342e-10).float())


def test_views_of_one_storage_are_written_in_place(store):
    base = torch.zeros(4, 128)
    x = torch.arange(128.0)
    interpret(unary_kernel("x + 1.0"), (1,), (x, base[2], 128), store)
    assert torch.equal(base[2], x + 1)
    assert base[[0, 1, 3]].abs().sum() == 0


def test_a_device_assert_fails_with_its_message_when_debugging(store):
    body = "x = tl.load(x_ptr + i)\ntl.device_assert(x >= 0.0, 'negative')\ntl.store(x_ptr + i, x)"
    source = kernel("checked", body, pointers(x_ptr="fp32"))
    x = torch.ones(256)
    x[200] = -1
    interpret(source, (2,), (x,), store)
    with pytest.raises(KernelError, match=r"program \(1, 0, 0\).*AssertionError: negative"):
        interpret(replace(source, debug=True), (2,), (x,), store)
    interpret(replace(source, debug=True), (1,), (x,), store)


@pytest.mark.parametrize("what", ["load", "store"])
def test_an_access_out_of_bounds_is_an_error(store, what):
    x, out = torch.ones(300), torch.ones(300)
    short = {"load": (x[:100].clone(), out), "store": (x, out[:100].clone())}[what]
    name = {"load": "x_ptr", "store": "out_ptr"}[what]
    pattern = rf"unary fails in program \(0, 0, 0\).*{what} of bytes 0 to 512 of {name}.*400"
    with pytest.raises(KernelError, match=pattern) as caught:
        interpret(unary_kernel("x"), (3,), (*short, 300), store)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(4), torch.ones(4)), "takes 3 arguments"),
        ((torch.ones(4), torch.ones(4).double(), 4), "out_ptr is torch.float64"),
        ((torch.ones(4, device="meta"), torch.ones(4), 4), "x_ptr is on meta"),
        ((torch.ones(4), torch.ones(4), 1 << 31), "n is 2147483648, which i32 does not hold"),
        ((torch.ones(4), torch.ones(4), 4.0), "n must be a whole number, not float"),
        ((3.0, torch.ones(4), 4), "x_ptr must be a tensor or an address, not float"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(store, args, message):
    with pytest.raises(KernelError, match=message):
        interpret(unary_kernel("x"), (1,), args, store)


def test_a_false_claim_of_alignment_is_refused(store):
    x = torch.zeros(3, 256, dtype=torch.bfloat16)
    skewed = torch.zeros(257, dtype=torch.bfloat16)[1:]
    with pytest.raises(KernelError, match="w_ptr starts at an address that is no multiple of 16"):
        interpret(norm_kernel(256), (3,), (x, skewed, x), store)
    source = wide_kernel(2)
    aligned = replace(source, params=(*source.params[:-1], Param("n", "int", "i32", aligned=True)))
    with pytest.raises(KernelError, match="n is 3, but the kernel was compiled for multiples"):
        interpret(aligned, (1,), (torch.ones(4), torch.ones(4), 3), store)


def test_a_kernel_that_is_wrong_is_an_error(store):
    source = KernelSource("bad", HEAD + "def bad(x):\n    tl.store(x, missing)\n", pointers(x="i8"))
    with pytest.raises(KernelError, match=r"NameError: name 'missing' is not defined.*; see /"):
        interpret(source, (1,), (torch.zeros(1, dtype=torch.int8),), store)


def triton_state() -> list[dict[str, object]]:
    import triton.language as tl
    from triton.language import standard
    from triton.runtime import interpreter, jit

    owners = [tl, tl.core, tl.math, tl.random, standard, tl.tensor, tl.dtype, interpreter]
    owners += [jit.JITFunction, interpreter.InterpretedFunction, interpreter.InterpreterBuilder]
    state = [dict(vars(o)) for o in owners]
    rewritten = dict(interpreter.InterpretedFunction.rewritten_fn)
    registry = getattr(jit, "_triton_jit_function_registry", {})
    library = {k: v for k, v in registry.items() if k.startswith("triton.")}
    return [*state, dict(vars(interpreter.interpreter_builder)), rewritten, library]


def test_no_trace_is_left_in_triton(store):
    source = kernel("reductions", REDUCTIONS, pointers(x_ptr="fp32", out_ptr="fp32"), 8, NAN_MAX)
    before = triton_state()
    interpret(source, (1,), (torch.randn(8, 16), torch.zeros(9, 8)), store)
    assert triton_state() == before
    with pytest.raises(KernelError):
        interpret(unary_kernel("x + missing"), (1,), (torch.ones(4), torch.ones(4), 4), store)
    assert triton_state() == before


def test_compiling_and_interpreting_one_kernel_take_turns(store):
    source = kernel("turns", REDUCTIONS, pointers(x_ptr="fp32", out_ptr="fp32"), 8, NAN_MAX)
    x, out = torch.randn(8, 16), torch.zeros(9, 8)
    interpret(source, (1,), (x, out), store)
    assert compile_kernel(source, SM90, store).cubin
    out.zero_()
    interpret(source, (1,), (x, out), store)
    torch.testing.assert_close(out[1], x.amax(1))
    assert compile_kernel(source, Target.parse("sm_80"), store).cubin


def test_threads_may_compile_and_interpret_at_once(store):
    x = torch.ones(512)

    def work(number: int) -> None:
        source = unary_kernel(f"tl.sigmoid(x) + {number + 1000}.0")
        if number % 2:
            assert compile_kernel(source, SM90, store).cubin
        else:
            out = torch.zeros(512)
            interpret(source, (4,), (x, out, 512), store)
            torch.testing.assert_close(out, x.sigmoid() + number + 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))


UNDER_THE_SWITCH = """
import sys
import torch
sys.path.insert(0, sys.argv[2])
from sample_kernels import norm_kernel, kernel, pointers, WELFORD
from test_interpret import REDUCTIONS, NAN_MAX
from fuseopt.runtime.cache import Store
from fuseopt.runtime.interpret import interpret
x, out = torch.randn(8, 16), torch.zeros(9, 8)
source = kernel("reductions", REDUCTIONS, pointers(x_ptr="fp32", out_ptr="fp32"), 8, NAN_MAX)
for _ in range(2):
    interpret(source, (1,), (x, out), Store(sys.argv[1]))
    torch.testing.assert_close(out[0], x.sum(1))
    torch.testing.assert_close(out[4], x.amax(1))
    out.zero_()
"""


def test_tritons_own_switch_does_not_matter(tmp_path):
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    arguments = [str(tmp_path), os.path.dirname(__file__)]
    command = [sys.executable, "-W", "error", "-c", UNDER_THE_SWITCH, *arguments]
    subprocess.run(command, check=True, env=environment)
