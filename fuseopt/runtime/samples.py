"""Tensors to try a kernel on: random, of the layouts it was built for, indices in range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fuseopt.ir import dims
from fuseopt.ir.combine import kind_of
from fuseopt.ir.index import Index, Indirect, Quotient, Remainder
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.ir.values import Coordinate, Load, walk

TABLE_ROWS = 1024


def index_limits(kernel: LoopKernel) -> dict[int, Any]:
    """Return, for each input whose elements are used as indices, the size they must stay below."""
    limits: dict[int, Any] = {}
    for value in kernel.values():
        index = value.index if isinstance(value, (Load, Coordinate)) else None
        for atom in _indirect(index) if index is not None else ():
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
    limits = index_limits(kernel)
    tables = _tables(kernel) if device.type == "cpu" else frozenset()
    found = []
    for number, param in enumerate(kernel.inputs):
        limit = limits.get(number)
        below = 8 if limit is None else dims.hint(limit, dict(sizes))
        if tables:
            below = min(below, TABLE_ROWS)
        if number in tables:
            param = replace(param, shape=(TABLE_ROWS, *param.shape[1:]))
        found.append(draw(param, device, sizes, generator, below))
    return found


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
) -> torch.Tensor:
    """Return a random tensor of one layout; integers lie in [0, below)."""
    known = dict(sizes)
    shape = [dims.hint(s, known) for s in param.shape]
    strides = [dims.hint(s, known) for s in param.strides]
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    kind = kind_of(param.dtype)
    if kind == "f":
        wide = torch.float64 if param.dtype == torch.float64 else torch.float32
        flat = torch.randn(span, generator=generator, device=device, dtype=wide).to(param.dtype)
    else:
        high = 2 if kind == "b" else max(below, 1)
        flat = torch.randint(0, high, (span,), generator=generator, device=device).to(param.dtype)
    return flat.as_strided(shape, strides)
