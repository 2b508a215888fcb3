"""Finding cross-entropy of a linear layer in Dynamo's graph, and what lies between the two.

    logits = F.linear(x, w); z = logits.float()[..., :-1, :].view(-1, 1000)
    loss = F.cross_entropy(z, t)            ->  Head(x, w, None, t, steps (getitem, view), ...)

Between the layer and its loss may stand what does not mix classes: casts, views and slices of rows,
transpositions, products with numbers, a cap (tanh). Dynamo's graph has what the model calls, before
autograd and with the model's own names, so an op is known by name and a value by its example.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_CASTS = frozenset("float double half bfloat16 to type type_as contiguous clone".split())
_SHAPES = frozenset("view reshape flatten unflatten".split())
_ORDERS = frozenset("transpose swapaxes permute movedim unsqueeze".split())
_PRODUCTS = frozenset("mul imul mul_ multiply".split())
_QUOTIENTS = frozenset("truediv itruediv div div_ divide".split())
_TANH = frozenset("tanh tanh_".split())
_MATMULS = frozenset("matmul mm".split())
_WRITING = frozenset("setitem iadd isub imul itruediv ifloordiv ipow imatmul iand ior ixor".split())
_TURNS = frozenset("t T mT".split())
_CROSS_ENTROPY = (
    "input target weight size_average ignore_index reduce reduction label_smoothing".split()
)
_NLL = _CROSS_ENTROPY[:-1]
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Head:
    """A linear layer whose only use is a cross-entropy.

    hidden, weight, bias: the layer's operands; turned: the weight is [features, classes].
    steps: the nodes from the layer, which is first, to the loss, which is last.
    moves: those of them that rearrange rows. class_dim: the loss's dimension of classes.
    inner, squash, outer: as in `HeadLoss`.
    """

    linear: fx.Node
    loss: fx.Node
    hidden: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    turned: bool
    target: fx.Node
    steps: tuple[fx.Node, ...]
    moves: tuple[fx.Node, ...]
    class_dim: int
    ignore_index: int
    smoothing: float
    mean: bool
    inner: float = 1.0
    squash: bool = False
    outer: float = 1.0

    @property
    def features(self) -> int:
        """The length of a row of hidden values."""
        return int(shape_of(self.weight)[0 if self.turned else 1])


@dataclass(frozen=True, slots=True)
class Missed:
    """A linear layer and a loss of what it gives that do not make a head.

    reason: why not, as a sentence. culprit: the node it is about.
    """

    linear: fx.Node
    loss: fx.Node
    reason: str
    culprit: fx.Node


def find_heads(graph: fx.Graph) -> Iterator[Head | Missed]:
    """Yield the cross-entropies of linear layers in a Dynamo graph, in order."""
    for node in graph.nodes:
        if name_of_op(node) in ("cross_entropy", "nll_loss"):
            found = _Walk(node).run()
            if found is not None:
                yield found


def name_of_op(node: fx.Node) -> str:
    """Return the name of what a node calls, "" where that is not PyTorch's or Python's."""
    target = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return ""
    if target is getattr:
        return str(node.args[1])
    if isinstance(target, (HigherOrderOperator, OpOverload, OpOverloadPacket)):
        return ""
    home = getattr(target, "__module__", None) or ""
    if home.partition(".")[0] not in ("torch", "_operator", ""):
        return ""
    return getattr(target, "__name__", "")


def example(node: Any) -> torch.Tensor | None:
    """Return the fake tensor that Dynamo has for a node."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    """Return the shape of a node's tensor."""
    value = example(node)
    assert value is not None
    return tuple(value.shape)


def is_linear(node: fx.Node) -> bool:
    """Whether a node is a product with a matrix: F.linear, or matmul with a second matrix."""
    name = name_of_op(node)
    if example(node) is None or name not in ("linear", *_MATMULS) or node.op == "call_method":
        return False
    matrix = example(node.args[1]) if len(node.args) > 1 else None
    return matrix is not None and matrix.dim() == 2 and example(node.args[0]) is not None


class _StopError(Exception):
    """Why a head does not go: a sentence and the node."""

    def __init__(self, reason: str, culprit: fx.Node) -> None:
        super().__init__(reason)
        self.reason = reason
        self.culprit = culprit


@dataclass(slots=True)
class _Walk:
    """From a loss up to its linear layer, then down again, accounting for each step."""

    loss: fx.Node
    class_dim: int = -1
    inner: float = 1.0
    outer: float = 1.0
    squash: bool = False
    is_logarithm: bool = False
    moves: list[fx.Node] = field(default_factory=list)

    def run(self) -> Head | Missed | None:
        given = self._arguments()
        steps = self._up(given.get("input"))
        if not steps:
            return None
        linear = steps[0]
        try:
            return self._head(steps, given)
        except _StopError as stop:
            return Missed(linear, self.loss, stop.reason, stop.culprit)

    def _arguments(self) -> dict[str, Any]:
        names = _CROSS_ENTROPY if name_of_op(self.loss) == "cross_entropy" else _NLL
        return {**dict(zip(names, self.loss.args, strict=False)), **self.loss.kwargs}

    def _up(self, node: Any) -> list[fx.Node]:
        """The nodes from the linear layer to the loss, empty where there is no such layer."""
        steps = [self.loss]
        while isinstance(node, fx.Node) and example(node) is not None:
            steps.append(node)
            if is_linear(node):
                return steps[::-1]
            if node.op not in ("call_function", "call_method"):
                break
            tensors = [n for n in node.all_input_nodes if example(n) is not None]
            node = tensors[0] if tensors else None
        return []

    def _head(self, steps: list[fx.Node], given: dict[str, Any]) -> Head:
        linear = steps[0]
        self._check_loss(linear, given)
        for node, user in itertools.pairwise(steps):
            for other in node.users:
                if other is not user:
                    what = "returned" if other.op == "output" else f"used by {other.name}"
                    raise _StopError(f"its logits are also {what}", other)
        self._check_between(steps)
        self.class_dim = len(shape_of(linear)) - 1
        for node in steps[1:-1]:
            self._step(node)
        self._check_end(steps[-2], given)
        is_plain = name_of_op(linear) == "linear"
        weight, turned = _untransposed(linear.args[1], turned=not is_plain)
        bias = (linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")) or None
        if not isinstance(shape_of(weight)[0 if turned else 1], int):
            raise _StopError("the number of features varies", linear)
        hidden = linear.args[0]
        assert isinstance(hidden, fx.Node)
        return Head(
            linear=linear,
            loss=self.loss,
            hidden=hidden,
            weight=weight,
            bias=bias if isinstance(bias, fx.Node) else None,
            turned=turned,
            target=given["target"],
            steps=tuple(steps),
            moves=tuple(self.moves),
            class_dim=self.class_dim,
            ignore_index=given.get("ignore_index", -100),
            smoothing=float(given.get("label_smoothing", 0.0)),
            mean=given.get("reduction", "mean") == "mean",
            inner=self.inner,
            squash=self.squash,
            outer=self.outer,
        )

    def _check_loss(self, linear: fx.Node, given: dict[str, Any]) -> None:
        reduction = given.get("reduction", "mean")
        if reduction not in ("mean", "sum") or given.get("reduce") is not None:
            raise _StopError(
                f"the loss has reduction {reduction!r}: a loss for each row", self.loss
            )
        if given.get("size_average") is not None:
            raise _StopError("the loss is given size_average", self.loss)
        if given.get("weight") is not None:
            raise _StopError("the loss has a weight for each class", self.loss)
        if not isinstance(given.get("ignore_index", -100), int):
            raise _StopError("ignore_index is known only when the model runs", self.loss)
        target = example(given.get("target"))
        if target is None or target.dtype != torch.int64:
            raise _StopError("the targets are not class numbers", self.loss)
        logits = example(linear)
        assert logits is not None
        if logits.dtype not in _FLOATS or logits.dim() < 2:
            raise _StopError(f"logits are {logits.dtype} of {logits.dim()} dimensions", linear)
        if not isinstance(logits.shape[-1], int):
            raise _StopError("the number of classes varies", linear)

    def _check_between(self, steps: list[fx.Node]) -> None:
        """The operator reads where the loss stands what the layer reads earlier."""
        node = steps[0]
        while node is not self.loss:
            if node not in steps and _writes(node):
                text = "something is written to in place between the layer and its loss"
                raise _StopError(text, node)
            node = node.next

    def _check_end(self, last: fx.Node, given: dict[str, Any]) -> None:
        if self.is_logarithm != (name_of_op(self.loss) == "nll_loss"):
            raise _StopError("the loss is not that of one log-softmax", self.loss)
        if self.class_dim != 1:
            raise _StopError("the loss runs over other classes than the layer's", last)
        if len(shape_of(given["target"])) != len(shape_of(last)) - 1:
            raise _StopError("the targets are not class numbers", self.loss)

    # --- one step at a time ---------------------------------------------------------------------

    def _step(self, node: fx.Node) -> None:
        name = name_of_op(node)
        number = _other_operand(node)
        if name in _CASTS:
            self._cast(node)
        elif name in _SHAPES:
            self._reshaped(node)
        elif name in _ORDERS:
            self._reordered(node, name)
        elif name == "getitem":
            self._sliced(node)
        elif name == "log_softmax" and not self.is_logarithm:
            self._logarithm(node)
        elif self.is_logarithm:
            raise _StopError(f"log-softmax goes through {name or node.name} before the loss", node)
        elif name in _PRODUCTS and number is not None:
            self._scale(number)
        elif name in _QUOTIENTS and number and node.args[0] in node.all_input_nodes:
            self._scale(1.0 / number)
        elif name in _TANH and not self.squash:
            self.squash = True
        else:
            raise _StopError(f"its logits go through {name or node.name} before the loss", node)

    def _scale(self, number: float) -> None:
        if self.squash:
            self.outer *= number
        else:
            self.inner *= number

    def _cast(self, node: fx.Node) -> None:
        source, made = example(node.args[0]), example(node)
        if source is None or made is None or made.device != source.device:
            raise _StopError("its logits are moved to another device", node)
        if made.dtype not in _FLOATS or (made.dtype == torch.float64) != (
            source.dtype == torch.float64
        ):
            raise _StopError(f"its logits are converted to {made.dtype}", node)

    def _logarithm(self, node: fx.Node) -> None:
        rank = len(shape_of(node))
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if not isinstance(dim, int) or dim % rank != self.class_dim:
            raise _StopError("log-softmax runs over another dimension than the classes", node)
        self.is_logarithm = True

    def _reshaped(self, node: fx.Node) -> None:
        before, after = shape_of(node.args[0]), shape_of(node)  # type: ignore[arg-type]
        fits = self.class_dim == len(before) - 1 and after and after[-1] is not None
        if not fits or not isinstance(after[-1], int) or after[-1] != before[-1]:
            raise _StopError("a view of its logits takes classes apart", node)
        varying = sum(not isinstance(size, int) for size in after)
        if varying > 1 and name_of_op(node) not in ("view", "reshape"):
            raise _StopError("a view of its logits has several sizes that vary", node)
        self.class_dim = len(after) - 1
        self.moves.append(node)

    def _reordered(self, node: fx.Node, name: str) -> None:
        rank = len(shape_of(node))
        dims = _numbers(node.args[1:])
        if dims is None or node.kwargs:
            raise _StopError(f"{name} of its logits is not by plain numbers", node)
        order = list(range(rank))
        if name in ("transpose", "swapaxes"):
            a, b = dims
            order[a], order[b] = order[b], order[a]
        elif name == "permute":
            order = [d % rank for d in dims]
        elif name == "movedim" and len(dims) == 2:
            order.insert(dims[1] % rank, order.pop(dims[0] % rank))
        elif name == "unsqueeze":
            order = list(range(rank - 1))
            order.insert(dims[0] % rank, -1)
        else:
            raise _StopError(f"{name} of several dimensions of its logits", node)
        self.class_dim = order.index(self.class_dim)
        self.moves.append(node)

    def _sliced(self, node: fx.Node) -> None:
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        rank = len(shape_of(node.args[0]))  # type: ignore[arg-type]
        if not all(isinstance(i, slice) or i is Ellipsis for i in index):
            raise _StopError("an index of its logits is not a slice", node)
        full = [i for i in index if i is not Ellipsis]
        at = next((n for n, i in enumerate(index) if i is Ellipsis), len(index))
        spread = [*index[:at], *[slice(None)] * (rank - len(full)), *index[at + 1 :]]
        if spread[self.class_dim] != slice(None):
            raise _StopError("a slice of its logits leaves classes out", node)
        self.moves.append(node)


def _writes(node: fx.Node) -> bool:
    """Whether a node may write to a tensor that others read."""
    target = node.target
    if isinstance(target, OpOverload):
        return bool(target._schema.is_mutable)
    if isinstance(target, (HigherOrderOperator, OpOverloadPacket)):
        return True
    name = name_of_op(node)
    in_place = name.endswith("_") and not name.startswith("_")
    return in_place or name in _WRITING or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _other_operand(node: fx.Node) -> float | None:
    """The number among a node's two operands, None where there is none."""
    if len(node.args) != 2 or node.kwargs:
        return None
    numbers = [a for a in node.args if isinstance(a, (int, float))]
    return float(numbers[0]) if len(numbers) == 1 else None


def _numbers(args: tuple[Any, ...]) -> list[int] | None:
    flat = list(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else list(args)
    return flat if flat and all(isinstance(a, int) for a in flat) else None


def _untransposed(weight: Any, *, turned: bool) -> tuple[fx.Node, bool]:
    """A weight, or what it is the transpose of; and whether that is [features, classes]."""
    while isinstance(weight, fx.Node) and _is_turn(weight):
        weight, turned = weight.args[0], not turned
    assert isinstance(weight, fx.Node)
    return weight, turned


def _is_turn(node: fx.Node) -> bool:
    if example(node) is None or len(shape_of(node)) != 2:
        return False
    name, dims = name_of_op(node), [d % 2 for d in _numbers(node.args[1:]) or ()]
    swaps = name in ("transpose", "swapaxes") and len(set(dims)) == 2
    return name in _TURNS or swaps or (name == "permute" and dims == [1, 0])
