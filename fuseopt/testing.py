"""`check_rule`: one call that tests a rule, for the tests of whoever writes one.

def test_my_rule():
    check_rule(MyRule)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.compiler import examine_graph
from fuseopt.config import Config, Environment
from fuseopt.errors import RuleError, VerificationError
from fuseopt.events import FellBack, Log, RolledBack, Verified
from fuseopt.graph.form import Input, NormalisedGraph
from fuseopt.match.constants import SCALAR, open_names
from fuseopt.match.erase import Erasure
from fuseopt.match.features import axis_places, reduced_places
from fuseopt.match.parameters import Parameter, parameters_of, variants
from fuseopt.match.pattern import Pattern, lift_recording
from fuseopt.match.record import FEATURES, Recording, Step, leaves_of, record_once
from fuseopt.match.registry import Registry, default_registry
from fuseopt.match.rules import Rule, check_rule_class, name_of, pattern_functions
from fuseopt.match.shadow import Shadow
from fuseopt.match.substitutions import SUBSTITUTIONS, Substitution
from fuseopt.match.terms import Add, Literal, Mul
from fuseopt.match.traits import reachable, traits_of
from fuseopt.match.unify import Matcher

SIZES = {FEATURES: 48}
WHOLE = 16  # what an `int` parameter is in samples
ROWS = 5
LARGEST_LITERAL = 8  # whole numbers from here on are taken for sizes
END = 2**31  # and no more from here on: PyTorch's slices end there


@dataclass(frozen=True, slots=True)
class RuleReport:
    """What `check_rule` found.

    patterns: how many variants of how many pattern functions were lifted.
    found: how many expressions put in for parameters the patterns were found with.
    lost: those they were not found with, as "pattern(x := expression)".
    overlaps: other rules that match this rule's own patterns.
    verified: kernels that agreed with the pattern, forward and backward, and the largest error.
    """

    rule: str
    patterns: int
    found: int
    lost: tuple[str, ...]
    overlaps: tuple[str, ...]
    verified: int
    error: float

    def __str__(self) -> str:
        lines = [
            f"rule {self.rule}: {self.patterns} patterns",
            f"  found with {self.found} of {self.found + len(self.lost)} expressions put in",
        ]
        lines += [f"    not: {text}" for text in self.lost]
        lines.append(f"  also matched by: {', '.join(self.overlaps) or 'no other rule'}")
        lines.append(f"  {self.verified} kernels agree, largest error {self.error:.1e}")
        return "\n".join(lines)


def check_rule(rule: Any, *, allow: Sequence[str] = ()) -> RuleReport:
    """Check a rule and return what was found.

    rule: a subclass of `fuseopt.rule.Rule`, or a (pattern, replacement) pair of functions.
    allow: parts of the report's names of expressions that a parameter need not stand for.

    The rule is validated and its patterns lifted at several sizes; every scalar must be seen in the
    pattern; each parameter is replaced by twenty expressions, with which the pattern must still be
    found; patterns of other rules are tried on it; and kernels for its patterns, forward and
    backward, are run through Triton's interpreter against the pattern in float64.

    Raises `RuleError` for a mistake in the rule, `AssertionError` for an expression with which a
    pattern is not found, `VerificationError` for a kernel that does not agree.
    """
    registry = Registry([rule])
    if registry.early:
        name = name_of(registry.early[0])
        raise RuleError(f"{name} is applied before autograd and is matched in no graph")
    (checked,) = registry.rules
    check_rule_class(checked)
    patterns = registry.patterns(checked)
    for pattern in patterns:
        _check_numbers(pattern)
        _check_scalars(pattern)
    found, lost = _substituted(checked, registry)
    unexpected = [text for text in lost if not any(a in text for a in allow)]
    if unexpected:
        raise AssertionError(f"{checked.__name__} is not found as {unexpected[0]}")
    log = _verified(checked, rule)
    verdicts = log.of(Verified)
    return RuleReport(
        rule=name_of(checked),
        patterns=len(patterns),
        found=found,
        lost=tuple(lost),
        overlaps=_overlaps(checked, registry),
        verified=len(verdicts),
        error=max((v.error for v in verdicts), default=0.0),
    )


# --- numbers --------------------------------------------------------------------------------------


def _check_numbers(pattern: Pattern) -> None:
    """Raise `RuleError` for a size that is written as a number."""
    one, other = (_recorded(pattern, times) for times in (1, 2))
    if [s.target for s in one.steps] != [s.target for s in other.steps]:
        raise RuleError(f"the pattern {pattern.name} does other things at other sizes")
    for step, again in zip(one.steps, other.steps, strict=True):
        for a, b in zip(_wholes(step), _wholes(again), strict=True):
            if a == b and LARGEST_LITERAL <= abs(a) < END:
                raise RuleError(
                    f"the pattern {pattern.name} has the number {a} for a size: take it from "
                    "x.shape, or make it an int parameter"
                )


def _recorded(pattern: Pattern, times: int = 1, scalars: float = 1.0) -> Recording:
    """What a pattern does at the sizes of samples, or at multiples, with other scalars or not."""
    sizes = {p.name: WHOLE * times for p in pattern.parameters if p.kind == "int"}
    sizes[FEATURES] = SIZES[FEATURES] * times
    return record_once(pattern.function, pattern.parameters, sizes, scalars=scalars)


def _wholes(step: Step) -> list[int]:
    leaves = leaves_of([step.args, step.kwargs])
    return [v for v in leaves if isinstance(v, int) and not isinstance(v, bool)]


def _check_scalars(pattern: Pattern) -> None:
    """Raise `RuleError` for a scalar that the pattern's term does not depend on, or not alone."""
    usual = [s.target for s in _recorded(pattern).steps]
    for factor in (0.1, 3.0):
        if [s.target for s in _recorded(pattern, scalars=factor).steps] != usual:
            raise RuleError(
                f"the pattern {pattern.name} does other things for other scalars: do not branch "
                "on them"
            )
    seen: set[str] = set()
    for term in reachable(pattern.table, pattern.root, depth=1000):
        match term:
            case Literal(value=value):
                seen |= open_names(value)
            case Add(const=const, parts=parts):
                seen |= open_names(const).union(*(open_names(c) for _, c in parts))
            case Mul(coefficient=coefficient):
                seen |= open_names(coefficient)
    for parameter in pattern.parameters:
        if parameter.kind == "float" and SCALAR + parameter.name not in seen:
            raise RuleError(
                f"the pattern {pattern.name} loses sight of {parameter.name}: compute with it by "
                "+ - * / and ** only"
            )


# --- substitution ---------------------------------------------------------------------------------


def _substituted(rule: type[Rule], registry: Registry) -> tuple[int, list[str]]:
    """Put expressions in for parameters; return how often a pattern was found, and where not."""
    found = 0
    lost: list[str] = []
    for function in pattern_functions(rule):
        for parameters in variants(parameters_of(function, rule.__name__)):
            for parameter in parameters:
                for one in SUBSTITUTIONS.get(parameter.kind, ()):
                    if _is_found(rule, registry, function, parameters, parameter, one):
                        found += 1
                    else:
                        lost.append(f"{function.__name__}({parameter.name} := {one.text})")
    return found, lost


def _is_found(
    rule: type[Rule],
    registry: Registry,
    function: Callable[..., Any],
    parameters: Sequence[Parameter],
    parameter: Parameter,
    one: Substitution,
) -> bool:
    def site(**given: Any) -> Any:
        own = {p: given.pop(f"{parameter.name}__{p}") for p in one.names}
        return function(**given, **{parameter.name: one.function(**own)})

    others = [p for p in parameters if p is not parameter]
    added = [replace(parameter, name=f"{parameter.name}__{p}", kind=one.kind) for p in one.names]
    sizes = SIZES | {p.name: WHOLE for p in parameters if p.kind == "int"}
    recording = record_once(site, [*others, *added], sizes, rows=ROWS)
    exprs = lift_recording(site, recording)
    erasure = Erasure()
    root = erasure.of(exprs[recording.results[0].number])
    for shared in (False, True):
        shadow = Shadow(erasure, [root], share_exponentials=shared)
        if any(_matches(p, shadow, root) for p in registry.patterns(rule)):
            return True
    return False


def _matches(pattern: Pattern, shadow: Shadow, root: Any) -> bool:
    if pattern.is_trivial:
        return True
    term = shadow.written_out(root)
    if not pattern.traits <= traits_of(shadow.table, term):
        return False
    places = [*reduced_places(shadow.table, term), *axis_places(shadow.axes_of(root))] or [()]
    matcher = Matcher(pattern, shadow.table, shadow.is_value)
    return any(matcher.root(term, place, partly=False) is not None for place in places)


# --- other rules ----------------------------------------------------------------------------------


def _overlaps(rule: type[Rule], registry: Registry) -> tuple[str, ...]:
    """The other rules that match what a rule's patterns compute."""
    others = [r for r in default_registry().rules if name_of(r) != name_of(rule)]
    found: dict[str, None] = {}
    for pattern in registry.patterns(rule):
        recording = _recorded(pattern)
        exprs = lift_recording(pattern.function, recording)
        erasure = Erasure()
        root = erasure.of(exprs[recording.results[0].number])
        shadow = Shadow(erasure, [root])
        for other in others:
            theirs = (p for p in default_registry().patterns(other) if not p.is_trivial)
            if any(p.traits <= pattern.traits and _matches(p, shadow, root) for p in theirs):
                found[name_of(other)] = None
    return tuple(found)


# --- numerics -------------------------------------------------------------------------------------


def _verified(checked: type[Rule], rule: Any) -> Log:
    """Build and check kernels for every pattern, forward and backward."""
    log = Log()
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(interpret=True, cache_dir=Path(folder))
        for function in pattern_functions(checked):
            parameters = variants(parameters_of(function, checked.__name__))[0]
            for dtype in (torch.float32, torch.bfloat16):
                given = _sample(parameters, dtype)
                forward, backward = _directions(function, parameters)
                _examine(forward, given, rule, environment, log)
                _examine(
                    backward,
                    [*given, _tangent(function, parameters, given)],
                    rule,
                    environment,
                    log,
                )
    return log


Given = list[torch.Tensor]


def _sample(parameters: Sequence[Parameter], dtype: torch.dtype) -> Given:
    """Tensors for the tensor parameters of a pattern."""
    generator = torch.Generator().manual_seed(7)
    count = SIZES[FEATURES]
    tensors: Given = []
    for parameter in parameters:
        if parameter.is_tensor:
            shape = (count,) if parameter.kind in ("row", "channel") else (ROWS, count)
            drawn = torch.randn(shape, generator=generator)
            tensors.append(drawn > 0.5 if parameter.kind == "mask" else drawn.to(dtype))
    return tensors


def _called(
    function: Callable[..., Any], parameters: Sequence[Parameter], tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The first output of a pattern."""
    left = iter(tensors)
    arguments: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        scalar: Any = 0.5**number if parameter.kind == "float" else WHOLE
        arguments[parameter.name] = next(left) if parameter.is_tensor else scalar
    result = function(**arguments)
    return result[0] if isinstance(result, tuple) else result


def _directions(
    function: Callable[..., Any], parameters: Sequence[Parameter]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (_called(function, parameters, tensors),)

    def backward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *inputs, tangent = tensors
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
            result = _called(function, parameters, leaves)
            wanted = [t for t in leaves if t.requires_grad]
            return torch.autograd.grad(result, wanted, tangent, allow_unused=True)

    return forward, backward


def _tangent(
    function: Callable[..., Any], parameters: Sequence[Parameter], given: Given
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    result = _called(function, parameters, given)
    return torch.randn(result.shape, generator=generator).to(result.dtype)


def _examine(
    function: Callable[..., Any], given: Given, rule: Any, environment: Environment, log: Log
) -> None:
    gm = make_fx(function, tracing_mode="fake")(*given)
    gm.graph.eliminate_dead_code()
    inputs = tuple(Input("input") for _ in given)
    graph = NormalisedGraph(gm, "inference", log.next_graph(), inputs)
    before = len(log.events)
    examine_graph(graph, Config(rules=(rule,)), environment, log)
    for event in log.events[before:]:
        if isinstance(event, (RolledBack, FellBack)):
            raise VerificationError(f"{event.reason}")
