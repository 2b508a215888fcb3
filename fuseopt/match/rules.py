"""Rules: a pattern in plain PyTorch, what it must look like at a site, and what takes its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from fuseopt.errors import RuleError
from fuseopt.events import Reason
from fuseopt.match.parameters import parameters_of


@dataclass(frozen=True, slots=True)
class CrossedCast:
    """A conversion between dtypes inside a match."""

    node: fx.Node
    before: torch.dtype
    after: torch.dtype


@dataclass(frozen=True, slots=True)
class Match:
    """A place in a graph that computes what a pattern computes.

    rule: the rule's name. root: the node that gives the pattern's first output.
    axis: the dimension of the root that is the feature axis, None where it is several or a part.
    scalars: what the pattern's `float` and `int` parameters are; a sympy expression where that
        depends on a size of a dynamic graph.
    values: a node for each tensor parameter and each further output of the pattern; None where the
        value has no node of its own (twice a weight, two of three summands).
    nodes: the operations covered, in graph order. casts: conversions among them.
    escapes: covered nodes beside the root that something outside needs; they stay computed.
    rest: what the root's operation computes beyond the pattern, as text; "" where nothing.
    pattern: the name of the pattern function.
    """

    rule: str
    root: fx.Node
    axis: int | None
    scalars: Mapping[str, Any]
    values: Mapping[str, fx.Node | None]
    nodes: tuple[fx.Node, ...]
    casts: tuple[CrossedCast, ...] = ()
    escapes: tuple[fx.Node, ...] = ()
    rest: str = ""
    pattern: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the root computes the pattern and nothing else."""
        return not self.rest

    def node(self, name: str) -> fx.Node | None:
        """Return the node of a value; `KeyError` for a name that the pattern does not have."""
        return self.values[name]

    def __getitem__(self, name: str) -> Any:
        """A value's node, or a scalar."""
        return self.scalars[name] if name in self.scalars else self.values[name]


@dataclass(frozen=True, slots=True)
class Reject:
    """A rule's decision to decline a match: a sentence, the node it is about, and a code."""

    reason: str
    culprit: fx.Node | None = None
    code: Reason = Reason.REJECTED


@dataclass(frozen=True, slots=True)
class Prewritten:
    """What runs in place of a match.

    function: called with the values of `inputs` by position; returns the root's tensor, or a tuple
        with the pattern's further outputs after it.
    inputs: names of the pattern's parameters: tensors arrive as they are at the site, scalars as
        numbers.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]


class Rule:
    """Base of rules. A rule has a pattern and no state.

    pattern: a static method, written for `[rows, features]`; or several functions in `patterns`,
        for forms that algebra does not bring together.
    anchor: what kind of operation it is about ("norm", "softmax", ...), for reports.
    before_autograd: whether it is found in what the model calls, before there are derivatives, by
        code of its own (`fuseopt.rewrite`); the pattern only says what it is about.
    """

    anchor: ClassVar[str] = ""
    before_autograd: ClassVar[bool] = False
    patterns: ClassVar[tuple[Callable[..., Any], ...]] = ()

    def applies(self, match: Match) -> bool:
        """Whether a match is what the rule is about, where the pattern alone cannot tell."""
        return True

    def check(self, match: Match) -> Reject | None:
        """Decline a match, saying why; None accepts it."""
        return None

    def kernel(self, match: Match) -> Prewritten | None:
        """Return what should run in place of a match; None has a kernel generated."""
        return None


_ANSWERS: dict[str, Any] = {
    "applies": bool,
    "check": (Reject, type(None)),
    "kernel": (Prewritten, type(None)),
}


def ask(rule: type[Rule], method: str, match: Match) -> Any:
    """Call a rule's method with a match; what it raises, or a wrong answer, is a `RuleError`."""
    try:
        answer = getattr(rule(), method)(match)
        if isinstance(answer, _ANSWERS[method]):
            return answer
        raise RuleError(f"{rule.__name__}.{method} must not give a {type(answer).__name__}")
    except RuleError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise RuleError(
            f"{rule.__name__}.{method} raises {type(error).__name__}: {lines[0]}"
        ) from error


def name_of(rule: type[Rule]) -> str:
    """Return a rule's name: its class's in lower case, `ResidualNorm` -> "residual_norm"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", rule.__name__).lower()


def pattern_functions(rule: type[Rule]) -> tuple[Callable[..., Any], ...]:
    """Return a rule's patterns."""
    single = getattr(rule, "pattern", None)
    return rule.patterns if single is None else (single, *rule.patterns)


def has_kernel(rule: type[Rule]) -> bool:
    """Whether a rule may put something of its own in place of a match."""
    return rule.kernel is not Rule.kernel


def check_rule_class(rule: Any) -> None:
    """Raise `RuleError` where something is no rule, or not written as one must be."""
    if not isinstance(rule, type) or not issubclass(rule, Rule) or rule is Rule:
        raise RuleError(f"{rule!r} is no rule: pass a subclass of fuseopt.rule.Rule")
    owner = rule.__name__
    if rule.__init__ is not object.__init__:
        raise RuleError(f"{owner} has an __init__: rules hold no state, use class attributes")
    if not isinstance(rule.patterns, tuple):
        raise RuleError(f"{owner}.patterns must be a tuple of functions")
    functions = pattern_functions(rule)
    if not functions:
        raise RuleError(f"{owner} has no pattern: write a @staticmethod pattern(x, ...)")
    for function in functions:
        if not callable(function):
            raise RuleError(f"{owner}: the pattern {function!r} is not a function")
        parameters_of(function, owner)
    for method in ("applies", "check", "kernel"):
        if not callable(getattr(rule, method)):
            raise RuleError(f"{owner}.{method} must be a method (self, match)")


def rule_of_pair(pattern: Callable[..., Any], replacement: Callable[..., Any]) -> type[Rule]:
    """Return a rule that runs `replacement`, called as `pattern` is, wherever `pattern` matches."""
    if not callable(pattern) or not callable(replacement):
        raise RuleError("a pair of functions is (pattern, replacement)")
    name = "".join(w.capitalize() for w in pattern.__name__.strip("_<>").split("_"))
    parameters = tuple(p.name for p in parameters_of(pattern, name))

    def kernel(self: Rule, match: Match) -> Prewritten:
        return Prewritten(replacement, parameters)

    return type(name, (Rule,), {"pattern": staticmethod(pattern), "kernel": kernel})
