"""Calls whose inputs share memory in another way than those that a graph was traced for.

    def f(x, y): y.add_(1); return x * 2            f(x, y)        the graph reads x as it was
                                                    f(y.t(), y)    what it reads has changed

Where an input is written, a graph is right for one way in which the caller's inputs overlap, each
other and the model's buffers. Dynamo knows one tensor passed twice from two tensors, but not views
of one memory from tensors apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from fuseopt.graph.form import Input

SHARED = "inputs share memory in another way than was compiled"

# For each two inputs that overlap: their places, and how many bytes apart they begin.
Overlaps = tuple[tuple[int, int, int], ...]


def overlap_test(
    inputs: Sequence[Input], examples: Sequence[Any], written: Collection[int]
) -> Callable[[Sequence[Any]], bool] | None:
    """Return a function that says whether inputs overlap as the examples do.

    written: the places of the inputs that the graph writes to. None where a graph is right however
    its inputs overlap: it writes to none of the tensors that could.
    """
    strided = [place for place, example in enumerate(examples) if _is_strided(example)]
    callers = [place for place in strided if inputs[place].kind == "input"]
    buffers = [place for place in strided if inputs[place].kind == "buffer"]
    places = (*callers, *buffers)
    if not callers or len(places) < 2 or not set(places) & set(written):
        return None
    # Buffers are the model's own, and lie where they lay when it was traced.
    pairs = [(a, b) for i, a in enumerate(callers) for b in places[i + 1 :]]
    traced = _overlaps(pairs, examples)

    def as_traced(values: Sequence[Any]) -> bool:
        first = [values[place].untyped_storage()._cdata for place in callers]
        rest = [values[place].untyped_storage()._cdata for place in buffers]
        apart = len(set(first)) == len(first) and set(first).isdisjoint(rest)
        return (() if apart else _overlaps(pairs, values)) == traced

    return as_traced


def held_to_overlaps(
    run: Callable[..., Any],
    as_written: Callable[..., Any],
    as_traced: Callable[[Sequence[Any]], bool] | None,
) -> Callable[..., Any]:
    """Return a function that runs what is compiled where the test allows, else `as_written`."""
    if as_traced is None:
        return run

    def call(*args: Any) -> Any:
        return (run if as_traced(args) else as_written)(*args)

    return call


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _overlaps(pairs: Sequence[tuple[int, int]], values: Sequence[Any]) -> Overlaps:
    found = []
    for a, b in pairs:
        first, second = values[a], values[b]
        if first.untyped_storage()._cdata == second.untyped_storage()._cdata:
            (start, end), (other_start, other_end) = _span(first), _span(second)
            if start < other_end and other_start < end:
                found.append((a, b, other_start - start))
    return tuple(found)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage between which a tensor lies."""
    shape, strides = map(_number, tensor.shape), map(_number, tensor.stride())
    sizes = list(zip(shape, strides, strict=True))
    count = 1 + sum((size - 1) * stride for size, stride in sizes)
    start = _number(tensor.storage_offset())
    end = start if any(size == 0 for size, _ in sizes) else start + count
    return start * tensor.itemsize, end * tensor.itemsize


def _number(size: Any) -> int:
    """A size, or its example value."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size
