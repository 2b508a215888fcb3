"""Running a region's reference: as written, and in float64 as the truth that both are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# Softmax after dispatch: whether a 16-bit input gives a float32 result.
_HALF_TO_FLOAT = {aten._softmax.default: 2, aten._log_softmax.default: 2}


def run_reference(gm: fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run a reference graph in its own dtypes."""
    with torch.no_grad():
        return tuple(gm(*inputs))


def run_truth(gm: fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run a reference graph with every floating-point value in float64."""
    with torch.no_grad():
        return tuple(_Float64(gm).run(*map(widened, inputs)))


class _Float64(fx.Interpreter):
    """Evaluates a graph with float64 in place of every floating-point dtype."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args = fx.map_arg(args, lambda n: n)
        args = tuple(widened(a) for a in args)
        place = _HALF_TO_FLOAT.get(target)
        if place is not None:
            args = (*args[:place], False, *args[place + 1 :])
        return super().call_function(target, args, {k: widened(v) for k, v in kwargs.items()})

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return widened(super().get_attr(target, args, kwargs))


def widened(value: Any) -> Any:
    """Return floating-point tensors and dtypes in float64, anything else as given."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype.is_floating_point else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(map(widened, value))
    return value


def moved(inputs: Sequence[Any], seed: int) -> list[Any]:
    """Return the inputs with each number moved by about one in its last digit, or not at all."""
    generator = torch.Generator().manual_seed(seed)
    return [_moved(value, generator) for value in inputs]


def _moved(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    drawn = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device)
    changed = value.double() * (1 + torch.finfo(value.dtype).eps * (2 * drawn - 1))
    return changed.to(value.dtype)
