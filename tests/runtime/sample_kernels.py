"""Kernel sources that several tests of the runtime use."""

from __future__ import annotations

from fuseopt.codegen.source import KernelSource, Param

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"

WELFORD = """
@triton.jit
def merge(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    ratio = tl.where(n == 0.0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


"""
NAN_MAX = """
@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


"""


def pointers(**dtypes: str) -> tuple[Param, ...]:
    return tuple(Param(name, "pointer", dtype) for name, dtype in dtypes.items())


def kernel(
    name: str,
    body: str,
    params: tuple[Param, ...],
    block: int = 128,
    before: str = "",
    debug: bool = False,
    warps: int = 4,
) -> KernelSource:
    """A kernel of one constexpr, BLOCK, in whose body `i` is the flat index of the program."""
    arguments = ", ".join(p.name for p in params)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    head, _, decorator = HEAD.rpartition("\n\n\n")
    text = (
        f"{head}\n\n{before}{decorator}def {name}({arguments}, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n" + lines
    )
    constants = (("BLOCK", block),)
    return KernelSource(name, text, params, constants, num_warps=warps, debug=debug)


def unary_kernel(expression: str, source: str = "fp32", target: str = "fp32", **options: object):
    """out[i] = expression of x, for i < n; x is loaded as it is."""
    body = f"x = tl.load(x_ptr + i, mask=i < n)\ntl.store(out_ptr + i, {expression}, mask=i < n)"
    params = (*pointers(x_ptr=source, out_ptr=target), Param("n", "int", "i32"))
    return kernel("unary", body, params, **options)


def norm_kernel(block: int, aligned: bool = True, warps: int = 4) -> KernelSource:
    """Row-wise layer norm of bfloat16, one row of `block` elements a program."""
    body = """
row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
x = tl.load(x_ptr + row).to(tl.float32)
mean = tl.sum(x, 0) / BLOCK
centred = x - mean
rstd = tl.rsqrt(tl.sum(centred * centred, 0) / BLOCK + 1e-5)
weight = tl.load(w_ptr + tl.arange(0, BLOCK)).to(tl.float32)
tl.store(out_ptr + row, (centred * rstd * weight).to(tl.bfloat16))
"""
    params = tuple(Param(n, "pointer", "bf16", aligned) for n in ("x_ptr", "w_ptr", "out_ptr"))
    return kernel("norm", body, params, block, warps=warps)


def spilling_kernel() -> KernelSource:
    """A row far too long for the registers of one warp."""
    return norm_kernel(16384, warps=1)


def scalars_kernel() -> KernelSource:
    """One parameter of each plain kind; out[:BLOCK] = a + b + c + d + flag in float64."""
    body = """
v = a.to(tl.float64) + b.to(tl.float64) + c.to(tl.float64) + d + flag.to(tl.float64)
tl.store(out + i, v + tl.zeros([BLOCK], tl.float64))
"""
    params = (
        Param("out", "pointer", "fp64"),
        Param("a", "int", "i32"),
        Param("b", "int", "i64"),
        Param("c", "float", "fp32"),
        Param("d", "float", "fp64"),
        Param("flag", "int", "i1"),
    )
    return kernel("scalars", body, params, block=8, warps=1)


def wide_kernel(count: int, warps: int = 4) -> KernelSource:
    """p0[:n] = the sum of the other pointers' first n elements, all float32."""
    names = [f"p{k}" for k in range(count)]
    loads = " + ".join(f"tl.load({n} + i, mask=i < n)" for n in names[1:])
    params = (*pointers(**dict.fromkeys(names, "fp32")), Param("n", "int", "i32"))
    return kernel("wide", f"tl.store(p0 + i, {loads}, mask=i < n)", params, warps=warps)
