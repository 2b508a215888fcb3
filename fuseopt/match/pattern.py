"""A pattern, lifted once: the term of its first output, sizes and scalars being unknowns in it.

    def pattern(x, weight: Row, eps: float): return F.rms_norm(x, x.shape[-1:], weight, eps)
    ->  features**0.5 * x[a1] * weight[a1] * (features * eps + sum_r x[r]**2)**-0.5

A pattern is written for a matrix of rows and features, and recorded with a single row: the rows'
axis disappears, so that whatever axes a site has beside the feature axis are allowed for.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseopt.errors import RuleError
from fuseopt.ir.expr import Arena, Expr, Shape
from fuseopt.match.constants import Constant
from fuseopt.match.erase import Erasure
from fuseopt.match.fit import record
from fuseopt.match.indices import Axis
from fuseopt.match.parameters import Parameter
from fuseopt.match.record import Recording, Ref, line_text, map_leaves, place_of
from fuseopt.match.shadow import Shadow
from fuseopt.match.terms import Load, Table, Term
from fuseopt.match.traits import traits_of
from fuseopt.ops import OPS, Call, NotExpressible, TensorMeta
from fuseopt.ops.declare import convert, expand


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One variant of one pattern function.

    parameters: with those that are absent in this variant marked so.
    root: the term of the first output. shape: the sizes of that output, rows first.
    outputs: names and terms of the further outputs.
    features: what the size symbol "features" has to be multiplied by for the number of features.
    traits: what a site must contain for the pattern to match, see `fuseopt.match.traits`.
    lines: which line of the pattern gave a term, as text; found when first asked for.
    """

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    table: Table
    root: Term
    axis: Axis | None
    outputs: tuple[tuple[str, Term], ...]
    traits: frozenset[str]
    lines: Callable[[], Mapping[Term, str]]

    @property
    def name(self) -> str:
        """The function's name and place."""
        return place_of(self.function)

    @property
    def reduces(self) -> bool:
        """Whether it has a reduction, which says where the feature axis of a site is."""
        return any(t.startswith("fold:") for t in self.traits)

    @property
    def is_placed(self) -> bool:
        """Whether something in it depends on where the feature axis is."""
        return "pieces" in self.traits or any(p.kind == "row" for p in self.parameters)

    @property
    def is_trivial(self) -> bool:
        """Whether the pattern is any value."""
        return isinstance(self.root, Load)

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of that name."""
        return next(p for p in self.parameters if p.name == name)


def lift_pattern(function: Callable[..., Any], parameters: Sequence[Parameter]) -> Pattern:
    """Return a pattern function as a pattern. `RuleError` says what is wrong with it."""
    recording = record(function, parameters)
    exprs = lift_recording(function, recording)
    results = [exprs[r.number] for r in recording.results]
    erasure = Erasure()
    shadow = _PatternShadow(
        erasure,
        [erasure.of(e) for e in results],
        names=[name for name, _, _ in recording.inputs],
        kind="capture",
        known=recording.known,
    )
    root = shadow.term(results[0])
    names = _output_names(function, len(results))
    outputs = tuple((n, shadow.term(e)) for n, e in zip(names, results[1:], strict=True))
    _check(function, root, parameters, shadow.table)
    axes = [a for a in shadow.axes_of(results[0]) if a.extent != 1]
    return Pattern(
        function,
        tuple(parameters),
        shadow.table,
        root,
        axes[-1] if axes else None,
        outputs,
        traits_of(shadow.table, root),
        functools.cache(lambda: _lines(function, recording, exprs, shadow)),
    )


def lift_recording(function: Callable[..., Any], recording: Recording) -> dict[int, Expr]:
    """Return the expressions of a recording's tensors, by number."""
    return _Lifting(function, recording).run()


class _PatternShadow(Shadow):
    """The shadow of a pattern: numbers that stand for scalars become unknowns again."""

    def __init__(self, *args: Any, known: Mapping[float, Constant], **options: Any) -> None:
        self.known = known
        super().__init__(*args, **options)

    def constant(self, value: Any) -> Constant:
        if isinstance(value, float) and value in self.known:
            return self.known[value]
        return super().constant(value)


class _Lifting:
    def __init__(self, function: Callable[..., Any], recording: Recording) -> None:
        self.function = function
        self.recording = recording
        self.arena = Arena()
        self.exprs: dict[int, Expr] = {}

    def run(self) -> dict[int, Expr]:
        for number, (_, shape, dtype) in enumerate(self.recording.inputs):
            self.exprs[number] = self.arena.input(number, shape, dtype)
        for step in self.recording.steps:
            self._step(step)
        return self.exprs

    def _step(self, step: Any) -> None:
        declared = OPS.get(step.target)
        where = f"line {step.line} of the pattern {place_of(self.function)}"
        if declared is None:
            raise RuleError(f"{where} calls {step.target}, which has no definition in fuseopt.ops")
        args = map_leaves(self._value, step.args)
        kwargs = map_leaves(self._value, step.kwargs)
        outputs = tuple(TensorMeta(shape, dtype) for _, shape, dtype in step.outputs)
        try:
            made = declared.define(Call(self.arena, step.target, outputs), *args, **kwargs)
        except NotExpressible as reason:
            raise RuleError(f"{where} calls {step.target} in a way not covered: {reason}") from None
        results = made if isinstance(made, tuple) else (made,)
        for value, (ref, shape, dtype) in zip(results, step.outputs, strict=False):
            if isinstance(value, Expr):
                self.exprs[ref.number] = _shaped(value, shape, dtype)

    def _value(self, leaf: Any) -> Any:
        return self.exprs[leaf.number] if isinstance(leaf, Ref) else leaf


def _shaped(value: Expr, shape: Shape, dtype: Any) -> Expr:
    return expand(convert(value, dtype), shape)


def _lines(
    function: Callable[..., Any], recording: Recording, exprs: Mapping[int, Expr], shadow: Shadow
) -> dict[Term, str]:
    lines: dict[Term, str] = {}
    for step in recording.steps:
        text = line_text(function, step.line)
        for ref, _, _ in step.outputs:
            if ref.number in exprs:
                lines.setdefault(shadow.term(exprs[ref.number]), text)
    return lines


def _output_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the outputs after the first, as the return statement writes them."""
    names = [f"output{n}" for n in range(1, count)]
    if not names:
        return names
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return names
    returns = [n.value for n in ast.walk(tree) if isinstance(n, ast.Return)]
    for value in returns:
        if isinstance(value, ast.Tuple) and len(value.elts) == count:
            written = value.elts[1:]
            return [
                e.id if isinstance(e, ast.Name) else n for n, e in zip(names, written, strict=True)
            ]
    return names


def _check(
    function: Callable[..., Any], root: Term, parameters: Sequence[Parameter], table: Table
) -> None:
    from fuseopt.match.traits import captures_of

    used = captures_of(table, root)
    for parameter in parameters:
        if parameter.is_tensor and parameter.name not in used:
            raise RuleError(
                f"the pattern {place_of(function)} does not use {parameter.name} in its first "
                "output, so nothing could stand for it"
            )
