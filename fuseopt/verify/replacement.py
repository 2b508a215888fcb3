"""Checking what a rule put in place of a match against the operations it replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from fuseopt.events import Verified
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.verify.compare import Verdict, verified
from fuseopt.verify.inputs import input_sets
from fuseopt.verify.outputs import judge_outputs


def check_replacement(
    key: str,
    call: Callable[..., Any],
    reference: fx.GraphModule,
    params: Sequence[TensorParam],
    device: torch.device,
    size_inputs: Sequence[int] = (),
) -> Verified:
    """Return the verdict on a function of tensors with these layouts.

    reference: the operations it replaces, of the same tensors and then `size_inputs`.
    """
    how = "device" if device.type == "cuda" else "cpu"
    worst = Verdict(True)
    for name, inputs in input_sets(LoopKernel((), (), tuple(params), (), ()), device, {}):
        # Neither may change what the other is given.
        copies = [t.clone(memory_format=torch.preserve_format) for t in inputs]
        try:
            verdict = _check_once(call, reference, copies, [*inputs, *size_inputs])
        except Exception as error:  # whatever the user's function raises
            lines = str(error).strip().splitlines() or [""]
            return Verified(key, False, how, detail=f"{type(error).__name__}: {lines[0]}")
        if not all(map(_same_numbers, copies, inputs)):
            return Verified(key, False, how, detail="it changes a tensor that it is given")
        if not verdict.passed:
            return verified(key, how, verdict, f"{name} inputs: {verdict.detail}")
        worst = max(worst, verdict, key=lambda v: v.error)
    return verified(key, how, worst)


def _check_once(
    call: Callable[..., Any],
    reference: fx.GraphModule,
    copies: Sequence[torch.Tensor],
    given: Sequence[Any],
) -> Verdict:
    returned = call(*copies)
    ours = returned if isinstance(returned, tuple) else (returned,)
    return judge_outputs(lambda: (ours, [None] * len(ours)), reference, given)


def _same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = a == b
    if a.dtype.is_floating_point:
        same |= a.isnan() & b.isnan()
    return bool(same.all())
