"""Expressions to put in for a pattern's parameters: whatever stands there, it must be found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Substitution:
    """An expression of some values of one kind. text: how it is shown."""

    text: str
    function: Callable[..., Any]
    kind: str

    @property
    def names(self) -> tuple[str, ...]:
        """The values it is made of."""
        return tuple(inspect.signature(self.function).parameters)


def _of(kind: str, expressions: dict[str, Callable[..., Any]]) -> tuple[Substitution, ...]:
    return tuple(Substitution(text, function, kind) for text, function in expressions.items())


_ANY: dict[str, Callable[..., Any]] = {
    "y + z": lambda y, z: y + z,
    "y - z": lambda y, z: y - z,
    "y * z": lambda y, z: y * z,
    "2 * y": lambda y: 2.0 * y,
    "-y": lambda y: -y,
    "y / 3": lambda y: y / 3.0,
    "y * y": lambda y: y * y,
    "y + 1": lambda y: y + 1.0,
    "exp(y)": lambda y: y.exp(),
    "sigmoid(y)": lambda y: y.sigmoid(),
    "tanh(y)": lambda y: y.tanh(),
    "relu(y)": lambda y: y.relu(),
    "silu(y) * z": lambda y, z: F.silu(y) * z,
    "softmax(y)": lambda y: F.softmax(y, -1),
    "log_softmax(y)": lambda y: F.log_softmax(y, -1),
    "layer_norm(y)": lambda y: F.layer_norm(y, y.shape[-1:]),
    "rms_norm(y)": lambda y: F.rms_norm(y, y.shape[-1:], None, 1e-6),
    "y - mean(y)": lambda y: y - y.mean(-1, keepdim=True),
    "where(y > 0, y, z)": lambda y, z: torch.where(y > 0, y, z),
    "y.bfloat16().double()": lambda y: y.bfloat16().double(),
    "flip(y)": lambda y: y.flip(-1),
    "cat(y[half:], z[:half])": lambda y, z: torch.cat(
        [y[..., y.shape[-1] // 2 :], z[..., : y.shape[-1] // 2]], -1
    ),
}
_ROWS: dict[str, Callable[..., Any]] = {
    "1 + w": lambda w: 1.0 + w,
    "2 * w": lambda w: 2.0 * w,
    "w + v": lambda w, v: w + v,
    "w * v": lambda w, v: w * v,
    "exp(w)": lambda w: w.exp(),
    "w.bfloat16().double()": lambda w: w.bfloat16().double(),
}
_MASKS: dict[str, Callable[..., Any]] = {
    "~m": lambda m: ~m,
    "m & n": lambda m, n: m & n,
    "m | n": lambda m, n: m | n,
}

# By the kind of parameter that they stand for.
SUBSTITUTIONS: dict[str, tuple[Substitution, ...]] = {
    "tensor": _of("tensor", _ANY),
    "row": _of("row", _ROWS),
    "channel": _of("channel", _ROWS),
    "mask": _of("mask", _MASKS),
}
