"""Recordings of a pattern at several sizes, made one in which sizes are expressions.

    x[..., :660] of 1320 features, x[..., :684] of 1368    ->    x[..., :features], of 2 * features

A number that changes with the sizes is a size, linear in what was varied; a floating-point number
is a constant times a power of the number of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from fuseopt.errors import RuleError
from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.match import constants
from fuseopt.match.constants import Constant
from fuseopt.match.parameters import Parameter
from fuseopt.match.record import FEATURES, Recording, Step, leaves_of, place_of, record_once

# The number of features, and whole-number parameters, in the runs that are compared. The first is
# a number that no pattern has for another reason; all can be halved three times.
BASE, STEP = 1320, 48
SMALL = 8  # whole numbers below this are dimensions and steps
WHOLE_BASE, WHOLE_STEP = 8, 8


def record(function: Callable[..., Any], parameters: Sequence[Parameter]) -> Recording:
    """Run a pattern and return its calls with sizes as expressions in `features` and its ints.

    parameters: the arguments to pass; those that are absent get None.
    Raises `RuleError` where the pattern raises, or does other things at other sizes.
    """
    wholes = [p.name for p in parameters if p.kind == "int"]
    names = [FEATURES, *wholes]
    first = dict.fromkeys(wholes, WHOLE_BASE) | {FEATURES: BASE}
    choices = [first]
    runs = [record_once(function, parameters, first)]
    if wholes or not _is_plain(runs[0]):
        for name in names:
            step = STEP if name == FEATURES else WHOLE_STEP
            choices.append({**first, name: first[name] + step})
            runs.append(record_once(function, parameters, choices[-1]))
    return Fitting(function, names, choices, runs).fitted()


def _is_plain(run: Recording) -> bool:
    """Whether a run has no number that could be computed from the number of features."""
    leaves = (leaf for step in run.steps for leaf in leaves_of(_fields(step)))
    return all(_is_plain_number(leaf, run.known) for leaf in leaves)


def _is_plain_number(leaf: Any, known: Mapping[float, Constant]) -> bool:
    if isinstance(leaf, float):
        return leaf in known or leaf == int(leaf)
    return not isinstance(leaf, int) or leaf == BASE or abs(leaf) < SMALL


class Fitting:
    """Replaces numbers that vary between runs by expressions in what was varied."""

    def __init__(
        self,
        function: Callable[..., Any],
        names: Sequence[str],
        choices: Sequence[Mapping[str, int]],
        runs: Sequence[Recording],
    ) -> None:
        self.function = function
        self.names = names
        self.choices = choices
        self.runs = runs
        self.fits: dict[tuple[int, ...], tuple[Fraction, ...]] = {}
        self.parts = dict.fromkeys(names, 1)  # the size symbol is this part of the parameter

    def fitted(self) -> Recording:
        """The runs as one, sizes being expressions."""
        first = self.runs[0]
        if any(self._shape(r) != self._shape(first) for r in self.runs):
            raise self._unlike()
        self._collect()
        merged = Recording([])
        merged.inputs = self._merge([r.inputs for r in self.runs])
        merged.results = first.results
        merged.known = dict(first.known)
        for others in zip(*(r.known.items() for r in self.runs), strict=True):
            merged.known[others[0][0]] = self._merge_constant([c for _, c in others])
        for steps in zip(*(r.steps for r in self.runs), strict=True):
            args, kwargs, outputs = (
                self._merge([getattr(s, name) for s in steps], merged.known)
                for name in ("args", "kwargs", "outputs")
            )
            merged.steps.append(Step(steps[0].target, args, kwargs, outputs, steps[0].line))
        return merged

    def _shape(self, recording: Recording) -> Any:
        return ([s.target for s in recording.steps], recording.results, len(recording.known))

    def _unlike(self) -> RuleError:
        return RuleError(
            f"the pattern {place_of(self.function)} does not do the same at every size: take "
            "sizes from x.shape, and keep them linear in it"
        )

    # --- sizes ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Find what all varying whole numbers are in the varied ones, before symbols are chosen."""
        for leaves in self._varying():
            if all(isinstance(v, int) for v in leaves):
                self._fit(leaves)
        for rates in self.fits.values():
            for name, rate in zip(self.names, rates[1:], strict=True):
                self.parts[name] = math.lcm(self.parts[name], rate.denominator)

    def _varying(self) -> list[tuple[Any, ...]]:
        if len(self.runs) == 1:
            return []
        flat = [list(leaves_of([r.inputs, [_fields(s) for s in r.steps]])) for r in self.runs]
        if len({len(leaves) for leaves in flat}) > 1:
            raise self._unlike()
        return [values for values in zip(*flat, strict=True) if not _all_same(values)]

    def _fit(self, values: tuple[int, ...]) -> tuple[Fraction, ...]:
        """The constant and the rates: value = constant + sum of rate * varied."""
        known = self.fits.get(values)
        if known is None:
            rates = []
            for name, choice, value in zip(self.names, self.choices[1:], values[1:], strict=True):
                rates.append(Fraction(value - values[0], choice[name] - self.choices[0][name]))
            first = [self.choices[0][n] for n in self.names]
            constant = values[0] - sum(r * v for r, v in zip(rates, first, strict=True))
            known = self.fits[values] = (Fraction(constant), *rates)
        return known

    def _size(self, values: tuple[int, ...]) -> Size:
        constant, *rates = self._fit(values)
        if constant.denominator != 1:
            raise self._unlike()
        total: Size = int(constant)
        for name, rate in zip(self.names, rates, strict=True):
            if rate:
                total = dims.add(
                    total, dims.symbol(constants.WHOLE + name) * int(rate * self.parts[name])
                )
        return total

    # --- merging -------------------------------------------------------------------------------

    def _merge(self, values: Sequence[Any], known: dict[float, Constant] | None = None) -> Any:
        first = values[0]
        if isinstance(first, (list, tuple)):
            merged = [self._merge(v, known) for v in zip(*values, strict=True)]
            return merged if isinstance(first, list) else tuple(merged)
        if isinstance(first, dict):
            return {k: self._merge([v[k] for v in values], known) for k in first}
        if len(values) == 1:
            is_count = isinstance(first, int) and first == BASE
            return dims.symbol(constants.WHOLE + FEATURES) if is_count else first
        if _all_same(values):
            return first
        if all(isinstance(v, int) for v in values):
            return self._size(tuple(values))
        if all(isinstance(v, float) for v in values) and known is not None:
            if first not in known:
                known[first] = self._power_law(values)
            return first
        raise self._unlike()

    def _merge_constant(self, values: Sequence[Constant]) -> Constant:
        first = values[0]
        if all(v == first for v in values):
            return first
        if isinstance(first, float):
            return self._power_law(values)
        total: Constant = 0.0
        for terms in zip(*(v.terms for v in values), strict=True):  # type: ignore[union-attr]
            coefficient = self._merge_constant([c for _, c in terms])
            monomial = constants.Polynomial(((terms[0][0], 1.0),)) if terms[0][0] else 1.0
            total = constants.plus(total, constants.times(coefficient, monomial))
        return total

    def _power_law(self, values: Sequence[Any]) -> Constant:
        """c * features ** p, from the run with other features."""
        first, second = float(values[0]), float(values[1])
        if first == 0 or first * second <= 0 or any(v != first for v in values[2:]):
            raise self._unlike()
        ratio = self.choices[1][FEATURES] / self.choices[0][FEATURES]
        exponent = round(math.log(second / first) / math.log(ratio), 6)
        symbol = constants.unknown(constants.WHOLE + FEATURES)
        count = constants.times(float(self.parts[FEATURES]), symbol)
        factor = first / self.choices[0][FEATURES] ** exponent
        return constants.times(factor, constants.power(count, exponent))


def _fields(step: Step) -> Any:
    return [step.args, step.kwargs, step.outputs]


def _all_same(values: Sequence[Any]) -> bool:
    return all(type(v) is type(values[0]) and v == values[0] for v in values)
