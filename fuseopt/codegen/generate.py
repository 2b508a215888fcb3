"""From a loop kernel to Triton source: the candidates of the schedule, each a complete module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuseopt.codegen import spell
from fuseopt.codegen.candidates import schedules
from fuseopt.codegen.collapse import collapse
from fuseopt.codegen.cross import scratch_words
from fuseopt.codegen.express import Body
from fuseopt.codegen.fast import helper_functions
from fuseopt.codegen.printer import print_body
from fuseopt.codegen.random import random_functions
from fuseopt.codegen.schedule import Schedule
from fuseopt.codegen.source import KernelSource, Param
from fuseopt.ir import dims
from fuseopt.ir.combine import COMBINES
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
class Candidate:
    """A printed kernel: its source, its schedule and the sizes it takes as parameters."""

    source: KernelSource
    schedule: Schedule
    kernel: LoopKernel
    symbols: tuple[Any, ...]  # size symbols passed as int parameters, in order
    slots: int = 0  # partial values that programs of a shared row exchange

    @property
    def name(self) -> str:
        """The name of the jitted function."""
        return self.source.name

    def scratch(self, sizes: dict[Any, int]) -> int:
        """Return the 32-bit words of zeroed memory that a launch needs as its last argument."""
        s = self.schedule
        return scratch_words(s.parts, dims.hint(s.outer_count, sizes), self.slots)

    def grid(self, sizes: dict[Any, int]) -> int:
        """Return the number of programs for given values of the size symbols."""
        s = self.schedule
        programs = -(-dims.hint(s.outer_count, sizes) // s.outer_block)
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
) -> list[Candidate]:
    """Return the candidates for a kernel, best guess first.

    name: a Python identifier, the name of the jitted function.
    hints: the value of each size symbol at the shapes the kernel is built for.
    title: one sentence for the module's docstring.
    """
    hints = hints or {}
    collapsed = collapse(kernel, hints)
    return [
        _candidate(collapsed, schedule, name, title, interpreted)
        for schedule in schedules(collapsed, hints, sequential=interpreted)
    ]


def _candidate(
    kernel: LoopKernel, schedule: Schedule, name: str, title: str, interpreted: bool
) -> Candidate:
    body = print_body(kernel, schedule, interpreted=interpreted)
    symbols = _symbols(kernel)
    params = _params(kernel, symbols)
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
    return Candidate(source, schedule, kernel, symbols, body.slots)


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
    found: set[Any] = set()
    for axis in kernel.axes:
        found |= dims.symbols_in(axis.extent)
    for param in (*kernel.inputs, *kernel.outputs):
        for size in (*param.shape, *param.strides):
            found |= dims.symbols_in(size)
    return tuple(sorted(found, key=str))


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
