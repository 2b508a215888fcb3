"""Calling what a rule put in place of a match, so that what it gives fits where it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseopt.errors import KernelError


@dataclass(frozen=True, slots=True)
class Layout:
    """What a result must be: its dtype; shape and strides where they are the same on every call."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None

    @classmethod
    def of(cls, value: torch.Tensor) -> Layout:
        """Return the layout of a fake tensor."""
        sizes = (*value.shape, *value.stride())
        if not all(isinstance(s, int) for s in sizes):
            return cls(value.dtype, None, None)
        return cls(value.dtype, tuple(value.shape), value.stride())

    def fit(self, result: torch.Tensor, name: str) -> torch.Tensor:
        """Return a result in this layout; `KernelError` where its shape is another."""
        if self.shape is not None and tuple(result.shape) != self.shape:
            raise KernelError(f"{name} gives shape {tuple(result.shape)} instead of {self.shape}")
        result = result.to(self.dtype)
        if self.strides is None or result.stride() == self.strides:
            return result
        made = torch.empty_strided(
            result.shape, self.strides, dtype=self.dtype, device=result.device
        )
        return made.copy_(result)


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """A function of tensors in place of some nodes.

    arguments: a position among the tensors passed, or (as a float or in a tuple) a number.
    picks: which of what the function returns are wanted. layouts: what these must be.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...]
    picks: tuple[int, ...]
    layouts: tuple[Layout, ...]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Return one tensor, or a tuple of several."""
        given = [tensors[v] if kind == "tensor" else v for kind, v in self.arguments]
        with torch.no_grad():
            returned = self.function(*given)
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        if len(results) <= max(self.picks):
            raise KernelError(f"{self.name} gives {len(results)} results, too few")
        fitted = [self._fit(results, n) for n in range(len(self.picks))]
        return fitted[0] if len(fitted) == 1 else tuple(fitted)

    def _fit(self, results: Sequence[Any], number: int) -> torch.Tensor:
        result = results[self.picks[number]]
        if not isinstance(result, torch.Tensor):
            raise KernelError(f"{self.name} gives a {type(result).__name__}, not a tensor")
        return self.layouts[number].fit(result, self.name)
