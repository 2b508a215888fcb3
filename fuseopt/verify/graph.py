"""Checking a whole compiled graph on its first call, on the inputs that it was called with.

Every kernel has passed its own check by then; this one catches what lies between them. The original
operations run first, on copies of what they write to, and from the same random state; then the
compiled graph runs and its results are returned. Where they disagree beyond what the precision of
the graph explains, the original's results are returned and the graph runs its original operations
from then on.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuseopt.errors import VerificationError
from fuseopt.events import Log, Reason, RolledBack, Verified
from fuseopt.graph.form import output_values, written_inputs
from fuseopt.verify.compare import within
from fuseopt.verify.outputs import MOVES
from fuseopt.verify.truth import moved, run_truth, widened

Run = Callable[[list[Any]], Sequence[Any]]
RandomStates = list[tuple[Callable[[torch.Tensor], None], torch.Tensor]]

# Root mean square of the difference over that of the original. Many layers of rounding lie between:
# two right runs of a 16-layer model in bfloat16 were 3e-2 apart. A wrong wiring is of order one.
LIMITS = {torch.bfloat16: 8e-2, torch.float16: 2e-2, torch.float32: 2e-3, torch.float64: 1e-9}
FIRST_OF_STATE = 2  # results of fused attention before its random state: output and logarithms


@dataclass(slots=True)
class FirstCallCheck:
    """A compiled graph that checks itself when it is first called.

    run: the compiled graph; original: its original operations; graph: the original as a graph;
    failed: called where the two disagree.
    """

    run: Run
    original: Run
    graph: fx.GraphModule
    number: int
    log: Log
    strict: bool
    failed: Callable[[], None] = lambda: None
    done: bool = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph; the first time, check it."""
        if self.done or _is_capturing():
            return self.run(args)
        self.done = True
        return self._checked(args)

    def _checked(self, args: list[Any]) -> Sequence[Any]:
        given = _unshared(args, self.graph)
        before = _random_states(self.graph)
        with torch.no_grad():
            expected = self.original(list(given))
        _restore(before)
        again = _unshared(args, self.graph)
        kept = list(args)
        results = self.run(args)
        written = sorted(written_inputs(self.graph))
        verdict = self._judge(
            (*results, *(kept[i] for i in written)),
            (*expected, *(given[i] for i in written)),
            again,
            before,
        )
        self.log.record(verdict)
        if verdict.passed:
            return results
        self.log.record(RolledBack(self.number, verdict.key, Reason.WRONG, verdict.detail))
        if self.strict:
            raise VerificationError(f"graph {self.number}: {verdict.detail}")
        self.run = self.original
        self.failed()
        for i in written:
            kept[i].copy_(given[i])
        return expected

    def _judge(
        self,
        results: Sequence[Any],
        expected: Sequence[Any],
        inputs: list[Any],
        before: RandomStates,
    ) -> Verified:
        key = f"graph:{self.number}"
        limit = LIMITS[_precision(self.graph)]
        distances = self._distances(results, expected)
        for place, (result, want) in enumerate(zip(results, expected, strict=True)):
            if _dtype(result) != _dtype(want):
                distances[place] = float("inf")
        worst = max(range(len(distances)), key=distances.__getitem__, default=0)
        error = distances[worst] if distances else 0.0
        if error <= limit:
            return Verified(key, True, "first call", error, limit=limit)
        # Chaotic, or wrong: float64 tells.
        wide = [widened(i) for i in _unshared(inputs, self.graph)]
        lost = any(map(_loses_numbers, results, expected))
        truth = self._truth(wide, before) if error < float("inf") and not lost else None
        if truth is not None:
            ours, theirs = self._distances(results, truth), self._distances(expected, truth)
            if not _all_within(ours, theirs, limit):
                theirs = self._least(theirs, truth, inputs, before)
            if _all_within(ours, theirs, limit):
                return Verified(key, True, "first call", ours[worst], theirs[worst], limit)
        elif error < float("inf") and not lost:
            theirs = self._changes(expected, inputs, before)
            if all(d <= max(limit, 2 * e) for d, e in zip(distances, theirs, strict=True)):
                return Verified(key, True, "first call", error, theirs[worst], limit)
        text = f"output {worst} of graph {self.number} differs from the original's by {error:.2g}"
        return Verified(key, False, "first call", error, 0.0, limit, text)

    def _distances(self, values: Sequence[Any], wanted: Sequence[Any]) -> list[float]:
        """How far each output and written input is from another's; 0 for outputs of no meaning."""
        undefined = _undefined_outputs(self.graph)
        pairs = enumerate(zip(values, wanted, strict=True))
        return [0.0 if n in undefined else distance(v, w) for n, (v, w) in pairs]

    def _truth(self, inputs: list[Any], before: RandomStates) -> Sequence[Any] | None:
        """Run the graph on inputs in float64, with the random numbers that the call drew."""
        after = _random_states(self.graph)
        try:
            _restore(before)
            results = run_truth(self.graph, inputs)
            return (*results, *(inputs[i] for i in sorted(written_inputs(self.graph))))
        except (RuntimeError, torch.OutOfMemoryError, NotImplementedError):
            return None  # some op has no float64 form
        finally:
            _restore(after)

    def _changes(
        self, expected: Sequence[Any], inputs: list[Any], before: RandomStates
    ) -> list[float]:
        """What the last digits of the inputs change in the original's results, in its own dtypes.

        Two runs of the original may lie twice as far apart as each lies from an exact one, which is
        not to be had where float64 takes too much memory, or some op has no such form.
        """
        after = _random_states(self.graph)
        changes = [0.0] * len(expected)
        try:
            for seed in range(MOVES):
                given = moved(_unshared(inputs, self.graph), seed)
                kept = list(given)
                _restore(before)
                with torch.no_grad():
                    results = self.original(given)
                written = (kept[i] for i in sorted(written_inputs(self.graph)))
                by = self._distances((*results, *written), expected)
                changes = [max(pair) for pair in zip(changes, by, strict=True)]
        except torch.OutOfMemoryError:
            pass  # what is known by then counts
        finally:
            _restore(after)
        return changes

    def _least(
        self, errors: list[float], truth: Sequence[Any], inputs: list[Any], before: RandomStates
    ) -> list[float]:
        """The original's errors, or what the last digits of the inputs change where that is more.

        A gradient that cancels, as that of a bias of keys, is made of nothing else.
        """
        for seed in range(MOVES):
            given = moved(_unshared(inputs, self.graph), seed)
            changed = self._truth([widened(i) for i in given], before)
            if changed is not None:
                by = self._distances(changed, truth)
                errors = [max(pair) for pair in zip(errors, by, strict=True)]
        return errors


def _undefined_outputs(graph: fx.GraphModule) -> set[int]:
    """The outputs of a graph that hold no numbers of its: what attention keeps of its random state.

    Fused attention returns, after its result and its logarithms, memory that it fills only where it
    drops out, with numbers that depend on what was drawn before.
    """
    values = output_values(graph.graph.output_node())
    return {n for n, value in enumerate(values) if _is_random_state(value)}


def _is_random_state(value: Any) -> bool:
    if not isinstance(value, fx.Node) or value.target is not operator.getitem:
        return False
    made, place = value.args
    name = str(getattr(made, "target", ""))
    assert isinstance(place, int)
    return name.startswith("aten._scaled_dot_product_") and place >= FIRST_OF_STATE


def _all_within(ours: list[float], theirs: list[float], limit: float) -> bool:
    return all(within(f, e, limit) for f, e in zip(ours, theirs, strict=True))


def distance(got: Any, want: Any) -> float:
    """Return how far a value is from another, relative to that one; infinite where kinds differ.

    Of tensors: the root mean square of the difference over that of the second.
    """
    if not isinstance(want, torch.Tensor):
        return 0.0 if got == want else float("inf")
    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        return float("inf")
    if want.numel() == 0:
        return 0.0
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        return float((got != want).double().mean()) * 10
    kind = torch.complex128 if want.dtype.is_complex else torch.float64
    a, b = got.detach().to(kind), want.detach().to(kind)
    finite = a.isfinite() & b.isfinite()
    apart = torch.where(finite, (a - b).abs(), 0.0).square().mean().sqrt()
    size = torch.where(finite, b.abs(), 0.0).square().mean().sqrt()
    mixed = float((a.isfinite() != b.isfinite()).double().mean())
    return max(float(apart / (size + 1e-30)), mixed * 10)


def _loses_numbers(got: Any, want: Any) -> bool:
    """Whether a tensor has NaN or an infinity where another has a number."""
    if not (isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)):
        return False
    return got.shape == want.shape and bool((want.isfinite() & ~got.isfinite()).any())


def _dtype(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else None


def _precision(graph: fx.GraphModule) -> torch.dtype:
    """The coarsest floating-point dtype among a graph's values."""
    found = {torch.float64}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            found.add(value.dtype)
    return max(found & set(LIMITS), key=LIMITS.__getitem__)


def _unshared(args: list[Any], graph: fx.GraphModule) -> list[Any]:
    """Copies of the inputs that the graph writes to, the other inputs themselves."""
    written = written_inputs(graph)
    return [
        a.clone() if number in written and isinstance(a, torch.Tensor) else a
        for number, a in enumerate(args)
    ]


def _random_states(graph: fx.GraphModule) -> RandomStates:
    """The states of the generators that a graph may draw from, each with what puts it back."""
    states: RandomStates = [(torch.set_rng_state, torch.get_rng_state())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in sorted(_cuda_devices(graph), key=str):
            put_back = functools.partial(torch.cuda.set_rng_state, device=device)
            states.append((put_back, torch.cuda.get_rng_state(device)))
    return states


def _cuda_devices(graph: fx.GraphModule) -> set[torch.device]:
    values = [n.meta.get("val") for n in graph.graph.nodes]
    return {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"}


def _restore(states: RandomStates) -> None:
    for put_back, state in states:
        put_back(state)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
