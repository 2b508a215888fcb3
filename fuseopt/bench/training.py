"""Timing training steps on a CUDA device: what `fuseopt bench TARGET --train` measures.

A step is the forward pass, the backward pass and AdamW's update, on the target's inputs each time.
Every provider trains its own copy of the model from the same weights. Losses of the first steps are
kept side by side, eager's twice from different random seeds: their distance is what dropout and
the order of additions make of a curve.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuseopt.bench.kernels import LONGEST_NOTE, environment, plain
from fuseopt.bench.models import count_launches, make, problems_of
from fuseopt.bench.timing import time_calls
from fuseopt.errors import FuseOptError, UsageError
from fuseopt.events import RegionFused
from fuseopt.pipeline import first_line

SCHEMA = 1
STEPS = 50  # of the loss curves
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One provider on one model.

    seconds: median of a step. first_step: seconds of the first. kernels: launched by a step.
    peak_bytes: most memory allocated during a step, weights and optimizer states included. losses:
    of the first steps. note: why there is no time.
    """

    seconds: float = math.inf
    first_step: float = math.nan
    kernels: int = 0
    peak_bytes: int = 0
    losses: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """One model: its timings, eager's losses from another seed, and what fuseopt did with it.

    fused: regions replaced. problems: graph breaks, fallbacks and regions rolled back.
    """

    name: str
    about: str
    providers: dict[str, StepTiming] = field(default_factory=dict)
    other_seed: tuple[float, ...] = ()
    fused: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingResults:
    """A whole run: where, when and with what; the models."""

    environment: dict[str, str]
    models: list[TrainingResult]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; infinities and NaN become None."""
        return plain({"schema": SCHEMA, **asdict(self)})


def bench_training(results: list[TrainingResult]) -> TrainingResults:
    """Return results with the environment they were taken in."""
    return TrainingResults(environment(), results)


class Step:
    """Training steps of one copy of a model."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        provider: str,
    ) -> None:
        own = copy.deepcopy(model).train()
        self.function = make(provider, own)
        self.args, self.kwargs = args, kwargs
        on_gpu = any(p.is_cuda for p in own.parameters())
        self.optimizer = torch.optim.AdamW(own.parameters(), LEARNING_RATE, fused=on_gpu)

    def __call__(self) -> torch.Tensor:
        """Take one step and return its loss, a tensor of no dimensions."""
        loss = loss_of(self.function(*self.args, **self.kwargs))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss in a model's output: `.loss`, or its first tensor if that is one number.

    Raises `UsageError` where there is none.
    """
    loss = getattr(output, "loss", None)
    if loss is None:
        leaves = [v for v in pytree.tree_leaves(output) if isinstance(v, torch.Tensor)]
        loss = leaves[0] if leaves else None
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise UsageError(
            "--train takes models that return a loss that needs gradients (an output with .loss, "
            "or one number first); pass labels in the target's inputs"
        )
    return loss


def train_model(
    name: str,
    about: str,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    providers: Sequence[str],
    steps: int = STEPS,
) -> TrainingResult:
    """Time training steps of a model on the current CUDA device.

    providers: as for `bench_model`. steps: length of the loss curves.
    """
    found: dict[str, StepTiming] = {}
    fused = 0
    problems: tuple[str, ...] = ()
    for provider in providers:
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        step = Step(model, args, kwargs, provider)
        found[provider] = _trained(step, steps)
        if provider == "fuseopt":
            log = step.function.log
            fused, problems = len(log.of(RegionFused)), problems_of(log)
        del step
    torch.manual_seed(1)
    again = Step(model, args, kwargs, "eager")
    other_seed = tuple(float(again()) for _ in range(steps))
    return TrainingResult(name, about, found, other_seed, fused, problems)


def _trained(step: Callable[[], torch.Tensor], steps: int) -> StepTiming:
    torch.manual_seed(0)
    try:
        start = time.perf_counter()
        losses = [float(step())]  # reading it waits for the device
        first = time.perf_counter() - start
        torch.cuda.reset_peak_memory_stats()
        losses += [float(step()) for _ in range(steps - 1)]
    except UsageError:
        raise
    except (RuntimeError, TypeError, ValueError, FuseOptError) as error:
        return StepTiming(note=first_line(error)[:LONGEST_NOTE])
    peak = torch.cuda.max_memory_allocated()
    kernels = count_launches(step)
    (seconds,) = time_calls([step])
    return StepTiming(seconds, first, kernels, peak, tuple(losses))
