"""The operations that random programs are made of: each drawn as a line of Python.

A function here receives hypothesis's `draw` and the program so far, and returns an expression, or
None where the program has no value that suits. What PyTorch refuses, the program leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

if TYPE_CHECKING:
    from programs import Program

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Draw = Callable[[st.SearchStrategy[Any]], Any]
Operation = Callable[[Draw, "Program"], str | None]

SMOOTH = (
    "torch.tanh({})",
    "torch.sigmoid({})",
    "F.silu({})",
    "F.gelu({})",
    "F.gelu({}, approximate='tanh')",
    "torch.sin({})",
    "torch.erf({})",
    "torch.exp(-{} ** 2)",
    "torch.sqrt({} ** 2 + 1)",
    "torch.rsqrt({} ** 2 + 1)",
    "torch.log1p({} ** 2)",
    "F.softplus({})",
    "F.logsigmoid({})",
    "-{}",
    "{} * 0.5",
    "{} + 1",
    "2 - {}",
    "{} / 3",
    "{}.clone()",
    "F.mish({})",
)
CORNERED = (
    "F.relu({})",
    "torch.exp(-torch.abs({}))",
    "torch.sqrt(torch.abs({}) + 1)",
    "torch.log1p(torch.abs({}))",
    "F.elu({})",
    "F.hardswish({})",
    "F.leaky_relu({}, 0.2)",
    "{}.clamp(-1.5, 0.75)",
    "F.hardtanh({})",
    "F.softshrink({}, 0.3)",
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
SMOOTH_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / ({} ** 2 + 1)",
    "torch.add({}, {}, alpha=2)",
    "torch.lerp({0}, {1}.to({0}.dtype), 0.25)",
    "{0} * {1} + {0}",
    "torch.addcmul({0}, {1}.to({0}.dtype), {0}, value=0.5)",
    "F.mse_loss({0} + {1} * 0, ({1} + {0} * 0).to(({0} + {1} * 0).dtype), reduction='none')",
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
REDUCTIONS = (
    "{x}.sum({dim}, keepdim={keep})",
    "{x}.mean({dim}, keepdim={keep})",
    "torch.logsumexp({x}, {dim}, keepdim={keep})",
    "F.softmax({x}, {dim})",
    "F.softmax({x}, {dim})",
    "F.log_softmax({x}, {dim})",
    "{x} - {x}.mean({dim}, keepdim=True)",
    "{x} / ({x}.norm(dim={dim}, keepdim=True) + 1)",
    "{x}.sum()",
    "{x}.mean()",
    "{x}.sum({dims}, keepdim={keep})",
    "{x}.sum({dims}, keepdim={keep})",
    "{x}.mean({dims}, keepdim={keep})",
    "{x}.mean({dims}, keepdim={keep})",
    "{x}.square().mean({dims}, keepdim={keep})",
    "({x} + 1).var({dim}, correction=0, keepdim={keep})",
)
EXTREMES = (
    "{x}.amax({dim}, keepdim={keep})",
    "{x}.amin({dim}, keepdim={keep})",
    "{x}.amax({dims}, keepdim={keep})",
    "{x}.amin({dims}, keepdim={keep})",
)
NORMS = (
    "F.layer_norm({x}, {x}.shape[-1:])",
    "F.rms_norm({x}, {x}.shape[-1:])",
    "F.layer_norm({x}, {x}.shape[1:])",
    "F.layer_norm({x}, {x}.shape[-1:], {w}.to({x}.dtype), {w}.to({x}.dtype))",
    "F.rms_norm({x}, {x}.shape[-1:], {w}.to({x}.dtype))",
    "F.group_norm({x}, 1)",
    "F.group_norm({x}, {x}.shape[1])",
    "F.normalize({x} + 2, dim=-1)",
)


def unary(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    return x and draw(st.sampled_from((*SMOOTH, *CORNERED))).format(x)


def smooth(draw: Draw, p: Program) -> str | None:
    x = p.of(draw, *FLOATS)
    return x and draw(st.sampled_from(SMOOTH)).format(x)


def binary(draw: Draw, p: Program) -> str | None:
    x, y = p.of(draw, *FLOATS), p.of(draw, *FLOATS, *INTEGERS)
    return x and draw(st.sampled_from(BINARY)).format(x, y)


def smooth_binary(draw: Draw, p: Program) -> str | None:
    x, y = p.of(draw, *FLOATS), p.of(draw, *FLOATS)
    return x and draw(st.sampled_from(SMOOTH_BINARY)).format(x, y)


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
    forms = (
        "torch.where({0}, {1}, {2})",
        "torch.where({0}, {1}, 0.5)",
        "{1}.masked_fill({0}, -1e4)",
        "{1}.masked_fill({0}[:1], 0.0)",
        "{1} * {0}",
    )
    return condition and x and draw(st.sampled_from(forms)).format(condition, x, y)


def reduction(draw: Draw, p: Program) -> str | None:
    return _reduced(draw, p, (*REDUCTIONS, *EXTREMES))


def smooth_reduction(draw: Draw, p: Program) -> str | None:
    return _reduced(draw, p, REDUCTIONS)


def _reduced(draw: Draw, p: Program, forms: tuple[str, ...]) -> str | None:
    x = p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    rank = p.values[x].dim()
    dim = draw(st.integers(-1, rank - 1))
    over = tuple(draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    keep = draw(st.booleans())
    return draw(st.sampled_from(forms)).format(x=x, dim=dim, dims=over, keep=keep)


def norm(draw: Draw, p: Program) -> str | None:
    x, w = p.of(draw, *FLOATS), p.of(draw, *FLOATS)
    if not x or not p.values[x].dim():
        return None
    width = p.values[x].shape[-1]
    fitting = [n for n, v in p.values.items() if v.shape == (width,) and v.dtype in FLOATS]
    w = draw(st.sampled_from(fitting)) if fitting else w
    return draw(st.sampled_from(NORMS)).format(x=x, w=w)


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
                f"{x}.split({half}, {dim})[0]",
                f"{x}.unbind({dim})[0]",
                f"{x}.roll(1, {dim})",
                f"{x}.repeat(2, *[1] * ({x}.dim() - 1))",
                f"{x}.repeat_interleave(2, {dim})",
                f"{x}.movedim({dim}, 0)",
                f"{x}.transpose({dim}, 0).contiguous()",
                f"F.pad({x}, (1, 2))",
                f"torch.tril({x})",
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
    dim = draw(st.integers(0, p.values[x].dim() - 1))
    size = p.values[x].shape[dim]
    places = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    forms = (
        "{x}[torch.tensor({places})]" if dim == 0 else "{x}[:, torch.tensor({places})]",
        "{x}.index_select({dim}, torch.tensor({places}))",
        "{x}.gather({dim}, torch.zeros_like({x}, dtype=torch.int64) + {last})",
        "F.embedding(torch.tensor([{places}, {places}]), {x})" if dim == 0 else "{x}.clone()",
    )
    form = draw(st.sampled_from(forms))
    return form.format(x=x, dim=dim, places=places, last=places[-1])


EVERY: tuple[Operation, ...] = (
    *(unary,) * 5,
    *(binary,) * 4,
    *(view,) * 4,
    *(reduction,) * 4,
    norm,
    norm,
    joined,
    joined,
    cast,
    cast,
    choose,
    choose,
    step,
    whole,
    whole,
    indexed,
    indexed,
)
# Differentiable, and so that a small difference of the inputs is a small one of the gradients.
DIFFERENTIABLE: tuple[Operation, ...] = (
    *(smooth,) * 5,
    *(smooth_binary,) * 4,
    *(view,) * 4,
    *(smooth_reduction,) * 4,
    norm,
    norm,
    joined,
    cast,
    choose,
    choose,
    indexed,
)
