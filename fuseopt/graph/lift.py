"""Lifting: from FX nodes to tensor expressions, with the rest of the graph as inputs.

    relu = aten.relu(x); add = aten.add(relu, y)     lift([relu, add])  ->  add: max(i0, 0) + i1

Views and constants outside the lifted nodes are looked through, so that a region reads the tensor
below them: they cost an index, not a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Arena, Expr
from fuseopt.ops import OPS, Call, NotExpressible, TensorMeta
from fuseopt.ops.declare import SUPPORTED_DTYPES, as_stored, convert, expand, fits

FREE_FORMS = ("view", "create")

COMPARED = "compared"  # the mark of a node whose result is rounded where it is made


@dataclass(slots=True)
class Lifted:
    """Expressions of some nodes.

    inputs: the nodes read from memory, in order of first use.
    through: nodes outside the region that are looked through.
    symbols: the graph's size symbols and the ones that stand for them here, `size0`, `size1`, ...
        in order of first use, so that equal code in different graphs lifts to the same.
    """

    arena: Arena
    inputs: list[fx.Node] = field(default_factory=list)
    through: list[fx.Node] = field(default_factory=list)
    exprs: dict[fx.Node, Any] = field(default_factory=dict)
    symbols: dict[Any, Any] = field(default_factory=dict)

    def size(self, value: Any) -> Size:
        """Return the size that an int or SymInt stands for, in the symbols of this lifting."""
        size = dims.size_of(value)
        if isinstance(size, int):
            return size
        for symbol in sorted(dims.symbols_in(size), key=str):
            if symbol not in self.symbols:
                self.symbols[symbol] = dims.symbol(f"size{len(self.symbols)}")
        return dims.as_size(size.subs(self.symbols, simultaneous=True))

    def shape(self, sizes: Iterable[Any]) -> tuple[Size, ...]:
        """Return the sizes of a tensor's shape or strides."""
        return tuple(map(self.size, sizes))


def target_name(node: fx.Node) -> str:
    """Return a node's ATen overload, such as "aten.add.Tensor", or "getitem"."""
    if node.op != "call_function":
        return node.op
    return "getitem" if node.target is operator.getitem else str(node.target)


def tensors_of(node: fx.Node) -> tuple[torch.Tensor, ...]:
    """Return the fake tensors that a node gives; what is not a tensor is skipped."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(v for v in values if isinstance(v, torch.Tensor))


def is_free(node: fx.Node) -> bool:
    """Whether a node costs no kernel inside a region: a view, a constant, one output of several."""
    if target_name(node) == "getitem":
        source = node.args[0]
        return isinstance(source, fx.Node) and is_free(source)
    declared = OPS.get(target_name(node))
    return declared is not None and declared.form in FREE_FORMS


def lift(nodes: Sequence[fx.Node], inline: Callable[[fx.Node], bool] = is_free) -> Lifted:
    """Lift nodes given in graph order. Raises `NotExpressible` with the reason where one cannot be.

    inline: which nodes outside `nodes` are looked through instead of being read from memory.
    """
    return _Lifting(frozenset(nodes), inline).run(nodes)


class _Lifting:
    def __init__(self, nodes: frozenset[fx.Node], inline: Callable[[fx.Node], bool]) -> None:
        self.nodes = nodes
        self.inline = inline
        self.lifted = Lifted(Arena())

    def run(self, nodes: Iterable[fx.Node]) -> Lifted:
        for node in nodes:
            self.lifted.exprs[node] = self.define(node)
        return self.lifted

    def value(self, node: fx.Node) -> Any:
        """The expression of a node, lifted where it belongs to the region or is looked through."""
        known = self.lifted.exprs.get(node)
        if known is None:
            if node in self.nodes:
                known = self.define(node)
            elif self._looked_through(node):
                known = self.define(node)
                self.lifted.through.append(node)
            else:
                known = self.read(node)
            self.lifted.exprs[node] = known
        return known

    def _looked_through(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if target_name(node) == "getitem":
            source = node.args[0]
            return isinstance(source, fx.Node) and (
                source in self.nodes or self._looked_through(source)
            )
        return self.inline(node)

    def read(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return self.lifted.size(value)
        if isinstance(value, (int, float, bool)):
            return value
        if not isinstance(value, torch.Tensor):
            raise NotExpressible(f"{node.name} is a {type(value).__name__}")
        check_dtype(value.dtype)
        self.lifted.inputs.append(node)
        return self.lifted.arena.input(
            len(self.lifted.inputs) - 1, self.lifted.shape(value.shape), value.dtype
        )

    def define(self, node: fx.Node) -> Any:
        name = target_name(node)
        if name == "getitem":
            source, place = node.args
            assert isinstance(source, fx.Node)
            return self.value(source)[place]
        declared = OPS.get(name)
        if declared is None:
            raise NotExpressible(f"{name} is not declared")
        args, kwargs = bind_arguments(node)
        args = fx.map_arg(args, self.value)
        kwargs = fx.map_arg(kwargs, self.value)
        outputs = tuple(TensorMeta(self.lifted.shape(t.shape), t.dtype) for t in tensors_of(node))
        for output in outputs:
            check_dtype(output.dtype)
        if outputs and declared.form != "create":
            _check_numbers(node, args, kwargs, outputs[0].dtype)
        call = Call(self.lifted.arena, name, outputs)
        try:
            made = declared.define(call, *args, **kwargs)
        except ValueError as error:  # sizes that PyTorch found equal, and we cannot prove to be
            raise NotExpressible(str(error)) from None
        if not isinstance(made, tuple):
            result = _as_output(made, outputs[0])
            return as_stored(result) if node.meta.get(COMPARED) else result
        return tuple(
            e if e is None else _as_output(e, m) for e, m in zip(made, outputs, strict=False)
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Raise `NotExpressible` for a dtype that kernels do not handle."""
    if dtype not in SUPPORTED_DTYPES:
        raise NotExpressible(f"dtype {dtype}")


def _check_numbers(
    node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> None:
    """Refuse a number that the output's dtype cannot hold: PyTorch raises, or makes it infinite."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        is_unfit = isinstance(value, (int, float)) and not fits(value, dtype)
        if is_unfit and "number" in str(argument.type):
            raise NotExpressible(f"{value} does not fit {dtype}")


def _as_output(made: Expr, meta: TensorMeta) -> Expr:
    if len(made.shape) > len(meta.shape):
        raise AssertionError(f"definition gives shape {made.shape}, PyTorch {meta.shape}")
    return expand(convert(made, meta.dtype), meta.shape)


def bind_arguments(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a node's arguments with those of the schema that may be positional made so."""
    if not node.kwargs or not isinstance(node.target, torch._ops.OpOverload):
        return tuple(node.args), dict(node.kwargs)
    args = list(node.args)
    kwargs = dict(node.kwargs)
    for argument in node.target._schema.arguments[len(args) :]:
        if argument.kwarg_only:
            break
        if argument.name not in kwargs and not any(
            a.name in kwargs for a in node.target._schema.arguments if not a.kwarg_only
        ):
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    return tuple(args), kwargs
