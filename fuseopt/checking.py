"""`fuseopt.check`: an optimised model next to its original, results and gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuseopt.assemble import optimize_callable
from fuseopt.config import Config
from fuseopt.errors import UsageError
from fuseopt.graph.locate import node_info
from fuseopt.verify.compare import LIMITS, within
from fuseopt.verify.graph import distance
from fuseopt.verify.outputs import MOVES
from fuseopt.verify.truth import moved, widened
from fuseopt.verify.watch import Watch, Watched
from fuseopt.wrap import details_of

if TYPE_CHECKING:
    from rich.console import RenderableType

DEPTH = 4.0  # of the limit of one kernel: what rounding in the layers of a model may add up to


@dataclass(frozen=True, slots=True)
class Compared:
    """One tensor: a result, or the gradient of an input or parameter.

    error, eager_error: root mean square of the difference from float64, relative to that of the
    float64 result, of the optimised and of the original model. Where a value fails, eager_error is
    at least what a change of all numbers by their last digits makes. passed: error <= 2 eager_error
    + limit.
    """

    name: str
    error: float
    eager_error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the optimised model is as near to the truth as the original, by the contract."""
        return within(self.error, self.eager_error, self.limit)


@dataclass(frozen=True, slots=True)
class Site:
    """One kernel as it ran in the model. modules: where its operations come from."""

    kernel: str
    level: str
    modules: tuple[str, ...]
    passed: bool
    error: float
    detail: str
    path: str

    def __str__(self) -> str:
        where = f" in {', '.join(self.modules)}" if any(self.modules) else ""
        return f"{self.kernel} ({self.level}){where}: {self.detail}; see {self.path}"


@dataclass(frozen=True, slots=True)
class Check:
    """What `fuseopt.check` found; true where everything agrees.

    values: results, then gradients of inputs, then of parameters. sites: where a value disagrees,
    each kernel of a run by itself, in the order of the run.
    """

    values: tuple[Compared, ...]
    sites: tuple[Site, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every value agrees."""
        return all(v.passed for v in self.values)

    @property
    def first(self) -> Site | None:
        """The first kernel that disagrees by itself with the operations it replaces."""
        return next((s for s in self.sites if not s.passed), None)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        worst = max(self.values, key=lambda v: v.error - 2 * v.eager_error, default=None)
        if self.passed:
            text = f"{len(self.values)} tensors agree"
            return f"{text}; worst {_line(worst)}" if worst is not None else text
        wrong = [v for v in self.values if not v.passed]
        lines = [f"{len(wrong)} of {len(self.values)} tensors disagree"]
        lines += [f"  {_line(v)}" for v in wrong[:10]]
        if self.first is not None:
            lines.append(f"first kernel to disagree: {self.first}")
        elif self.sites:
            lines.append(f"each of the {len(self.sites)} kernels agrees by itself")
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        return Text(str(self))


def check(
    model: Any,
    optimized: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Check:
    """Compare an optimised model with its original on given inputs.

    model: the original, an `nn.Module` or a function. optimized: what `fuseopt.optimize` returned
    for it, or anything else that is called alike. args, kwargs: inputs, passed to both.

    Both run once from the same random state, and the original in float64 as the truth. With
    gradients enabled, those of all floating-point inputs and of all parameters that need them are
    compared too, for random gradients of the results. Parameters, buffers, `.grad` and random
    states are left as they were. Where something disagrees, each fused kernel is run next to the
    operations it replaces, and the first that disagrees is named.

    Raises `UsageError` where the results of the two are not made alike, or dropout is active on a
    GPU, where kernels draw other random numbers than PyTorch does.
    """
    kwargs = dict(kwargs or {})
    _refuse_dropout(model, args, kwargs)
    original = _Run(model, model, args, kwargs)
    ours = _Run(optimized, optimized if isinstance(optimized, nn.Module) else model, args, kwargs)
    wide = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
    truth = _Run(wide, wide, *pytree.tree_map(widened, (tuple(args), kwargs)))
    found = []
    for run in (ours, original, truth):
        with _kept_state(model):
            found.append(run.values())
    if not len(found[0]) == len(found[1]) == len(found[2]):
        raise UsageError("the optimised model gives another number of tensors than the original")
    limit = DEPTH * LIMITS[_precision(model, args, kwargs)]
    values = tuple(
        Compared(name, _error(mine, theirs, exact), distance(theirs, exact), limit)
        for (name, mine), (_, theirs), (_, exact) in zip(*found, strict=True)
    )
    if all(v.passed for v in values):
        return Check(values)
    values = _excused(values, found[2], model, args, kwargs)
    if all(v.passed for v in values):
        return Check(values)
    return Check(values, tuple(_sites(model, optimized, args, kwargs)))


def _error(mine: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> float:
    """How far ours is from the exact value; infinite where its dtype is not the original's."""
    return distance(mine, exact) if mine.dtype == theirs.dtype else math.inf


def _excused(
    values: Sequence[Compared],
    truth: Sequence[tuple[str, torch.Tensor]],
    model: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Compared, ...]:
    """Values whose original's error is at least what the last digits of the model's numbers change.

    A gradient that cancels, as that of a bias of keys, is made of nothing else.
    """
    for seed in range(MOVES):
        inputs, structure = pytree.tree_flatten((tuple(args), kwargs))
        twin = model
        if isinstance(model, nn.Module):
            own = moved([p.detach() for p in model.parameters()], seed)
            twin = copy.deepcopy(model).double()
            for parameter, value in zip(twin.parameters(), own, strict=True):
                parameter.data.copy_(value)
        given = pytree.tree_unflatten(map(widened, moved(inputs, seed)), structure)
        with _kept_state(model):
            changed = _Run(twin, twin, *given).values()
        by = [distance(c, t) for (_, c), (_, t) in zip(changed, truth, strict=True)]
        values = [
            replace(v, eager_error=max(v.eager_error, e)) for v, e in zip(values, by, strict=True)
        ]
    return tuple(values)


def _sites(
    model: Any, optimized: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[Site]:
    """Run the model again with its kernels watched."""
    details = details_of(optimized)
    config = Config() if details is None else details.config
    watch = Watch()
    config = config.with_options(verify=False, mode="default")
    watched = optimize_callable(model, config, watch=watch)
    with _kept_state(model):
        _Run(watched, model, args, kwargs).values()
    yield from map(_site, watch.found)


def _site(seen: Watched) -> Site:
    modules = dict.fromkeys(node_info(n).module for n in seen.nodes)
    v = seen.verdict
    return Site(seen.kernel, seen.level, tuple(modules), v.passed, v.error, v.detail, seen.path)


def _line(value: Compared) -> str:
    return f"{value.name}: error {value.error:.2g}, the original's {value.eager_error:.2g}"


class _Run:
    """A call of one model, and the gradients of its results, by name."""

    def __init__(
        self, call: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.call = call
        self.inputs, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        is_module = isinstance(model, nn.Module)
        self.parameters = dict(model.named_parameters()) if is_module else {}

    def values(self) -> list[tuple[str, torch.Tensor]]:
        """Run, and return results and gradients."""
        inputs = [_leaf(i) for i in self.inputs]
        args, kwargs = pytree.tree_unflatten(inputs, self.structure)
        results = [
            t for t in pytree.tree_leaves(self.call(*args, **kwargs)) if isinstance(t, torch.Tensor)
        ]
        found = [(f"result {n}", t.detach()) for n, t in enumerate(results)]
        rooted = [t for t in results if t.requires_grad]
        if not rooted:
            return found
        wanted = [(f"gradient of input {n}", i) for n, i in enumerate(inputs) if _needs_gradient(i)]
        wanted += [
            (f"gradient of {name}", p) for name, p in self.parameters.items() if p.requires_grad
        ]
        gradients = torch.autograd.grad(
            rooted, [t for _, t in wanted], _drawn(rooted), allow_unused=True
        )
        for (name, _), gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                found.append((name, gradient))
        return found


def _leaf(value: Any) -> Any:
    """A copy that has gradients of its own, of a floating-point tensor."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_(torch.is_grad_enabled())
    return value.clone() if isinstance(value, torch.Tensor) else value


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _drawn(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the results, the same numbers whatever their dtype."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(r.shape, generator=generator).to(device=r.device, dtype=r.dtype)
        for r in results
    ]


@contextmanager
def _kept_state(model: Any) -> Iterator[None]:
    """Put buffers and random states back when a run is over."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    kept = [b.clone() for b in buffers]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in zip(buffers, kept, strict=True):
                buffer.copy_(before)


def _refuse_dropout(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in leaves)
    if not (on_gpu and isinstance(model, nn.Module)):
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
            raise UsageError(
                f"dropout is active in {name or 'the model'}, and kernels draw other random "
                "numbers than PyTorch: call .eval(), or set its p to 0"
            )


def _precision(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """The coarsest floating-point dtype of a model's parameters and inputs."""
    tensors = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors += list(model.parameters()) if isinstance(model, nn.Module) else []
    found = {t.dtype for t in tensors if isinstance(t, torch.Tensor)} & LIMITS.keys()
    return max(found, key=LIMITS.__getitem__, default=torch.float32)
