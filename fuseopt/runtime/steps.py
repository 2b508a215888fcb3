"""One launch of a kernel that runs in two steps: the second completes what programs added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuseopt.codegen.generate import Candidate
from fuseopt.codegen.source import KernelSource
from fuseopt.runtime.call import Launch


def in_turn(candidate: Candidate, launch_of: Callable[[KernelSource], Launch]) -> Launch:
    """Return a launch of all that a candidate consists of, each step made by `launch_of`."""
    first, last = launch_of(candidate.source), candidate.last
    if last is None:
        return first
    second = launch_of(last.source)
    kernel, symbols, partials = candidate.kernel, candidate.symbols, len(candidate.partials)
    sizes_at = len(kernel.inputs) + len(kernel.outputs)
    scratch_at = sizes_at + len(symbols)
    places = [
        *range(len(kernel.inputs)),
        *range(scratch_at, scratch_at + partials),
        *range(len(kernel.inputs), sizes_at),
        *(sizes_at + symbols.index(s) for s in last.symbols),
    ]
    fixed = None if symbols else last.grid({})

    def launch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        first(x, y, z, stream, *args)
        grid = fixed
        if grid is None:
            grid = last.grid(dict(zip(symbols, args[sizes_at:scratch_at], strict=True)))
        second(grid, 1, 1, stream, *[args[p] for p in places])

    return launch
