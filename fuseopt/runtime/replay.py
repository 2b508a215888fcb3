"""Replaying a compiled graph as a CUDA graph: `mode="reduce-overhead"`.

The first call with inputs of one kind runs as usual, which also checks and tunes. The second is
captured, and later ones replay it: one launch instead of one for each kernel. A captured graph
reads fixed addresses. Tensors that were in the same place in both calls, as parameters are, are
read where they are; the others are copied into buffers of the graph's own first. Results are
copies, so a later call does not change those of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[list[Any]], Sequence[Any]]
Layout = tuple[torch.Size, tuple[int, ...]]

MOST_GRAPHS = 8  # kinds of input that are captured; each keeps its memory
MOST_MOVES = 4  # times that a tensor in a new place makes a graph be captured again


class NotReplayableError(Exception):
    """A graph cannot be captured; the reason in one line."""


@dataclass(slots=True)
class Captured:
    """A captured call: what it reads and writes, and when it stands for another call.

    fixed: addresses by position of the tensors read in place. layouts: shapes and strides of those
    that are not parameters. copied: the graph's own buffers by position. others: arguments that are
    not tensors. outputs: what the call returned.
    """

    stream: int
    fixed: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    copied: dict[int, torch.Tensor] = field(default_factory=dict)
    others: dict[int, Any] = field(default_factory=dict)
    graph: Any = None
    outputs: Sequence[Any] = ()

    def fits(self, args: Sequence[Any], stream: int) -> bool:
        """Whether a call's arguments are of the same kind, on the same stream."""
        return (
            stream == self.stream
            and all(_same_value(args[i], v) for i, v in self.others.items())
            and all(args[i].shape == buffer.shape for i, buffer in self.copied.items())
            and all(_layout(args[i]) == layout for i, layout in self.layouts.items())
        )

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Return the positions of tensors that are no longer where the graph reads them."""
        return [i for i, place in self.fixed.items() if args[i].data_ptr() != place]

    def replay(self, args: Sequence[Any]) -> list[Any]:
        """Run the graph on a call's arguments."""
        for position, buffer in self.copied.items():
            buffer.copy_(args[position])
        self.graph.replay()
        return [o.clone() if isinstance(o, torch.Tensor) else o for o in self.outputs]


@dataclass(slots=True)
class Replay:
    """A compiled graph that is captured when called a second time, and replayed from then on.

    run: the compiled graph, for `device`. own: positions of the model's own tensors, the same ones
    on every call. written: positions of the inputs that it writes to. refused: told once why the
    graph is not replayed, if it is not.
    """

    run: Run
    device: torch.device
    own: frozenset[int]
    written: frozenset[int]
    refused: Callable[[str], None]
    captured: list[Captured] = field(default_factory=list)
    seen: list[Captured] = field(default_factory=list)
    moves: set[int] = field(default_factory=set)
    stopped: bool = False
    pool: Any = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph, by replay where that is possible."""
        if self.stopped or torch.cuda.is_current_stream_capturing():
            return self.run(args)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        for number, known in enumerate(self.captured):
            if known.fits(args, stream):
                moved = known.moved(args)
                if not moved:
                    return known.replay(args)
                del self.captured[number]
                return self._moved(moved, args, stream)
        return self._met(args, stream)

    def _moved(self, moved: list[int], args: list[Any], stream: int) -> Sequence[Any]:
        self.moves.update(moved)
        if len(self.moves) > MOST_MOVES:
            # The rest may move as well, one after another.
            self.moves.update(i for i in range(len(args)) if i not in self.own)
        return self._capture_or_stop(args, stream)

    def _met(self, args: list[Any], stream: int) -> Sequence[Any]:
        """The first call of a kind is run, the second captured."""
        for number, before in enumerate(self.seen):
            if before.fits(args, stream):
                del self.seen[number]
                self.moves.update(before.moved(args))
                return self._capture_or_stop(args, stream)
        if len(self.captured) + len(self.seen) < MOST_GRAPHS and self._may_capture(args):
            self.seen.append(self._describe(args, stream, frozenset()))
        return self.run(args)

    def _may_capture(self, args: Sequence[Any]) -> bool:
        try:
            _require_on(self.device, args)
        except NotReplayableError as reason:
            self._stop(str(reason))
            return False
        return True

    def _capture_or_stop(self, args: list[Any], stream: int) -> Sequence[Any]:
        try:
            known = self._capture(args, stream)
        except (NotReplayableError, RuntimeError) as reason:
            self._stop(str(reason).strip().splitlines()[0])
            return self.run(args)
        self.captured.append(known)
        return known.replay(args)

    def _capture(self, args: Sequence[Any], stream: int) -> Captured:
        if self.moves & self.written:
            raise NotReplayableError(
                "an input that the graph writes to is in a new place each call"
            )
        known = self._describe(args, stream, frozenset(self.moves))
        inputs = [known.copied.get(i, a) for i, a in enumerate(args)]
        known.graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream(self.device)
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(known.graph, pool=self.pool, stream=side),
        ):
            known.outputs = tuple(self.run(list(inputs)))
        _require_own_memory(known.outputs, inputs)
        return known

    def _describe(self, args: Sequence[Any], stream: int, moves: frozenset[int]) -> Captured:
        """What a call's arguments are; those in `moves` get buffers of their own."""
        known = Captured(stream)
        for position, arg in enumerate(args):
            if not isinstance(arg, torch.Tensor):
                known.others[position] = arg
            elif position in moves:
                known.copied[position] = torch.empty_like(arg).copy_(arg)
            else:
                known.fixed[position] = arg.data_ptr()
                if position not in self.own:
                    known.layouts[position] = _layout(arg)
        return known

    def _stop(self, reason: str) -> None:
        self.stopped = True
        self.captured.clear()
        self.seen.clear()
        self.refused(reason)


def _require_on(device: torch.device, args: Sequence[Any]) -> None:
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.device != device:
            raise NotReplayableError(f"an input is on {arg.device}, the graph runs on {device}")


def _require_own_memory(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    taken = {a.untyped_storage().data_ptr() for a in inputs if isinstance(a, torch.Tensor)}
    for output in outputs:
        if isinstance(output, torch.Tensor) and output.numel():
            place = output.untyped_storage().data_ptr()
            if place in taken:
                raise NotReplayableError("a result shares the memory of an input or of another")
            taken.add(place)


def _layout(arg: torch.Tensor) -> Layout:
    return arg.shape, arg.stride()


def _same_value(arg: Any, value: Any) -> bool:
    return not isinstance(arg, torch.Tensor) and bool(arg == value)
