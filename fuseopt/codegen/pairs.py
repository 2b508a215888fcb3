"""Pairs of reductions combined on the way: softmax's maximum and sum, a norm's mean and spread.

In a loop every lane keeps a pair of its own over the elements it sees and the lanes meet after the
loop, so that an iteration needs no exchange between threads. A row that is held whole is reduced
twice instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.express import Tile
from fuseopt.codegen.passes import Moments, OnlineSoftmax, Pair
from fuseopt.ir.combine import COMBINES, identity_of
from fuseopt.ir.values import Fold, Value

if TYPE_CHECKING:
    from fuseopt.codegen.printer import Printer

State = tuple[str, ...]


class PairEmitter:
    """Emits the statements of pairs."""

    def __init__(self, printer: Printer) -> None:
        self.printer = printer

    def finish(self, pair: Pair, first: str, second: str) -> None:
        """Assign a pair's reductions from (maximum, total) or (mean, away)."""
        assign = self.printer.assign_row
        if isinstance(pair, OnlineSoftmax):
            assign(pair.maximum, first)
            # A row that is -inf throughout was summed as if its maximum were 0.
            assign(pair.total, f'tl.where({first} == float("-inf"), float("nan"), {second})')
            return
        assign(pair.total, f"{first} * {self.printer.number(pair.count)}")
        assign(pair.away, second)
        if pair.drift is not None:
            assign(pair.drift, f"{first} * 0.0")

    # --- in a loop -----------------------------------------------------------------------------

    def start(self, pair: Pair) -> State:
        """Declare the running state of each lane."""
        printer = self.printer
        starts = ['float("-inf")', "0.0"] if isinstance(pair, OnlineSoftmax) else ["0.0"] * 3
        shape = printer.shape_of(pair.total.axes | printer.inner_axes)
        dtype = spell.triton_type(pair.total.dtype)
        state = tuple(printer.fresh("acc") for _ in starts)
        for name, value in zip(state, starts, strict=True):
            printer.line(f"{name} = tl.full({shape}, {value}, {dtype})")
        return state

    def step(self, pair: Pair, state: State, tiles: list[Tile]) -> None:
        """Take the tiles of one iteration into the running state."""
        if isinstance(pair, OnlineSoftmax):
            self._step_softmax(pair, state, tiles)
        else:
            self._step_moments(pair, state, tiles)

    def _step_softmax(self, pair: OnlineSoftmax, state: State, tiles: list[Tile]) -> None:
        line, fresh = self.printer.line, self.printer.fresh
        top, total = state
        scores = [self._masked(t, self._named(t, pair.scores), 'float("-inf")') for t in tiles]
        new, shift = fresh(), fresh()
        line(f"{new} = {top}")
        names = []
        for text in scores:
            names.append(fresh())
            line(f"{names[-1]} = {text}")
            line(f"{new} = {COMBINES[pair.maximum.combine].step.format(new, names[-1])}")
        # Where all is -inf so far there is nothing to rescale, and exp(-inf - -inf) is NaN.
        line(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})')
        exp = _exponential(pair)
        parts = " + ".join(f"{exp}({name} - {shift})" for name in names)
        line(f"{total} = {total} * {exp}({top} - {shift}) + {parts}")
        line(f"{top} = {new}")

    def _step_moments(self, pair: Moments, state: State, tiles: list[Tile]) -> None:
        line, fresh = self.printer.line, self.printer.fresh
        count, center, away = state
        names = [self._named(t, pair.sample) for t in tiles]
        held, mean, share, delta = fresh(), fresh(), fresh(), fresh()
        masks = [t.mask for t in tiles]
        counts = [f"{m}.to({spell.triton_type(pair.total.dtype)})" if m else "1.0" for m in masks]
        line(f"{held} = {' + '.join(counts)}")
        total = " + ".join(self._masked(t, n, "0.0") for t, n in zip(tiles, names, strict=True))
        line(f"{mean} = ({total}) / {f'tl.maximum({held}, 1.0)' if any(masks) else held}")
        line(f"{delta} = {mean} - {center}")
        line(f"{share} = {held} / ({count} + {held})")
        if any(masks):
            line(f"{share} = tl.where({held} > 0.0, {share}, 0.0)")
        spread = " + ".join(
            self._masked(t, f"({n} - {mean}) * ({n} - {mean})", "0.0")
            for t, n in zip(tiles, names, strict=True)
        )
        line(f"{away} = {away} + {spread} + {delta} * {delta} * {count} * {share}")
        line(f"{center} = {center} + {delta} * {share}")
        line(f"{count} = {count} + {held}")

    def meet(self, pair: Pair, state: State) -> tuple[str, str]:
        """Bring the lanes together after the loop."""
        line, fresh, reduced = self.printer.line, self.printer.fresh, self.printer.reduced
        first, second = fresh(), fresh()
        if isinstance(pair, OnlineSoftmax):
            top, total = state
            shift = fresh()
            line(f"{first} = {reduced(pair.maximum.combine, top)}")
            exp = _exponential(pair)
            line(f'{shift} = tl.where({first} == float("-inf"), 0.0, {first})')
            line(f"{second} = {reduced('sum', f'{total} * {exp}({top} - {shift})')}")
            return first, second
        count, center, away = state
        number = self.printer.number(pair.count)
        line(f"{first} = {reduced('sum', f'{count} * {center}')} / {number}")
        apart = f"({center} - {first})"
        line(f"{second} = {reduced('sum', f'{away} + {count} * {apart} * {apart}')}")
        return first, second

    # --- held whole ----------------------------------------------------------------------------

    def resident(self, pair: Pair) -> tuple[str, str]:
        """The state of a pair over the tiles that this program holds."""
        printer = self.printer
        if isinstance(pair, OnlineSoftmax):
            combine = pair.maximum.combine
            top = self._over_tiles(pair.maximum, combine, lambda: printer.name_of(pair.scores))
            shift = printer.fresh()
            printer.line(f'{shift} = tl.where({top} == float("-inf"), 0.0, {top})')
            exp = _exponential(pair)
            total = self._over_tiles(
                pair.total, "sum", lambda: f"{exp}({printer.name_of(pair.scores)} - {shift})"
            )
            return top, total
        total = self._over_tiles(pair.total, "sum", lambda: printer.name_of(pair.sample))
        center = printer.fresh()
        printer.line(f"{center} = {total} / {printer.cross.own_count(pair.total.dtype)}")

        def squared() -> str:
            distance = f"({printer.name_of(pair.sample)} - {center})"
            return f"{distance} * {distance}"

        return center, self._over_tiles(pair.away, "sum", squared)

    def _over_tiles(self, fold: Fold, combine: str, text: Callable[[], str]) -> str:
        printer = self.printer
        accumulator = ""
        identity = spell.number(identity_of(combine, fold.dtype), fold.dtype)
        for tile in printer.resident:
            printer.tile = tile
            part = self._masked(tile, text(), identity)
            if accumulator:
                part = COMBINES[combine].step.format(accumulator, part)
            accumulator = printer.fresh("acc")
            printer.line(f"{accumulator} = {part}")
        name = printer.fresh()
        printer.line(f"{name} = {printer.reduced(combine, accumulator)}")
        return name

    # --- common --------------------------------------------------------------------------------

    def _named(self, tile: Tile, value: Value) -> str:
        self.printer.tile = tile
        return self.printer.name_of(value)

    def _masked(self, tile: Tile, text: str, other: str) -> str:
        return f"tl.where({tile.mask}, {text}, {other})" if tile.mask else text


def _exponential(pair: OnlineSoftmax) -> str:
    """The function that gives the terms of the total, beside which the smallest floats vanish."""
    return "_exp" if pair.total.dtype == torch.float32 else "tl.exp"
