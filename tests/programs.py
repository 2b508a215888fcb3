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
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from regions import random

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SIZES = (1, 2, 3, 4, 5, 8, 17, 33)
MOST_ELEMENTS = 3000
NAMES = {"torch": torch, "F": F}

Draw = Callable[[st.SearchStrategy[Any]], Any]
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


# ------------------------------------------------------------------------------------ operations


UNARY = (
    "torch.tanh({})",
    "torch.sigmoid({})",
    "F.silu({})",
    "F.gelu({})",
    "F.gelu({}, approximate='tanh')",
    "F.relu({})",
    "torch.sin({})",
    "torch.erf({})",
    "torch.exp(-torch.abs({}))",
    "torch.sqrt(torch.abs({}) + 1)",
    "torch.rsqrt({} ** 2 + 1)",
    "torch.log1p(torch.abs({}))",
    "F.softplus({})",
    "F.elu({})",
    "F.hardswish({})",
    "F.leaky_relu({}, 0.2)",
    "{}.clamp(-1.5, 0.75)",
    "-{}",
    "{} * 0.5",
    "{} + 1",
    "2 - {}",
    "{} / 3",
    "{}.clone()",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "torch.maximum({0}, {1}.to({0}.dtype))",
    "torch.minimum({0}, {1}.to({0}.dtype))",
    "{} / ({}.abs() + 1)",
    "torch.add({}, {}, alpha=2)",
    "torch.lerp({0}, {1}.to({0}.dtype), 0.25)",
)
WHOLE = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{0} & {1}",
    "{0} ^ {1}",
    "torch.maximum({0}, {1})",
    "{0} % 7",
    "{0} // 3",
    "{0} >> 1",
    "{0} * 2 + {1}",
)
STEPS = (
    "{} > 0.25",
    "torch.round({})",
    "torch.floor({})",
    "{} == {}",
    "torch.sign({})",
    "{}.isnan()",
)
CASTS = ("float32", "bfloat16", "float16", "float64")


def unary(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    return x and draw(st.sampled_from(UNARY)).format(x)


def binary(draw: Draw, p: Program) -> str | None:
    x, y = p.of(draw, *FLOATS), p.of(draw, *FLOATS, *INTEGERS)
    return x and draw(st.sampled_from(BINARY)).format(x, y)


def whole(draw: Draw, p: Program) -> str | None:
    x, y = p.of(draw, *INTEGERS), p.of(draw, *INTEGERS)
    return x and draw(st.sampled_from(WHOLE)).format(x, y)


def step(draw: Draw, p: Program) -> str | None:
    x, y = (p.of(draw, *FLOATS, *INTEGERS, inputs=True) for _ in range(2))
    return draw(st.sampled_from(STEPS)).format(x, y)


def cast(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS, *INTEGERS, torch.bool)
    return f"{x}.to(torch.{draw(st.sampled_from(CASTS))})"


def choose(draw: Draw, p: Program) -> str | None:
    condition, x, y = p.of(draw, torch.bool), p.of(draw, *FLOATS), p.of(draw, *FLOATS)
    form = draw(st.sampled_from(("torch.where({0}, {1}, {2})", "{1}.masked_fill({0}, -1e4)")))
    return condition and x and form.format(condition, x, y)


def reduction(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    dim = draw(st.integers(-1, p.values[x].dim() - 1))
    keep = draw(st.booleans())
    form = draw(
        st.sampled_from(
            (
                "{x}.sum({dim}, keepdim={keep})",
                "{x}.mean({dim}, keepdim={keep})",
                "{x}.amax({dim}, keepdim={keep})",
                "{x}.amin({dim}, keepdim={keep})",
                "torch.logsumexp({x}, {dim}, keepdim={keep})",
                "F.softmax({x}, {dim})",
                "F.softmax({x}, {dim})",
                "F.log_softmax({x}, {dim})",
                "{x} - {x}.mean({dim}, keepdim=True)",
                "{x} / ({x}.norm(dim={dim}, keepdim=True) + 1)",
                "{x}.sum()",
            )
        )
    )
    return form.format(x=x, dim=dim, keep=keep)


def norm(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    form = draw(
        st.sampled_from(("F.layer_norm({x}, {x}.shape[-1:])", "F.rms_norm({x}, {x}.shape[-1:])"))
    )
    return form.format(x=x)


def view(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS, *INTEGERS, torch.bool)
    if not x or not p.values[x].dim():
        return None
    value = p.values[x]
    dim = draw(st.integers(0, value.dim() - 1))
    size = value.shape[dim]
    half = max(size // 2, 1)
    return draw(
        st.sampled_from(
            (
                f"{x}.flatten()",
                f"{x}.transpose({dim}, -1)",
                f"{x}.unsqueeze({dim})",
                f"{x}.squeeze()",
                f"{x}.flip({dim})",
                f"{x}.narrow({dim}, {size - half}, {half})",
                f"{x}.select({dim}, {size - 1})",
                f"{x}.reshape(-1, {size})",
                f"{x}.reshape({size}, -1)",
                f"{x}.view({', '.join(map(str, factored(value.shape)))})",
                f"{x}[..., ::2]",
                f"{x}.expand(2, *{x}.shape)",
                f"{x}.chunk(2, {dim})[-1]",
                f"{x}.roll(1, {dim})",
                f"{x}.repeat(2, *[1] * ({x}.dim() - 1))",
            )
        )
    )


def factored(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with each even size split in two."""
    return tuple(part for n in shape for part in ((2, n // 2) if n % 2 == 0 else (n,)))


def joined(draw: Draw, p: Program) -> str | None:
    x, y = p.of(draw, *FLOATS), p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    dim = draw(st.integers(0, p.values[x].dim() - 1))
    form = draw(st.sampled_from(("torch.cat(({}, {}), {})", "torch.stack(({}, {}), {})")))
    return form.format(x, y, dim)


def indexed(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    places = draw(st.lists(st.integers(0, p.values[x].shape[0] - 1), min_size=1, max_size=5))
    return f"{x}[torch.tensor({places})]"


OPERATIONS = (
    *(unary,) * 5,
    *(binary,) * 4,
    *(view,) * 4,
    *(reduction,) * 4,
    norm,
    joined,
    joined,
    cast,
    cast,
    choose,
    step,
    whole,
    whole,
    indexed,
)


@st.composite
def programs(draw: Draw) -> Program:
    """A program of up to ten operations, with one to three results."""
    program = Program()
    add_inputs(draw, program)
    for _ in range(draw(st.integers(2, 10))):
        expression = draw(st.sampled_from(OPERATIONS))(draw, program)
        if expression:
            program.add(expression)
    made = [n for n in program.values if n not in program.inputs]
    results = [n for n in made[:-1] if draw(st.integers(0, 3)) == 0][:2]
    program.outputs = (*made[-1:], *results)
    return program
