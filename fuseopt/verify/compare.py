"""Judging a result: our error against the truth, next to the original's own error.

With e the original's error and f ours, a result passes when f <= 2 e + limit(dtype). Errors are
relative to the largest magnitude of the truth in the same row (its last dimension), so that small
rows count as much as large ones; short rows are judged by the whole tensor's. A result that cancels
to nothing but rounding errors, in the original too, is held to their order of magnitude. NaN and
infinities must stand where the original has them, or where the exact result has them; integers and
bools must agree, except where the original itself differs from the exact result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuseopt.events import Verified

LIMITS = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.2e-2,
    torch.float8_e4m3fn: 7e-2,
}
SHORTEST_ROW = 16  # with fewer elements, a row's largest may be near zero by chance
FLOOR = 1e-3  # rows below this share of the tensor's largest magnitude are judged as if at it
NOISE = 0.5  # an error of the original beyond which it has no right digit
NOISE_RATIO = 16.0  # two sums of the same rounding errors, in different orders


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one tensor. Errors are relative, `detail` names the worst element."""

    passed: bool
    error: float = 0.0
    eager_error: float = 0.0
    limit: float = 0.0
    detail: str = ""


def verified(key: str, how: str, verdict: Verdict, detail: str = "") -> Verified:
    """Return a verdict as the event of a check. detail: of what was checked, by default its own."""
    errors = verdict.error, verdict.eager_error, verdict.limit
    return Verified(key, verdict.passed, how, *errors, detail or verdict.detail)


def judge(
    ours: torch.Tensor,
    eager: torch.Tensor,
    truth: torch.Tensor,
    *,
    loose: bool = False,
    again: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
) -> Verdict:
    """Compare our result with the original's, both against the truth in float64.

    All three have one shape. loose: NaN may stand for an infinity and an infinity for NaN. again:
    the original's results and truths for inputs that differ in their last digits; their errors
    count as the original's, and rows whose truth has no digit in common with theirs are noise.
    Raises nothing: a wrong shape or dtype is a failed verdict.
    """
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        text = f"{ours.dtype}{tuple(ours.shape)} for {eager.dtype}{tuple(eager.shape)}"
        return Verdict(False, detail=text)
    if ours.numel() == 0:
        return Verdict(True)
    if not ours.dtype.is_floating_point:
        return _judge_exact(ours, eager, truth)
    return _judge_float(ours, eager, truth, loose=loose, again=again)


def _judge_exact(ours: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> Verdict:
    exact = truth.to(ours.dtype)
    wrong = (ours != eager) & (ours != exact)
    count = int(wrong.sum())
    if not count:
        return Verdict(True)
    # Rounding may fall the other way at a tie; that is rare, and then off by one.
    unsure = int((eager != exact).sum())
    apart = (ours.double() - exact.double()).abs()
    near = bool((apart[wrong] <= 1).all()) and ours.dtype != torch.bool
    if near and count <= 2 * unsure + ours.numel() // 5000:
        return Verdict(True, error=count / ours.numel())
    return Verdict(False, error=count / ours.numel(), detail=_worst(apart, ours, eager, truth))


def _judge_float(
    ours: torch.Tensor,
    eager: torch.Tensor,
    truth: torch.Tensor,
    *,
    loose: bool,
    again: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> Verdict:
    limit = LIMITS[ours.dtype]
    rounded = truth.to(ours.dtype)
    if ours.dtype.itemsize == 1:  # float8 has no arithmetic of its own
        ours, eager, rounded = ours.float(), eager.float(), rounded.float()
    misplaced = ~(_same_special(ours, eager) | _same_special(ours, rounded))
    if loose:
        misplaced &= ours.isfinite() | (eager.isfinite() & rounded.isfinite())
    if bool(misplaced.any()):
        detail = f"NaN or infinity: {_worst(misplaced.double(), ours, eager, truth)}"
        return Verdict(False, error=float("inf"), detail=detail)
    finite = ours.isfinite() & eager.isfinite() & truth.isfinite()
    scale = _row_scale(torch.where(finite, truth, 0.0))
    our_error = _relative(ours, truth, scale, finite)
    eager_error = _relative(eager, truth, scale, finite)
    # Rows of noise are judged apart, so that the original's errors there excuse nothing elsewhere.
    noise_error = eager_error
    for original, exact in again:
        known = finite & original.isfinite() & exact.isfinite()
        eager_error = torch.maximum(eager_error, _relative(original, exact, scale, known))
        change = _relative(exact, truth, scale, known)
        noise_error = torch.maximum(noise_error, torch.maximum(eager_error, change))
    noise = (_over_rows(noise_error) > NOISE).expand_as(eager_error)
    for part, allowed in ((~noise, eager_error), (noise, noise_error)):
        worst, worst_eager = _largest(our_error, part), _largest(allowed, part)
        if not within(worst, worst_eager, limit):
            detail = _worst(torch.where(part, our_error, 0.0), ours, eager, truth)
            return Verdict(False, worst, worst_eager, limit, detail)
    return Verdict(True, _largest(our_error, ~noise), _largest(eager_error, ~noise), limit)


def within(error: float, eager_error: float, limit: float) -> bool:
    """Whether an error is allowed, given the original's own."""
    if eager_error > NOISE:
        return error <= NOISE_RATIO * eager_error
    return error <= 2 * eager_error + limit


def _largest(error: torch.Tensor, where: torch.Tensor) -> float:
    return float(torch.where(where, error, 0.0).max())


def _same_special(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    both_finite = a.isfinite() & b.isfinite()
    return both_finite | (a == b) | (a.isnan() & b.isnan())


def _row_scale(truth: torch.Tensor) -> torch.Tensor:
    magnitude = truth.abs()
    return torch.maximum(_over_rows(magnitude), magnitude.max() * FLOOR).clamp_min(
        torch.finfo(torch.float32).tiny
    )


def _over_rows(magnitude: torch.Tensor) -> torch.Tensor:
    """The largest of each row; the largest of all where rows are short."""
    is_row = magnitude.dim() > 0 and magnitude.shape[-1] >= SHORTEST_ROW
    return magnitude.amax(-1, keepdim=True) if is_row else magnitude.max()


def _relative(
    got: torch.Tensor, truth: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor
) -> torch.Tensor:
    apart = (got.double() - truth).abs() / scale
    return torch.where(finite, apart, 0.0)


def _worst(
    error: torch.Tensor, ours: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor
) -> str:
    place = int(error.argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), error.shape))
    return (
        f"element {list(where)} is {ours.reshape(-1)[place].item():.6g}, the original gives "
        f"{eager.reshape(-1)[place].item():.6g}, exact is {truth.reshape(-1)[place].item():.6g}"
    )
