"""Inputs that kernels are checked on: plain ones, and ones made to break numerics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.memory import memory_of
from fuseopt.ir.values import Apply, Number, Value
from fuseopt.runtime.samples import draw_inputs, steering_inputs


def input_sets(
    kernel: LoopKernel, device: torch.device, sizes: Mapping[Any, int], *, parts: bool = False
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield named sets of inputs for a kernel, a few.

    plain: normally distributed. uneven: elements from 1e-4 to 1e3 (1e2 for float16) in size,
    constant stretches, an offset far above the spread, zeros. special: some NaN and infinities.
    ties: small whole numbers, for kernels that ask whether numbers are equal.
    What indices are computed from stays plain, so that they stay inside. parts: yield one more,
    of numbers in [0, 1), for what gives NaN elsewhere.
    """
    generator = torch.Generator(device).manual_seed(20)
    yield "plain", draw_inputs(kernel, device, sizes, generator)
    if not any(p.dtype.is_floating_point for p in kernel.inputs):
        return
    steering = steering_inputs(kernel)
    tensors = draw_inputs(kernel, device, sizes, generator)
    yield "uneven", [t if n in steering else _uneven(t, generator) for n, t in enumerate(tensors)]
    if parts:
        tensors = draw_inputs(kernel, device, sizes, generator)
        yield "parts", [t if n in steering else _parts(t) for n, t in enumerate(tensors)]
    if any(map(_asks_for_equality, kernel.values())):
        tensors = draw_inputs(kernel, device, sizes, generator)
        yield "ties", [t if n in steering else _ties(t) for n, t in enumerate(tensors)]
    tensors = draw_inputs(kernel, device, sizes, generator)
    # Only in the largest tensors: what an infinite weight gives depends on the formula's order.
    largest = max(t.numel() for t in tensors)
    hit = [n for n, t in enumerate(tensors) if t.numel() == largest and n not in steering]
    yield "special", [_special(t, n) if n in hit else t for n, t in enumerate(tensors)]


def _uneven(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = memory_of(tensor)
    if not flat.dtype.is_floating_point:
        return tensor
    count = flat.numel()
    high = 2.0 if flat.dtype == torch.float16 else 3.0
    # One magnitude for each stretch of 64 elements, so that rows differ and are uneven inside.
    powers = torch.rand((count + 63) // 64, generator=generator, device=flat.device) * (4.0 + high)
    scale = torch.pow(10.0, powers - 4.0).repeat_interleave(64)[:count]
    values = flat.to(scale.dtype if flat.dtype != torch.float64 else flat.dtype) * scale
    if count >= 32:
        quarter = count // 4
        values[:quarter] = 3.0
        values[quarter // 2 : quarter] = 0.0
        values[quarter : 2 * quarter] = values[quarter : 2 * quarter].clamp(-1, 1) + 100.0
    flat.copy_(values)
    return tensor


def _asks_for_equality(value: Value) -> bool:
    return (
        isinstance(value, Apply)
        and value.primitive in ("eq", "ne")
        and all(a.dtype.is_floating_point and not isinstance(a, Number) for a in value.args)
    )


def _ties(tensor: torch.Tensor) -> torch.Tensor:
    flat = memory_of(tensor)
    if flat.dtype.is_floating_point:
        flat.copy_(flat.double().round().clamp(-2, 2))
    return tensor


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    flat = memory_of(tensor)
    if flat.dtype.is_floating_point:
        flat.copy_(flat.double().abs() % 1)
    return tensor


def _special(tensor: torch.Tensor, number: int) -> torch.Tensor:
    flat = memory_of(tensor)
    if flat.dtype.is_floating_point and flat.numel() >= 8:
        count = flat.numel()
        # NaN beside a number in the other inputs: a maximum of the two may lose it.
        flat[(count // 7 + number) % count] = float("nan")
        flat[count // 3] = float("inf")
        flat[count // 2] = float("-inf")
    return tensor
