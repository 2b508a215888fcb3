"""What the parameters of a pattern stand for, by their annotations.

def pattern(x, mask: Mask, weight: Row, bias: Row | None, eps: float, groups: int): ...
"""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from fuseopt.errors import RuleError


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor annotation says beside being a tensor."""

    name: str


# Varies along the feature axis only, such as a norm's weight.
Row = Annotated[torch.Tensor, Kind("row")]
# Varies along one axis, which need not be the feature axis: groups divide the channels of a group
# norm, so its weight is no `Row`.
Channel = Annotated[torch.Tensor, Kind("channel")]
# A bool tensor, a function of any axes.
Mask = Annotated[torch.Tensor, Kind("mask")]

_KINDS: dict[Any, str] = {
    inspect.Parameter.empty: "tensor",
    torch.Tensor: "tensor",
    Row: "row",
    Channel: "channel",
    Mask: "mask",
    float: "float",
    int: "int",
}
TENSORS = ("tensor", "row", "channel", "mask")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. kind: "tensor", "row", "channel", "mask", "float", "int", or "absent"."""

    name: str
    kind: str
    optional: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor stands for it."""
        return self.kind in TENSORS


def parameters_of(function: Callable[..., Any], owner: str) -> tuple[Parameter, ...]:
    """Return a pattern's parameters; `RuleError` says what is wrong with its signature."""
    if not inspect.isfunction(function):
        raise RuleError(f"{owner}: {function!r} is not a Python function")
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise RuleError(
            f"{owner}: an annotation of {function.__name__} names what is not there: {error}"
        ) from None
    if not signature.parameters:
        raise RuleError(f"{owner}: {function.__name__} has no parameters, so nothing to match")
    return tuple(_parameter(p, function, owner) for p in signature.parameters.values())


def variants(parameters: tuple[Parameter, ...]) -> list[tuple[Parameter, ...]]:
    """Return the parameters with every choice of optional ones absent, all present first."""
    choices = [(p, replace(p, kind="absent")) if p.optional else (p,) for p in parameters]
    return sorted(itertools.product(*choices), key=lambda v: sum(p.kind == "absent" for p in v))


def _parameter(p: inspect.Parameter, function: Callable[..., Any], owner: str) -> Parameter:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise RuleError(f"{owner}: {function.__name__} takes {p}; name each parameter")
    if p.name in ("self", "cls"):
        raise RuleError(f"{owner}: {function.__name__} takes {p.name}; make it a @staticmethod")
    annotation, optional = p.annotation, False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(annotation) if a is not type(None)]
        optional = len(rest) < len(typing.get_args(annotation))
        annotation = rest[0] if len(rest) == 1 else annotation
    kind = _KINDS.get(annotation) if _is_hashable(annotation) else None
    if kind is None or (optional and kind not in TENSORS):
        raise RuleError(
            f"{owner}: {function.__name__} annotates {p.name} as {_text(p.annotation)}; known are "
            "nothing (any axes), Row, Channel, Mask, each with `| None`, and float and int"
        )
    return Parameter(p.name, kind, optional)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
