"""Evaluates a loop kernel with PyTorch, point by point but vectorised: a check on the lowering.

Slow and simple: each axis becomes one dimension of every intermediate. It shares nothing with the
Triton printer, so the two disagree where one is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fuseopt.ir import dims, index
from fuseopt.ir.combine import COMBINES
from fuseopt.ir.index import Axis, Index
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.ir.memory import memory_of
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.ir.values import Apply, Convert, Coordinate, Fold, Load, Number, Round, Value, walk


def evaluate(
    kernel: LoopKernel,
    inputs: Sequence[torch.Tensor],
    sizes: Mapping[Any, int] | None = None,
) -> list[torch.Tensor]:
    """Run the kernel on CPU tensors and return its outputs with their declared strides.

    inputs: one tensor per input parameter, of its dtype, shape and strides.
    sizes: the number that each size symbol stands for, where there are any.
    """
    return _Evaluation(kernel, inputs, dict(sizes or {})).run()


def evaluate_values(
    kernel: LoopKernel,
    inputs: Sequence[torch.Tensor],
    values: Sequence[Value],
    sizes: Mapping[Any, int] | None = None,
) -> list[torch.Tensor]:
    """Return some values of a kernel, one dimension for each axis; only what they need is read."""
    evaluation = _Evaluation(kernel, inputs, dict(sizes or {}))
    for value in walk(values):
        evaluation.done[id(value)] = evaluation._value(value)
    return [evaluation.done[id(v)] for v in values]


class _Evaluation:
    def __init__(
        self, kernel: LoopKernel, inputs: Sequence[torch.Tensor], sizes: dict[Any, int]
    ) -> None:
        self.kernel = kernel
        self.sizes = sizes
        self.flat = [memory_of(t) for t in inputs]
        self.done: dict[int, torch.Tensor] = {}
        self.axes: dict[Axis, torch.Tensor] = {}
        for i, axis in enumerate(kernel.axes):
            shape = [1] * len(kernel.axes)
            shape[i] = -1
            self.axes[axis] = torch.arange(dims.hint(axis.extent, sizes)).reshape(shape)

    def run(self) -> list[torch.Tensor]:
        outputs = [self._empty(p) for p in self.kernel.outputs]
        for value in self.kernel.values():
            self.done[id(value)] = self._value(value)
        for store in self.kernel.stores:
            where = self._index(store.index)
            written = self.done[id(store.value)].to(self.kernel.outputs[store.param].dtype)
            keep = self._all(store.guard)
            where, written, keep = torch.broadcast_tensors(where, written, keep)
            flat = memory_of(outputs[store.param])
            flat[where[keep]] = written[keep]
        return outputs

    def _empty(self, param: TensorParam) -> torch.Tensor:
        shape = [dims.hint(s, self.sizes) for s in param.shape]
        strides = [dims.hint(s, self.sizes) for s in param.strides]
        fill = float("nan") if param.dtype.is_floating_point else 0
        return torch.empty_strided(shape, strides, dtype=param.dtype).fill_(fill)

    def _index(self, where: Index) -> torch.Tensor:
        number = index.evaluate(_numeric(where, self.sizes), self.axes, lambda v: self.done[id(v)])
        return torch.as_tensor(number)

    def _all(self, guard: Sequence[Value]) -> torch.Tensor:
        keep = torch.tensor(True)
        for condition in guard:
            keep = keep & self.done[id(condition)]
        return keep

    def _value(self, value: Value) -> torch.Tensor:
        match value:
            case Load(param=param, index=where, guard=guard):
                keep, at = torch.broadcast_tensors(self._all(guard), self._index(where))
                loaded = self.flat[param][torch.where(keep, at, 0)]
                return torch.where(keep, loaded, torch.zeros((), dtype=loaded.dtype))
            case Coordinate(index=where):
                return self._index(where)
            case Number(dtype=dtype, value=number):
                plain = (
                    number
                    if isinstance(number, (bool, int, float))
                    else (dims.hint(number, self.sizes))
                )
                return torch.tensor(plain, dtype=dtype)
            case Apply(primitive=name, args=args):
                operands = torch.broadcast_tensors(*(self.done[id(a)] for a in args))
                return PRIMITIVES[name].function(*operands)
            case Convert(dtype=dtype, arg=arg):
                return self.done[id(arg)].to(dtype)
            case Round(dtype=dtype, arg=arg, to=to):
                return self.done[id(arg)].to(to).to(dtype)
            case Fold(combine=combine, arg=arg, over=over):
                return self._fold(combine, self.done[id(arg)], over)
            case _:
                raise AssertionError(f"unknown value {value}")

    def _fold(self, combine: str, arg: torch.Tensor, over: tuple[Axis, ...]) -> torch.Tensor:
        shape = [max(n, 1) for n in (1,) * (len(self.kernel.axes) - arg.dim()) + tuple(arg.shape)]
        places = tuple(self.kernel.axes.index(a) for a in over)
        for place, axis in zip(places, over, strict=True):
            shape[place] = dims.hint(axis.extent, self.sizes)
        return COMBINES[combine].function(arg.expand(shape), places).to(arg.dtype)


def _numeric(where: Index, sizes: dict[Any, int]) -> Index:
    if not sizes:
        return where
    terms = tuple((_numeric_atom(a, sizes), dims.hint(c, sizes)) for a, c in where.terms)
    return Index(dims.hint(where.const, sizes), terms)


def _numeric_atom(atom: Any, sizes: dict[Any, int]) -> Any:
    if isinstance(atom, (index.Quotient, index.Remainder)):
        return type(atom)(_numeric(atom.index, sizes), dims.hint(atom.divisor, sizes))
    return atom
