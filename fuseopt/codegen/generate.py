"""From a loop kernel to Triton source: the candidates of the schedule, each a complete module."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.candidates import schedules
from fuseopt.codegen.collapse import collapse
from fuseopt.codegen.cross import scratch_words
from fuseopt.codegen.express import Body
from fuseopt.codegen.fast import helper_functions
from fuseopt.codegen.grouped import GroupPrinter
from fuseopt.codegen.grouped_schedules import grouped_schedules
from fuseopt.codegen.printer import Printer
from fuseopt.codegen.random import random_functions
from fuseopt.codegen.schedule import Schedule
from fuseopt.codegen.source import KernelSource, Param
from fuseopt.codegen.totals import first_step, partials_of, second_step
from fuseopt.ir import dims
from fuseopt.ir.combine import COMBINES
from fuseopt.ir.dims import Size
from fuseopt.ir.kernel import LoopKernel

_COMBINE = """
@triton.jit
def _combine_{name}(a, b):
    return {step}
"""

_HOST = '''
def _host(name, *operands):
    """A PyTorch function in place of one of NVIDIA's, for Triton's interpreter."""
    import torch
    from triton.runtime.interpreter import TensorHandle

    given = [torch.from_numpy(o.handle.data.copy()) for o in operands]
    result = getattr(torch, name)(*given).numpy()
    element = operands[0].dtype
    is_block = any(o.type.is_block() for o in operands)
    kind = tl.core.block_type(element, list(result.shape)) if is_block else element
    return tl.core.tensor(TensorHandle(result, element), kind)

'''


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a kernel works in: so many elements, zero at the start where `zeroed`."""

    count: int
    dtype: torch.dtype
    zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A printed kernel: its source, its schedule and the sizes it takes as parameters.

    A launch passes inputs, outputs, the values of `symbols`, and scratch memory. `last`, where
    there is one, runs next on inputs, scratch memory, outputs and sizes, and completes totals.
    """

    source: KernelSource
    schedule: Schedule
    kernel: LoopKernel
    symbols: tuple[Any, ...]  # size symbols passed as int parameters, in order
    slots: int = 0  # partial values that programs of a shared row exchange
    partials: tuple[tuple[torch.dtype, Size], ...] = ()  # the sums that a group leaves
    last: Candidate | None = None

    @property
    def name(self) -> str:
        """The name of the jitted function."""
        return self.source.name

    @property
    def sources(self) -> tuple[KernelSource, ...]:
        """What a call launches, in order."""
        return (self.source,) if self.last is None else (self.source, self.last.source)

    def scratch(self, sizes: dict[Any, int]) -> list[Scratch]:
        """Return the memory that a launch needs as its last arguments."""
        s = self.schedule
        found = [
            Scratch(s.groups * dims.hint(points, sizes), dtype) for dtype, points in self.partials
        ]
        words = scratch_words(s.parts, dims.hint(s.outer_count, sizes), self.slots)
        return [*found, Scratch(words, torch.int32, zeroed=True)] if words else found

    def grid(self, sizes: dict[Any, int]) -> int:
        """Return the number of programs for given values of the size symbols."""
        s = self.schedule
        programs = -(-dims.hint(s.outer_count, sizes) // s.outer_block)
        if s.groups:
            programs = s.groups * dims.hint(s.fixed_count, sizes)
        if s.inner and not s.looped and not self.kernel.columns:
            programs *= -(-dims.hint(s.inner_count, sizes) // s.inner_block)
        return programs * s.parts


def generate(
    kernel: LoopKernel,
    name: str,
    hints: dict[Any, int] | None = None,
    *,
    title: str = "",
    interpreted: bool = False,
    in_order: bool | None = None,
) -> list[Candidate]:
    """Return the candidates for a kernel, best guess first.

    name: a Python identifier, the name of the jitted function.
    hints: the value of each size symbol at the shapes the kernel is built for.
    title: one sentence for the module's docstring.
    interpreted: spell NVIDIA's math functions as calls that Triton's interpreter can run.
    in_order: offer schedules for programs that run one after another; by default where interpreted.
    """
    hints = hints or {}
    sequential = interpreted if in_order is None else in_order
    first = collapse(first_step(kernel), hints)
    partials = tuple((p.dtype, p.points) for p in partials_of(kernel))
    if not partials:
        found = schedules(first, hints, sequential=sequential)
        return [_candidate(first, schedule, name, title, interpreted) for schedule in found]
    candidates = []
    for schedule in grouped_schedules(first, hints, sequential=sequential):
        made = _candidate(first, schedule, name, title, interpreted, partials)
        step = second_step(kernel, schedule.groups)
        rest = f"The totals of {name}."
        last, *_ = generate(step, f"{name}_totals", hints, title=rest, interpreted=interpreted)
        candidates.append(replace(made, last=last))
    return candidates


def _candidate(
    kernel: LoopKernel,
    schedule: Schedule,
    name: str,
    title: str,
    interpreted: bool,
    partials: tuple[tuple[torch.dtype, Size], ...] = (),
) -> Candidate:
    printer = GroupPrinter if schedule.groups else Printer
    body = printer(kernel, schedule, interpreted=interpreted).run()
    symbols = _symbols(kernel)
    params = _params(kernel, symbols)
    params += [
        Param(f"partial{n}", "pointer", spell.POINTER_TYPES[dtype], aligned=True)
        for n, (dtype, _) in enumerate(partials)
    ]
    if schedule.parts > 1:
        params.append(Param("scratch", "pointer", "i32", aligned=True))
    constexprs = [("XBLOCK", schedule.outer_block)]
    if schedule.inner:
        constexprs.append(("RBLOCK", schedule.inner_block))
    text = _module(name, title, params, [c for c, _ in constexprs], body, interpreted)
    source = KernelSource(
        name,
        text,
        tuple(params),
        tuple(constexprs),
        schedule.num_warps,
        schedule.num_stages,
        schedule.registers,
        debug=body.asserts,
    )
    return Candidate(source, schedule, kernel, symbols, body.slots, partials)


def _params(kernel: LoopKernel, symbols: tuple[Any, ...]) -> list[Param]:
    params = [
        Param(f"in{i}", "pointer", spell.POINTER_TYPES[p.dtype], aligned=True)
        for i, p in enumerate(kernel.inputs)
    ]
    params += [
        Param(f"out{i}", "pointer", spell.POINTER_TYPES[p.dtype], aligned=True)
        for i, p in enumerate(kernel.outputs)
    ]
    return params + [Param(str(s), "int", "i64") for s in symbols]


def _symbols(kernel: LoopKernel) -> tuple[Any, ...]:
    found = (dims.symbols_in(size) for size in kernel.sizes())
    return tuple(sorted(frozenset().union(*found), key=str))


def _module(
    name: str,
    title: str,
    params: list[Param],
    constexprs: list[str],
    body: Body,
    interpreted: bool,
) -> str:
    helpers = helper_functions(body.lines, interpreted=interpreted)
    libdevice = not interpreted and (body.libdevice or "libdevice." in helpers)
    arguments = [p.name for p in params] + [f"{c}: tl.constexpr" for c in constexprs]
    parts = [f'"""{title or name}"""\n\n', "import triton\nimport triton.language as tl\n"]
    if libdevice:
        parts.append("from triton.language.extra import libdevice\n")
    if body.libdevice and interpreted:
        parts.append(_HOST)
    if helpers:
        parts.append("\n" + helpers)
    parts.append(random_functions(body.lines))
    for combine in sorted(body.combines):
        step = COMBINES[combine].step.format("a", "b")
        parts.append("\n" + _COMBINE.format(name=combine, step=step))
    parts.append(f"\n\n@triton.jit\ndef {name}({', '.join(arguments)}):\n")
    parts.append("\n".join(body.lines) + "\n")
    return "".join(parts)
