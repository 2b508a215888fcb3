"""Random programs of tensor operations, as Python functions, for property tests.

    def program(a0, a1):
        v0 = torch.tanh(a0)
        v1 = torch.cat((v0, a1), 1)
        return v1, v0

Operations that step (comparisons, rounding) are applied to inputs alone, and functions that amplify
errors without bound are avoided: a small difference stays one, so that the numerics contract holds
from end to end.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from operations import DIFFERENTIABLE, EVERY, FLOATS, INTEGERS, Draw, Operation
from regions import random

SIZES = (1, 2, 3, 4, 5, 8, 17, 33)
MOST_ELEMENTS = 3000
NAMES = {"torch": torch, "F": F}

counter = iter(range(10**9))


@dataclass
class Program:
    """A program under construction: its lines, and the value of each name for some inputs."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        body = "".join(f"    {line}\n" for line in self.lines)
        results = ", ".join(self.outputs)
        return f"def program({', '.join(self.inputs)}):\n{body}    return ({results},)\n"

    @property
    def args(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.inputs.values())

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program as a function with a code of its own."""
        file = f"<program {next(counter)}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        namespace = dict(NAMES)
        exec(compile(self.text, file, "exec"), namespace)
        return namespace["program"]

    def add(self, expression: str) -> None:
        """Add a line, unless PyTorch refuses it or its result is not of use."""
        try:
            value = eval(expression, {**NAMES, **self.values})
        except (RuntimeError, IndexError, TypeError, ValueError):
            return
        if 0 < value.numel() <= MOST_ELEMENTS:
            name = f"v{len(self.lines)}"
            self.lines.append(f"{name} = {expression}")
            self.values[name] = value

    def of(self, draw: Draw, *dtypes: torch.dtype, inputs: bool = False) -> str | None:
        """The name of some value of these dtypes, recent ones more often."""
        pool = self.inputs if inputs else self.values
        names = [n for n, v in pool.items() if v.dtype in dtypes]
        return draw(st.sampled_from(names + names[-2:])) if names else None


def shapes(draw: Draw) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))


def add_inputs(draw: Draw, program: Program) -> None:
    """Tensors that broadcast against the first, and one or two of other shapes."""
    base = shapes(draw)
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(
            st.sampled_from(FLOATS if number == 0 else (*FLOATS, torch.float32, *INTEGERS))
        )
        shape = base
        if number and draw(st.booleans()):
            keep = draw(st.integers(0, len(base)))
            shape = tuple(1 if draw(st.booleans()) else n for n in base[keep:]) or (1,)
        tensor = random(*shape, dtype=dtype, seed=number)
        if draw(st.integers(0, 5)) == 0 and tensor.dim() > 1:
            tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
        program.inputs[f"a{number}"] = tensor
    if draw(st.booleans()):
        program.inputs["mask"] = random(*base, dtype=torch.bool)
    program.values.update(program.inputs)


@st.composite
def programs(draw: Draw, operations: tuple[Operation, ...] = EVERY) -> Program:
    """A program of up to ten operations, with one to four results."""
    program = Program()
    add_inputs(draw, program)
    for _ in range(draw(st.integers(2, 10))):
        expression = draw(st.sampled_from(operations))(draw, program)
        if expression:
            program.add(expression)
    made = [n for n in program.values if n not in program.inputs]
    results = [n for n in made[:-1] if draw(st.integers(0, 3)) == 0][:3]
    program.outputs = (*made[-1:], *results)
    return program


def differentiable_programs() -> st.SearchStrategy[Program]:
    """Programs whose gradients, like their results, differ little where their inputs do."""
    return programs(DIFFERENTIABLE)
