"""Timing whole models on a CUDA device: what `fuseopt bench TARGET` measures.

Each provider runs the same model on the same inputs in one process. Times are medians of whole
calls in turns, taken with the device's own clock; first calls, which trace and compile, are timed
apart; kernels are counted by the profiler; errors are against the model in float32.
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
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import fuseopt
from fuseopt.bench.kernels import LONGEST_NOTE, environment, plain
from fuseopt.bench.timing import time_calls
from fuseopt.errors import FuseOptError
from fuseopt.events import FellBack, GraphBroken, Log, RegionFused, RolledBack, Verified
from fuseopt.pipeline import first_line

SCHEMA = 1
PROVIDERS = ("eager", "fuseopt", "inductor")


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """One provider on one model.

    seconds: median of a call. first_call: seconds of the first. kernels: launched by a call, copies
    apart. peak_bytes: most memory allocated during a call. error: norm of the difference of the
    first output from the model in float32, over that output's norm. note: why there is no time.
    """

    seconds: float = math.inf
    first_call: float = math.nan
    kernels: int = 0
    peak_bytes: int = 0
    error: float = math.nan
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model: its timings and what fuseopt did with it.

    fused: regions replaced. launches_saved: ops those regions replaced, less their kernels.
    verified: whether the check of every graph's first call passed. problems: graph breaks,
    fallbacks and regions rolled back.
    """

    name: str
    about: str
    providers: dict[str, ModelTiming] = field(default_factory=dict)
    fused: int = 0
    launches_saved: int = 0
    verified: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelsResult:
    """A whole run: where, when and with what; the models."""

    environment: dict[str, str]
    models: list[ModelResult]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; infinities and NaN become None."""
        return plain({"schema": SCHEMA, **asdict(self)})


def bench_models(results: list[ModelResult]) -> ModelsResult:
    """Return results with the environment they were taken in."""
    return ModelsResult(environment(), results)


def bench_model(
    name: str,
    about: str,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    providers: Sequence[str] = PROVIDERS,
) -> ModelResult:
    """Time a call of a model on the current CUDA device, without gradients."""
    calls: dict[str, Callable[[], Any]] = {}
    found: dict[str, ModelTiming] = {}
    result = ModelResult(name, about)
    with torch.no_grad():
        truth = _truth(model, args, kwargs)
        for provider in providers:
            torch._dynamo.reset()
            function = make(provider, model)
            call = _bind(function, args, kwargs)
            found[provider] = _first(call, truth)
            if not found[provider].note:
                calls[provider] = call
            if provider == "fuseopt":
                result = _described(result, function.log)
        seconds = time_calls(list(calls.values()))
    for (provider, _), taken in zip(calls.items(), seconds, strict=True):
        first = found[provider]
        found[provider] = ModelTiming(
            taken, first.first_call, first.kernels, first.peak_bytes, first.error
        )
    result.providers.update(found)
    return result


def make(provider: str, model: nn.Module) -> Any:
    """Return a model as a provider runs it."""
    if provider == "fuseopt":
        return fuseopt.optimize(model)
    return torch.compile(model) if provider == "inductor" else model


def _bind(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


def _first(call: Callable[[], Any], truth: torch.Tensor | None) -> ModelTiming:
    """Run a call for the first time, then again for its kernels and memory."""
    try:
        torch.cuda.synchronize()
        start = time.perf_counter()
        output = call()
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
    except (RuntimeError, TypeError, ValueError, FuseOptError) as error:
        return ModelTiming(note=first_line(error)[:LONGEST_NOTE])
    error_found = _error(output, truth)
    del output
    call()
    torch.cuda.reset_peak_memory_stats()
    call()
    peak = torch.cuda.max_memory_allocated()
    return ModelTiming(math.inf, taken, count_launches(call), peak, error_found)


def count_launches(call: Callable[[], Any]) -> int:
    """Return how many kernels a call launches, copies apart."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() or () if e.device_type.name == "CUDA"]
    return sum(not n.startswith(("Memcpy", "Memset")) for n in names)


def _truth(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The first output of the model in float32, on the CPU; None where memory does not allow it."""
    try:
        wide = copy.deepcopy(model).float()
        wide_args, wide_kwargs = pytree.tree_map(_widened, (tuple(args), dict(kwargs)))
        return _first_tensor(wide(*wide_args, **wide_kwargs)).cpu()
    except torch.cuda.OutOfMemoryError:
        return None


def _widened(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_float else value


def _error(output: Any, truth: torch.Tensor | None) -> float:
    if truth is None:
        return math.nan
    wanted = truth.to("cuda")
    return float((_first_tensor(output).float() - wanted).norm() / wanted.norm())


def _first_tensor(output: Any) -> torch.Tensor:
    leaves = [v for v in pytree.tree_leaves(output) if isinstance(v, torch.Tensor)]
    if leaves:
        return leaves[0]
    first = output[0]  # an output class that pytree does not know
    assert isinstance(first, torch.Tensor)
    return first


def _described(result: ModelResult, log: Log) -> ModelResult:
    fused = log.of(RegionFused)
    graphs = [v for v in log.of(Verified) if v.key.startswith("graph:")]
    return ModelResult(
        result.name,
        result.about,
        {},
        len(fused),
        sum(r.launches_before - r.launches_after for r in fused),
        bool(graphs) and all(v.passed for v in graphs),
        problems_of(log),
    )


def problems_of(log: Log) -> tuple[str, ...]:
    """Return the graph breaks, fallbacks and regions rolled back, each once."""
    problems = [
        *(f"graph break: {b.reason}" for b in log.of(GraphBroken)),
        *(f.reason for f in log.of(FellBack)),
        *(r.reason for r in log.of(RolledBack)),
    ]
    return tuple(dict.fromkeys(problems))
