"""Recording what a pattern does: it runs on a tiny tensor of one row, and its calls are noted.

    x * scale    ->    aten.mul.Tensor(x, scale)

Scalar parameters are numbers found nowhere else, of a type that remembers arithmetic.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuseopt.errors import RuleError
from fuseopt.ir.dims import Size
from fuseopt.match import constants
from fuseopt.match.constants import Constant
from fuseopt.match.parameters import Parameter
from fuseopt.match.scalars import Scalar

FEATURES = "features"
SCALAR_VALUE = 0.618033988749  # over the parameter's place; no number that a pattern has itself


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a recording, by number."""

    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded call. line: the number of the pattern's line it was made from."""

    target: str
    args: Any
    kwargs: Any
    outputs: tuple[tuple[Ref, tuple[Size, ...], torch.dtype], ...]
    line: int


@dataclass(slots=True)
class Recording:
    """What a pattern did at one choice of sizes, or at all of them once fitted.

    known: what numbers in it stand for.
    """

    inputs: list[tuple[str, tuple[Size, ...], torch.dtype]]
    steps: list[Step] = field(default_factory=list)
    results: list[Ref] = field(default_factory=list)
    known: dict[float, Constant] = field(default_factory=dict)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dicts with a function of each leaf in its place."""
    if isinstance(value, (tuple, list)):
        mapped = [map_leaves(function, v) for v in value]
        return tuple(mapped) if isinstance(value, tuple) else mapped
    if isinstance(value, dict):
        return {k: map_leaves(function, v) for k, v in value.items()}
    return function(value)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(inner)
    else:
        yield value


def record_once(
    function: Callable[..., Any],
    parameters: Sequence[Parameter],
    sizes: Mapping[str, int],
    rows: int = 1,
    scalars: float = 1.0,
) -> Recording:
    """Run a pattern once, at given sizes, with scalars that many times as large as usual."""
    recording = Recording([])
    arguments: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    for number, parameter in enumerate(parameters):
        value = _argument(parameter, sizes, rows, scalars / (1 + number), recording)
        arguments[parameter.name] = value
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            recording.inputs.append((parameter.name, tuple(value.shape), value.dtype))
    with _disable_current_modes(), torch.no_grad():
        recorder = _Recorder(recording, tensors, function.__code__)
        try:
            with recorder:
                result = function(**arguments)
        except RuleError:
            raise
        except Exception as error:
            line = str(error).strip().splitlines() or [""]
            raise RuleError(
                f"the pattern {place_of(function)} raises {type(error).__name__}: {line[0]}"
            ) from error
    recording.results = recorder.results(function, result)
    return recording


def place_of(function: Callable[..., Any]) -> str:
    """Return a pattern's name and where it is written."""
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def line_text(function: Callable[..., Any], line: int) -> str:
    """Return a line of a pattern's source."""
    return linecache.getline(function.__code__.co_filename, line).strip()


def _argument(
    parameter: Parameter,
    sizes: Mapping[str, int],
    rows: int,
    scalar: float,
    recording: Recording,
) -> Any:
    count = sizes[FEATURES]
    match parameter.kind:
        case "absent":
            return None
        case "float":
            unknown = constants.unknown(constants.SCALAR + parameter.name)
            return Scalar.of(SCALAR_VALUE * scalar, unknown, recording.known)
        case "int":
            return sizes[parameter.name]
        # In float64, since oneDNN takes milliseconds to set up an activation in float32.
        case "row" | "channel":
            return torch.full((count,), 0.75, dtype=torch.float64)
        case "mask":
            return torch.ones(rows, count, dtype=torch.bool)
        case _:
            return torch.full((rows, count), 0.75, dtype=torch.float64)


class _Recorder(TorchDispatchMode):
    def __init__(self, recording: Recording, tensors: Sequence[torch.Tensor], code: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording
        self.code = code
        self.alive = list(tensors)
        self.refs = {id(t): Ref(n) for n, t in enumerate(tensors)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        args_noted = map_leaves(self._note, args)
        kwargs_noted = map_leaves(self._note, kwargs or {})
        made = result if isinstance(result, (tuple, list)) else (result,)
        target = str(func)
        if func._schema.is_mutable:
            target = self._functional(func, args)
        outputs = tuple(
            (self._made(t), tuple(t.shape), t.dtype) for t in made if isinstance(t, torch.Tensor)
        )
        self.recording.steps.append(Step(target, args_noted, kwargs_noted, outputs, self._line()))
        return result

    def _functional(self, func: Any, args: Any) -> str:
        """The op that an update in place is of: some composites of PyTorch use them."""
        namespace, name, overload = str(func).split(".")
        written = args[0] if args else None
        if not name.endswith("_") or not isinstance(written, torch.Tensor):
            raise RuleError(f"a pattern calls {func}, which writes to a tensor")
        storage = written.untyped_storage().data_ptr()
        if sum(t.untyped_storage().data_ptr() == storage for t in self.alive) > 1:
            raise RuleError(f"a pattern calls {func} on a view, or on a tensor that has views")
        del self.refs[id(written)]
        return f"{namespace}.{name[:-1]}.{overload}"

    def results(self, function: Callable[..., Any], result: Any) -> list[Ref]:
        """The numbers of what a pattern returned."""
        returned = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(t, torch.Tensor) for t in returned):
            raise RuleError(
                f"the pattern {place_of(function)} returns {type(result).__name__}; "
                "return a tensor, or a tuple of tensors with the matched value first"
            )
        return [self._note(t) for t in returned]

    def _note(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = self.refs.get(id(value))
        if known is None:
            raise RuleError("a pattern reads a tensor that is not one of its parameters")
        return known

    def _made(self, tensor: torch.Tensor) -> Ref:
        if id(tensor) not in self.refs:
            self.alive.append(tensor)
            self.refs[id(tensor)] = Ref(len(self.alive) - 1)
        return self.refs[id(tensor)]

    def _line(self) -> int:
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code is self.code:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return self.code.co_firstlineno
