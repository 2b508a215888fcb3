"""Checking a region's kernel against the operations it replaces, before it is used.

The kernel runs on inputs of the real shapes. Through the interpreter, which is slow, only the first
programs of the grid run and only what they wrote is judged.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fuseopt.errors import CacheError, KernelError
from fuseopt.events import Verified
from fuseopt.graph.lift import target_name
from fuseopt.graph.unchecked import without_refusals
from fuseopt.ir import dims
from fuseopt.ops.declare import OPS
from fuseopt.runtime.cache import Store
from fuseopt.runtime.call import Built, RegionKernel, stream_of
from fuseopt.runtime.memory import free_memory
from fuseopt.runtime.module import first_line
from fuseopt.runtime.samples import largest_drawn
from fuseopt.verify.compare import Verdict, verified
from fuseopt.verify.inputs import input_sets
from fuseopt.verify.outputs import judge_outputs

INTERPRETED_PROGRAMS = 4
_BY_RUNNING = ("device", "interpreter")
MEMORY = 0.5  # share of the device's free memory that a check may take
TRUTH_COPIES = 6  # float64 tensors of a region's size that a check holds at once, about


def check_region(
    key: str,
    kernel: RegionKernel,
    reference: fx.GraphModule,
    sizes: Mapping[Any, int],
    size_inputs: Sequence[int] = (),
    store: Store | None = None,
) -> Verified:
    """Return the verdict on a kernel.

    reference: the region's own operations, on the kernel's inputs then `size_inputs`.
    sizes: values of the kernel's size symbols to check at. store: where it is kept that a kernel
    passed, of the same text, at the same sizes, on a device of the same name.
    """
    entry = "" if store is None else _entry(key, kernel, sizes)
    if store is not None and entry:
        known = store.read_json("verified", entry)
        if isinstance(known, dict):
            return Verified(key, True, **known)
    verdict = _check(key, kernel, reference, sizes, size_inputs)
    if store is not None and entry and verdict.passed and verdict.how in _BY_RUNNING:
        kept = {"error": verdict.error, "eager_error": verdict.eager_error, "limit": verdict.limit}
        with contextlib.suppress(CacheError):
            how = f"{verdict.how}, in an earlier process"
            store.write_json("verified", entry, {"how": how, **kept})
    return verdict


def _entry(key: str, kernel: RegionKernel, sizes: Mapping[Any, int]) -> str:
    """What a verdict is kept under; "" where there is no kernel to run."""
    try:
        built = kernel.for_sizes([sizes[s] for s in kernel.symbols])
    except KernelError:
        return ""
    device = kernel.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    numbers = sorted((str(s), n) for s, n in sizes.items())
    texts = [s.digest for s in built.candidate.sources]
    whole = repr((key, name, numbers, texts, torch.__version__))
    return f"{key}-{hashlib.sha256(whole.encode()).hexdigest()[:24]}"


def _check(
    key: str,
    kernel: RegionKernel,
    reference: fx.GraphModule,
    sizes: Mapping[Any, int],
    size_inputs: Sequence[int],
) -> Verified:
    how = "device" if kernel.device.type == "cuda" else "interpreter"
    known = dict(sizes)
    unchecked = without_refusals(reference)
    if not _fits(kernel, known):
        return Verified(key, True, "not run: the check would not fit the device's memory")
    worst = Verdict(True)
    name = "no"
    try:
        built = kernel.for_sizes([known[s] for s in kernel.symbols])
        parts = unchecked is not reference
        for name, inputs in input_sets(kernel.kernel, kernel.device, known, parts=parts):
            verdict = _check_once(kernel, built, unchecked, inputs, known, size_inputs)
            if not verdict.passed:
                detail = f"{name} inputs: {verdict.detail}"
                return verified(key, how, verdict, detail)
            worst = max(worst, verdict, key=lambda v: v.error)
    except KernelError as error:
        return Verified(key, False, how, detail=str(error))
    except RuntimeError as error:  # the original's: an op that refuses what was drawn for it
        text = f"the original fails on {name} inputs: {first_line(error)}"
        return Verified(key, False, how, detail=text)
    return verified(key, how, worst)


def _check_once(
    kernel: RegionKernel,
    built: Built,
    reference: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    sizes: dict[Any, int],
    size_inputs: Sequence[int],
) -> Verdict:
    def run() -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        return _run(kernel, built, inputs, sizes)

    loose = any(_is_loose(n) for n in reference.graph.nodes)
    return judge_outputs(run, reference, [*inputs, *size_inputs], loose=loose)


def _run(
    kernel: RegionKernel,
    built: Built,
    inputs: Sequence[torch.Tensor],
    sizes: dict[Any, int],
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Run the kernel; return its outputs and where they were written (None: everywhere)."""
    grid = built.grid(sizes)
    passed = built.passed(sizes)
    partial = kernel.device.type != "cuda" and grid > INTERPRETED_PROGRAMS
    programs = min(grid, INTERPRETED_PROGRAMS) if partial else grid
    runs = []
    for fill in (0, 1) if partial else (None,):
        outputs = [_blank(kernel, n, sizes, fill) for n in range(len(kernel.kernel.outputs))]
        stream = stream_of(kernel.device)
        scratch = _scratch(kernel, built, sizes, fill)
        built.launch(programs, 1, 1, stream, *inputs, *outputs, *passed, *scratch)
        runs.append(outputs)
    if not partial:
        return runs[0], [None] * len(runs[0])
    # An element that is the same whatever the memory held before has been written.
    written: list[torch.Tensor | None] = [
        (a == b) | (a.isnan() & b.isnan()) if a.dtype.is_floating_point else a == b
        for a, b in zip(*runs, strict=True)
    ]
    return runs[0], written


def _scratch(
    kernel: RegionKernel, built: Built, sizes: dict[Any, int], fill: int | None
) -> list[torch.Tensor]:
    """The memory a launch works in; what programs that do not run leave there makes no result."""
    scratch = built.scratch(sizes, kernel.device)
    for sums in scratch if fill is not None else ():
        if sums.dtype.is_floating_point:
            sums.fill_(float("nan") if fill else 0.0)
    return scratch


def _is_loose(node: fx.Node) -> bool:
    declared = OPS.get(target_name(node)) if node.op == "call_function" else None
    return declared is not None and declared.loose


def _blank(kernel: RegionKernel, number: int, sizes: dict[Any, int], fill: int | None) -> Any:
    param = kernel.kernel.outputs[number]
    shape = [dims.hint(s, sizes) for s in param.shape]
    strides = [dims.hint(s, sizes) for s in param.strides]
    tensor = torch.empty_strided(shape, strides, dtype=param.dtype, device=kernel.device)
    if fill is None:
        # Poison: an element that the kernel forgets must not be right by accident.
        return tensor.fill_(float("nan") if param.dtype.is_floating_point else 1)
    return tensor.fill_(fill)


def _fits(kernel: RegionKernel, sizes: dict[Any, int]) -> bool:
    elements = largest_drawn(kernel.kernel, kernel.device, sizes)
    return elements * 8 * TRUTH_COPIES < free_memory(kernel.device) * MEMORY
