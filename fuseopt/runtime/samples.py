"""Tensors to try a kernel on: random, of the layouts it was built for, indices in range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fuseopt.errors import KernelError
from fuseopt.ir import dims
from fuseopt.ir.combine import kind_of
from fuseopt.ir.evaluate import evaluate_values
from fuseopt.ir.index import Index, Indirect, Quotient, Remainder
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.ir.memory import memory_of
from fuseopt.ir.values import Apply, Convert, Coordinate, Load, Value, walk

TABLE_ROWS = 1024


def index_limits(kernel: LoopKernel) -> dict[int, Any]:
    """Return, for each input whose elements are used as indices, the size they must stay below."""
    limits: dict[int, Any] = {}
    for atom in _all_indirect(kernel):
        for load in (v for v in walk([atom.value]) if isinstance(v, Load)):
            known = limits.get(load.param)
            smaller = (
                known is None
                or not isinstance(known, int)
                or (isinstance(atom.extent, int) and atom.extent < known)
            )
            if smaller and kind_of(load.dtype) == "i":
                limits[load.param] = atom.extent
    return limits


def steering_inputs(kernel: LoopKernel) -> frozenset[int]:
    """Return the inputs that decide which elements of others a kernel reads."""
    read = walk([atom.value for atom in _all_indirect(kernel)])
    return frozenset(v.param for v in read if isinstance(v, Load))


def divisors(kernel: LoopKernel) -> frozenset[int]:
    """Return the integer inputs that others are divided by: a zero there has no result."""
    divided = [
        v.args[1]
        for v in kernel.values()
        if isinstance(v, Apply) and v.primitive in ("trunc_div", "rem")
    ]
    return frozenset(v.param for v in walk(divided) if isinstance(v, Load))


def _all_indirect(kernel: LoopKernel) -> list[Indirect]:
    indices = [v.index for v in kernel.values() if isinstance(v, (Load, Coordinate))]
    return [atom for index in indices for atom in _indirect(index)]


def _indirect(index: Index) -> list[Indirect]:
    found: list[Indirect] = []
    for atom, _ in index.terms:
        if isinstance(atom, Indirect):
            found.append(atom)
        elif isinstance(atom, (Quotient, Remainder)):
            found.extend(_indirect(atom.index))
    return found


def draw_inputs(
    kernel: LoopKernel,
    device: torch.device,
    sizes: Mapping[Any, int],
    generator: torch.Generator,
) -> list[torch.Tensor]:
    """Return one random tensor per input of the kernel, with its shape, strides and dtype.

    Floats are normally distributed, integers small (indices: within their table), bools even. On
    the CPU, where only part of a kernel is run, a table has at most `TABLE_ROWS` rows.
    """
    known = dict(sizes)
    read = {load.param for load in kernel.loads()}
    limits = {number: dims.hint(n, known) for number, n in index_limits(kernel).items()}
    divided_by = divisors(kernel)
    tables = _tables(kernel) if device.type == "cpu" else frozenset()
    longest = TABLE_ROWS if tables else max(limits.values(), default=8)
    for low, high in _ranges(longest):
        found = []
        for number, param in enumerate(kernel.inputs):
            if number in tables:
                param = replace(param, shape=(TABLE_ROWS, *param.shape[1:]))
            # What no load reads is an index into a table of one row.
            unlimited = 8 if number in read else 1
            below = min(limits[number], high) if number in limits else unlimited
            least = min(low, below - 1) if number in limits else int(number in divided_by)
            found.append(draw(param, device, sizes, generator, below, least))
        if _are_inside(kernel, found, known, cut=bool(tables)):
            return found
    raise KernelError("no indices were found with which the kernel stays inside its tables")


def largest_drawn(kernel: LoopKernel, device: torch.device, sizes: Mapping[Any, int]) -> int:
    """Return the most elements that a tensor has of a kernel's outputs and inputs as drawn here."""
    known = dict(sizes)
    tables = _tables(kernel) if device.type == "cpu" else frozenset()
    drawn = [
        replace(p, shape=(TABLE_ROWS, *p.shape[1:])) if number in tables else p
        for number, p in enumerate(kernel.inputs)
    ]
    return max(dims.hint(p.distinct, known) for p in (*drawn, *kernel.outputs))


def _ranges(high: int) -> Iterator[tuple[int, int]]:
    """Ranges to draw indices from: kernels may compute with them before they read a table."""
    while high > 0:
        yield 0, high
        yield high // 2, high
        high //= 4


def _are_inside(
    kernel: LoopKernel, inputs: Sequence[torch.Tensor], sizes: dict[Any, int], *, cut: bool
) -> bool:
    """Whether indices that a kernel computes lie inside their tables, which may be cut short."""
    computed = [a for a in _all_indirect(kernel) if not _is_read(a.value)]
    if not computed:
        return True
    values = [a.value for a in computed]
    read = {v.param for v in walk(values) if isinstance(v, Load)}
    held = [_on_cpu(t) if number in read else t for number, t in enumerate(inputs)]
    found = evaluate_values(kernel, held, values, sizes)
    extents = [dims.hint(a.extent, sizes) for a in computed]
    if cut:
        extents = [min(n, TABLE_ROWS) for n in extents]
    pairs = zip(found, extents, strict=True)
    return all(bool(((places >= 0) & (places < extent)).all()) for places, extent in pairs)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory on the CPU, laid out as it is."""
    return memory_of(tensor).cpu().as_strided(tensor.shape, tensor.stride())


def _is_read(value: Value) -> bool:
    return isinstance(value.arg if isinstance(value, Convert) else value, Load)


def _tables(kernel: LoopKernel) -> frozenset[int]:
    """The long inputs of which a kernel reads nothing but rows at indices from memory."""
    reads: dict[int, list[Load]] = {}
    for load in kernel.loads():
        reads.setdefault(load.param, []).append(load)
    return frozenset(n for n, loads in reads.items() if _is_table(kernel.inputs[n], loads))


def _is_table(param: TensorParam, loads: Sequence[Load]) -> bool:
    rows = param.shape[0] if param.shape else 0
    if not isinstance(rows, int) or rows <= TABLE_ROWS:
        return False
    by_row = [
        [a for a, c in load.index.terms if isinstance(a, Indirect) and c == param.strides[0]]
        for load in loads
    ]
    return all(len(found) == 1 and found[0].extent == rows for found in by_row)


def draw(
    param: TensorParam,
    device: torch.device,
    sizes: Mapping[Any, int],
    generator: torch.Generator,
    below: int = 8,
    low: int = 0,
) -> torch.Tensor:
    """Return a random tensor of one layout; integers lie in [low, below)."""
    known = dict(sizes)
    shape = [dims.hint(s, known) for s in param.shape]
    strides = [dims.hint(s, known) for s in param.strides]
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    kind = kind_of(param.dtype)
    if kind == "f":
        wide = torch.float64 if param.dtype == torch.float64 else torch.float32
        flat = torch.randn(span, generator=generator, device=device, dtype=wide).to(param.dtype)
    else:
        low, high = (0, 2) if kind == "b" else (low, max(below, 1))
        flat = torch.randint(low, high, (span,), generator=generator, device=device).to(param.dtype)
    return flat.as_strided(shape, strides)
