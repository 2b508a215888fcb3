"""The rules in use, by name, and their patterns, each lifted when it is first needed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from fuseopt.errors import RuleError
from fuseopt.match.parameters import parameters_of, variants
from fuseopt.match.pattern import Pattern, lift_pattern
from fuseopt.match.rules import (
    Rule,
    check_rule_class,
    has_kernel,
    name_of,
    pattern_functions,
    rule_of_pair,
)

GROUP = "fuseopt.rules"  # the entry points of other people's rules

RuleT = TypeVar("RuleT", bound=type[Rule])


class Registry:
    """Rules by name, in order of registration: of equals, the earlier is preferred."""

    def __init__(self, rules: Iterable[Any] = ()) -> None:
        self._rules: dict[str, type[Rule]] = {}
        self._lifted: dict[type[Rule], tuple[Pattern, ...]] = {}
        self.extend(rules)

    @property
    def rules(self) -> tuple[type[Rule], ...]:
        """The rules that are matched in graphs, in order."""
        return tuple(r for r in self._rules.values() if not r.before_autograd)

    @property
    def early(self) -> tuple[type[Rule], ...]:
        """The rules that are applied before autograd, in order."""
        return tuple(r for r in self._rules.values() if r.before_autograd)

    def add(self, rule: Any) -> None:
        """Add a rule class or a (pattern, replacement) pair; `RuleError` where it cannot be."""
        if isinstance(rule, tuple) and len(rule) == 2:
            rule = rule_of_pair(*rule)
        check_rule_class(rule)
        name = name_of(rule)
        known = self._rules.get(name)
        if known is not None and known is not rule:
            raise RuleError(
                f"two rules are named {name}: {_place(known)} and {_place(rule)}; rename one"
            )
        self._rules[name] = rule

    def extend(self, rules: Iterable[Any]) -> None:
        """Add several rules."""
        for rule in rules:
            self.add(rule)

    def copy(self) -> Registry:
        """Return a registry with the same rules, to which others can be added."""
        made = Registry()
        made._rules = dict(self._rules)
        made._lifted = self._lifted  # patterns do not depend on the registry
        return made

    def only(self, rules: Iterable[type[Rule]]) -> Registry:
        """Return a registry with some of these rules."""
        made = Registry()
        wanted = set(rules)
        made._rules = {n: r for n, r in self._rules.items() if r in wanted}
        made._lifted = self._lifted
        return made

    def find(self, name: str) -> type[Rule]:
        """Return the rule of a name; `KeyError` where there is none."""
        return self._rules[name]

    def patterns(self, rule: type[Rule]) -> tuple[Pattern, ...]:
        """Return a rule's patterns, a variant for each choice of optional parameters."""
        known = self._lifted.get(rule)
        if known is None:
            known = self._lifted[rule] = tuple(_lifted(rule))
        return known


def _lifted(rule: type[Rule]) -> Iterator[Pattern]:
    for function in pattern_functions(rule):
        for parameters in variants(parameters_of(function, rule.__name__)):
            yield lift_pattern(function, parameters)


def _place(rule: type[Rule]) -> str:
    return f"{rule.__module__}.{rule.__qualname__}"


# --- where rules come from ------------------------------------------------------------------------

_active: list[Registry] = [Registry()]


def register(rule: RuleT) -> RuleT:
    """Class decorator: add a rule to the registry in use.

    Raises `RuleError` where the rule is not written as one must be, or its name is taken.
    """
    _active[-1].add(rule)
    return rule


@contextmanager
def registering(registry: Registry) -> Iterator[Registry]:
    """Within the context `register` adds to this registry."""
    _active.append(registry)
    try:
        yield registry
    finally:
        _active.pop()


def default_registry() -> Registry:
    """Return the registry with what was registered, beginning with the built-in rules."""
    import fuseopt.patterns as builtin

    registry = _active[0]
    with registering(registry):
        for name in builtin.MODULES:
            importlib.import_module(f"fuseopt.patterns.{name}")
        registry.extend(_entry_point_rules())
    return registry


def registry_with(rules: Sequence[Any]) -> Registry:
    """Return the default rules and others beside them."""
    registry = default_registry()
    if not rules:
        return registry
    registry = registry.copy()
    registry.extend(rules)
    return registry


def claiming_rules(registry: Registry) -> Registry:
    """Return the rules that regions do not only get their names from.

    Those with a kernel of their own, and those that are not registered: a user passed them.
    """
    registered = _active[0].rules
    return registry.only(r for r in registry.rules if has_kernel(r) or r not in registered)


def load_rules(path: str | Path) -> tuple[type[Rule], ...]:
    """Return the rules that a Python file registers; `RuleError` says what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise RuleError(f"there is no file {path}")
    name = f"fuseopt_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    try:
        with registering(Registry()) as registry:
            spec.loader.exec_module(module)
    except RuleError:
        raise
    except (Exception, SystemExit) as error:
        raise RuleError(f"{path} raises {type(error).__name__}: {error}") from error
    if not registry.rules:
        raise RuleError(f"{path} registers no rule: decorate its rules with @register")
    return registry.rules


def _entry_point_rules() -> Iterator[type[Rule]]:
    for entry in entry_points(group=GROUP):
        try:
            loaded: Any = entry.load()
        except Exception as error:
            raise RuleError(f"the entry point {entry.name} of {GROUP} fails: {error}") from error
        yield from _rules_in(loaded)


def _rules_in(loaded: Any) -> Iterable[type[Rule]]:
    """A rule, or several; a module has registered its own when it was imported."""
    if isinstance(loaded, type):
        return (loaded,)
    return tuple(loaded) if isinstance(loaded, (list, tuple)) else ()
