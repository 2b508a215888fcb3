"""Whether a call's inputs are of the kind that a graph was made for, where no guard says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false


@dataclass(frozen=True, slots=True)
class Expected:
    """The inputs that a graph takes.

    examples: a fake tensor, or a plain or symbolic number, for each input.
    ranges: the least and greatest value (`lower`, `upper`) of each symbol in the examples' sizes.
    """

    examples: tuple[Any, ...]
    ranges: Mapping[Any, Any]

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the inputs have the dtypes, devices, layouts and sizes expected.

        An input that was contiguous has to be; sizes given by one symbol have to agree.
        """
        if len(inputs) != len(self.examples):
            return False
        sizes: list[tuple[Any, Any]] = []
        for value, example in zip(inputs, self.examples, strict=True):
            if isinstance(example, torch.Tensor):
                if not _is_like(value, example):
                    return False
                sizes += zip(value.shape, example.shape, strict=True)
            else:
                sizes.append((value, example))
        return self._sizes_fit(sizes)

    def _sizes_fit(self, sizes: list[tuple[Any, Any]]) -> bool:
        known: dict[Any, int] = {}
        derived: list[tuple[int, Any]] = []
        for value, size in sizes:
            if not isinstance(size, torch.SymInt):
                if value != size:
                    return False
            elif not size.node.expr.is_Symbol:
                derived.append((value, size.node.expr))
            elif known.setdefault(size.node.expr, value) != value:
                return False
        return all(map(self._is_in_range, known, known.values())) and all(
            expr.subs(known) == value for value, expr in derived
        )

    def _is_in_range(self, symbol: Any, value: int) -> bool:
        allowed = self.ranges.get(symbol)
        return allowed is None or bool(allowed.lower <= value <= allowed.upper)


def _is_like(value: Any, example: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is example.dtype
        and value.device.type == example.device.type
        and value.layout is example.layout
        and value.dim() == example.dim()
        and (value.is_contiguous() or not is_contiguous_or_false(example))
    )
