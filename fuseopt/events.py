"""What happened while a model was optimised, as records; the report is a pure function of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar


class Reason(StrEnum):
    """Why something was not fused. The value is the code that reports and tests use."""

    HEAVY = "heavy-op"  # a matrix product, convolution or attention: a vendor kernel's work
    NO_DEFINITION = "no-definition"  # the op is not declared in fuseopt.ops
    MUTATION = "mutation"  # it writes to a tensor that the caller or the model holds
    RANDOM = "random"  # the op draws random numbers
    DTYPE = "dtype"  # a dtype the generator does not handle (complex, quantized, ...)
    DEVICE = "device"  # operands on several devices, or on one that Triton does not serve
    DATA_DEPENDENT = "data-dependent"  # a size or an index known only when the kernel runs
    LAYOUT = "layout"  # an output layout that cannot be written directly
    SINGLE = "single-op"  # one kernel already: nothing to fuse it with
    AXES = "different-axes"  # it reduces or iterates over other axes than its neighbours
    CYCLE = "not-convex"  # fusing would need a value that depends on the region itself
    TOO_LARGE = "too-large"  # more inputs or live values than one kernel should hold
    NO_GAIN = "no-gain"  # fusing would not save a launch or a byte
    INDEX = "index"  # an index map that the generator cannot express
    REJECTED = "rule-rejected"  # a rule matched and its check declined
    WRONG = "verification"  # the replacement did not agree with the original
    COMPILE = "compile-failed"  # the generated kernel did not compile
    SLOWER = "slower"  # measured slower than the operations it replaces
    CAPTURE = "capture"  # the graph could not be brought to functional ATen form
    NO_DEVICE = "no-triton-device"  # there is no device that Triton can launch on
    TRAINING = "training"  # gradients are needed and this path does not provide them


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One operation of the user's model as the report names it."""

    name: str
    op: str
    module: str = ""  # module path, such as "encoder.layer.0.output"
    location: str = ""  # "file.py:123"
    code: str = ""  # the source line itself
    shape: tuple[str, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class GraphCaptured:
    """A graph reached functional ATen form. `level` is "inference" or "forward"/"backward"."""

    graph: int
    level: str
    nodes: int
    kernels_before: int


@dataclass(frozen=True, slots=True)
class GraphBroken:
    """Capture split the model in two; the part between runs as written."""

    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph's regions are chosen; `kernels` of them differ in structure."""

    graph: int
    regions: int
    kernels: int


@dataclass(frozen=True, slots=True)
class RegionFused:
    """One region became one kernel."""

    graph: int
    region: str
    rule: str  # "" when no rule names it
    kernel: str  # name of the generated or prewritten kernel
    key: str  # structural digest: regions with the same key share a kernel and a verdict
    nodes: tuple[NodeInfo, ...]
    inputs: tuple[str, ...]  # "bfloat16[4, 1024]"
    outputs: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    launches_before: int
    schedule: str
    seconds: float = 0.0  # measured time of the kernel, where it was timed
    seconds_before: float = 0.0  # measured time of the operations it replaces
    launches_after: int = 1  # 2 where sums over rows are completed by a second kernel
    memory_saved: int = 0  # bytes that the original takes more at its peak


@dataclass(frozen=True, slots=True)
class NotFused:
    """A group of operations was left as it was."""

    graph: int
    nodes: tuple[NodeInfo, ...]
    code: Reason
    reason: str
    culprit: NodeInfo | None = None
    rule: str = ""  # the rule that came nearest


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of checking one distinct region, or a whole graph (`key` = "graph:N").

    error and eager_error are the largest errors against float64 truth, in units of the largest
    magnitude of the truth; `limit` is what the contract allowed.
    """

    key: str
    passed: bool
    how: str  # "device", "interpreter", ...
    error: float = 0.0
    eager_error: float = 0.0
    limit: float = 0.0
    detail: str = ""  # worst element and sample where it did not pass


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Regions with this key went back to the original operations."""

    graph: int
    key: str
    code: Reason
    reason: str
    source_path: str = ""


@dataclass(frozen=True, slots=True)
class FellBack:
    """A whole graph (or the whole model, graph = -1) runs its original operations."""

    graph: int
    code: Reason
    reason: str


@dataclass(frozen=True, slots=True)
class Spliced:
    """A graph with its kernels in place starts this many kernels in a call."""

    graph: int
    launches: int


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A graph is not replayed as a CUDA graph, though `mode="reduce-overhead"` asks for it."""

    graph: int
    reason: str


@dataclass(frozen=True, slots=True)
class Timed:
    """How long one step took, in seconds, without the steps inside it."""

    step: str
    seconds: float
    graph: int = -1


@dataclass(frozen=True, slots=True)
class KernelCompiled:
    """A kernel was compiled for a named target; figures are None where a tool is missing.

    registers: 32-bit registers of a thread. spills: instructions that read or write spilled
    registers. error: why it did not compile, "" where it did.
    """

    key: str
    kernel: str
    target: str
    registers: int | None = None
    stack_bytes: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """How long one call of the whole model takes, in seconds: as written, and optimised."""

    device: str
    seconds_before: float
    seconds: float


Event = (
    GraphCaptured
    | GraphBroken
    | Planned
    | RegionFused
    | NotFused
    | Verified
    | RolledBack
    | FellBack
    | Spliced
    | NotReplayed
    | Timed
    | KernelCompiled
    | Measured
)
EventT = TypeVar("EventT")


@dataclass(slots=True)
class Log:
    """The events of one optimised model, in order; listeners see each as it is recorded."""

    events: list[Event] = field(default_factory=list)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    graphs: int = 0
    _inner: list[float] = field(default_factory=list)  # seconds of finished steps, by depth

    def record(self, event: Event) -> None:
        """Append an event and tell the listeners."""
        self.events.append(event)
        for listener in self.listeners:
            listener(event)

    def next_graph(self) -> int:
        """Return the number of a newly captured graph."""
        self.graphs += 1
        return self.graphs - 1

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one kind, oldest first."""
        return [e for e in self.events if isinstance(e, kind)]

    @contextmanager
    def timed(self, step: str, graph: int = -1) -> Iterator[None]:
        """Record how long the body took, less the steps that it timed itself."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            inner = self._inner.pop()
            if self._inner:
                self._inner[-1] += seconds
            self.record(Timed(step, seconds - inner, graph))


def event_dict(event: Event) -> dict[str, Any]:
    """Return an event as plain data with its kind, for JSON."""
    return {"event": type(event).__name__, **asdict(event)}
