"""A forward and a backward graph of one trace, whose kernels are put back together.

    backward: the kernel for gelu's derivative disagrees   ->   forward: gelu runs as written, too

What a backward graph computes from was saved by the forward one, and what was verified is a kernel
next to the operations it replaces: where one half of an operation runs as written, the other half
had better, so that they make the same of the same numbers. Which nodes are halves of one operation
autograd's numbers tell, which tracing keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import fx


@dataclass(slots=True)
class Pair:
    """What is put back of two graphs.

    whole: all of it. put_back: makes the forward graph anew, without what is put back by now.
    """

    whole: bool = False
    put_back: Callable[[], None] = lambda: None
    _refused: set[int] = field(default_factory=set)

    def refuse(self, nodes: Iterable[fx.Node]) -> None:
        """Have the operations that these nodes belong to run as written in both graphs."""
        self._refused |= _numbers(nodes)

    def refuses(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether an operation that one of these nodes belongs to is to run as written."""
        return self.whole or not self._refused.isdisjoint(_numbers(nodes))


def _numbers(nodes: Iterable[fx.Node]) -> set[int]:
    """Autograd's numbers of the operations."""
    found = (node.meta.get("seq_nr") for node in nodes)
    return {number for number in found if isinstance(number, int)}
