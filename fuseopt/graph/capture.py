"""Run a callable under Dynamo, which hands each graph it finds in it to a compiler.

A `Capture` calls its function through an entry of its own, so compiled code, guards and
recompilations belong to it alone (Dynamo keeps all of these on the code object it enters by):

    def entry(*args, **kwargs):
        if not is_compiling():                        # Dynamo did not take the call
            return state.run_eagerly(function, args, kwargs)
        return function(*args, **kwargs)

A call that Dynamo cannot compile runs as written, with a `FellBack` event; what eager PyTorch
raises is then raised by eager PyTorch.
"""

from __future__ import annotations

import builtins
import inspect
import random
import types
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._dynamo.eval_frame import OptimizeContext, check_if_dynamo_supported
from torch._dynamo.exc import (
    BackendCompilerFailed,
    FailOnRecompileLimitHit,
    RecompileError,
    ResumePrologueTracingError,
    Unsupported,
)
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fuseopt.errors import CaptureError, FuseOptError
from fuseopt.events import FellBack, GraphBroken, Log, Reason
from fuseopt.graph.locate import Frame, innermost

# Graphs for one capture, where Dynamo's own limit is 8 for a function shared by all its callers.
RECOMPILE_LIMIT = 64
# Calls that only Dynamo failed on before it is no longer asked about new kinds of input.
FAILURE_LIMIT = 3

# (graph, example inputs) -> a function of the graph's inputs.
CompileCaptured = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# Errors that are the answer to a setting of the user's, or that must not be taken for a fallback.
_NOT_OURS = (FuseOptError, RecompileError, FailOnRecompileLimitHit, ResumePrologueTracingError)


class _Compiled(BaseException):
    """Ends an ahead-of-time call before the compiled code does anything.

    Not an `Exception`, so that no handler in the user's code takes it.
    """


class Capture:
    """A callable under Dynamo.

    call: the function to call in place of `function`; compiles at the first call and again for
    each new kind of input (dtypes, devices, layouts, flags; sizes by Dynamo's policy, which
    makes a size dynamic once it varies).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        compile_captured: CompileCaptured,
        log: Log,
        *,
        dynamic: bool | None = None,
        strict: bool = False,
    ) -> None:
        self._state = _State(log, compile_captured, strict)
        self._backend = _Backend(weakref.ref(self._state))
        self._entry = _make_entry(function, self._state)
        self._dynamic = dynamic
        self.call: Callable[..., Any] = self._under_dynamo(fullgraph=False)

    def compile_ahead(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, backward: bool = False
    ) -> bool:
        """Compile for these inputs without running anything; return whether that was possible.

        Where gradients are needed, the backward graph is compiled as well if `backward` is set,
        otherwise in the first backward pass.

        A function that Dynamo captures as one graph is traced and compiled, and its compiled
        code is stopped before it does anything: no output, buffer, random state or Python
        object changes. One that breaks into several graphs is left for the first call, since
        reaching the second graph means running what lies before it.
        """
        self._state.is_ahead, self._state.compiled_ahead = True, False
        python_random = random.getstate()  # compiled code draws from it before it calls a graph
        try:
            with functorch_config.patch(force_non_lazy_backward_lowering=backward):
                self._under_dynamo(fullgraph=True)(*args, **kwargs)
        except _Compiled:
            return self._state.compiled_ahead
        except Unsupported as error:
            self._state.record(GraphBroken(_summary(error.msg), _location(error.real_stack)))
            return False
        except _NOT_OURS:
            raise
        except Exception as error:
            # The first call meets the error again and says whether it is the user's or Dynamo's.
            why = f"{type(error).__name__}: {_summary(str(error))}"
            why = f"compiling for the example inputs failed: {why}"
            if self._state.strict:
                raise CaptureError(why) from error
            self._state.record(FellBack(-1, Reason.CAPTURE, why))
            return False
        finally:
            self._state.is_ahead = False
            random.setstate(python_random)
        return False

    def _under_dynamo(self, *, fullgraph: bool) -> Callable[..., Any]:
        context = torch._dynamo.optimize(self._backend, nopython=fullgraph, dynamic=self._dynamic)
        # TORCHDYNAMO_DISABLE=1 gives another context, which calls the entry as it is.
        if isinstance(context, OptimizeContext) and callable(context.callback):
            context.callback = _FrameConverter(context.callback, self._state, self._entry)
        return context(self._entry)


@dataclass(slots=True, weakref_slot=True)
class _State:
    """What a capture's parts share; holds neither the function nor its compiled code."""

    log: Log
    compile_captured: CompileCaptured
    strict: bool
    is_ahead: bool = False
    compiled_ahead: bool = False
    graphs: int = 0
    why_eager: str = "Dynamo did not trace the call"
    failed: types.CodeType | None = None
    failures: Counter[types.CodeType] = field(default_factory=Counter)
    recorded: set[GraphBroken | FellBack] = field(default_factory=set)

    def record(self, event: GraphBroken | FellBack) -> None:
        """Record an event that can recur on every call, once."""
        if event not in self.recorded:
            self.recorded.add(event)
            self.log.record(event)

    def run_eagerly(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call that Dynamo did not take."""
        if self.is_ahead:
            raise _Compiled
        failed, self.failed = self.failed, None
        result = function(*args, **kwargs)
        # What raises here is the user's error, and not one of capture.
        if failed is not None:
            self.failures[failed] += 1
        self.record(FellBack(-1, Reason.CAPTURE, self.why_eager))
        return result


class _Backend:
    """The compiler as Dynamo calls it. Dynamo keeps it for good, so it owns nothing."""

    def __init__(self, state: weakref.ref[_State]) -> None:
        self._state = state

    def __call__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        state = self._state()
        assert state is not None, "the caller of the function being compiled holds its state"
        broken = graph_break(gm)
        if broken is not None:
            state.record(broken)
        compiled = state.compile_captured(gm, example_inputs)
        state.graphs += 1

        def run(*args: Any) -> Any:
            if state.is_ahead:
                state.compiled_ahead = True
                raise _Compiled
            return compiled(*args)

        return run


class _FrameConverter:
    """Dynamo's frame callback with our limit on recompilations and our way with failures."""

    def __init__(
        self, convert: Callable[..., ConvertFrameReturn], state: _State, entry: types.FunctionType
    ) -> None:
        self._torchdynamo_orig_backend = convert  # Dynamo finds the backend by this name
        self._state = state
        self._entry_code = entry.__code__
        self._own_code = getattr(inspect.unwrap(entry), "__code__", None)

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        state = self._state
        if state.failures[frame.f_code] >= FAILURE_LIMIT:
            return _run_as_written()
        limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
        graphs = state.graphs
        before = Counter(counters["graph_break"])
        try:
            with torch._dynamo.config.patch(recompile_limit=limit):
                result = self._torchdynamo_orig_backend(frame, cache_entry, frame_state)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, FuseOptError):
                raise error.inner_exception from error.inner_exception.__cause__
            return self._failed(frame, error)
        except _NOT_OURS:
            raise
        except Exception as error:
            return self._failed(frame, error)
        if state.is_ahead and state.graphs == graphs:
            raise _Compiled  # Python code without a graph in it, which could not be stopped later
        self._record_breaks(frame, Counter(counters["graph_break"]) - before)
        if result.guarded_code is None and frame.f_code is self._entry_code:
            return self._skipped(result, limit)
        return result

    def _failed(self, frame: Any, error: Exception) -> ConvertFrameReturn:
        state, why = self._state, f"{type(error).__name__}: {_summary(str(error))}"
        if state.is_ahead:
            raise error
        if state.strict:
            raise CaptureError(f"the call could not be captured: {why}") from error
        if frame.f_code is self._entry_code:
            state.why_eager, state.failed = why, frame.f_code
        else:
            state.failures[frame.f_code] += 1
            state.record(FellBack(-1, Reason.CAPTURE, why))
        return _run_as_written()

    def _skipped(self, result: ConvertFrameReturn, limit: int) -> ConvertFrameReturn:
        if is_in_torch_dispatch_mode(include_infra_modes=False):
            # Dynamo would skip the function for good, also once the mode (a FLOP counter,
            # say) has ended.
            self._state.why_eager = "a TorchDispatchMode is active, which Dynamo does not trace"
            return _run_as_written()
        if result.frame_exec_strategy.cur_action == FrameAction.RUN_ONLY:
            why = f"more than {limit} kinds of input: Dynamo compiles no more for this call"
        else:
            why = "Dynamo found no tensor operation to compile"
        self._state.why_eager = why
        return result

    def _record_breaks(self, frame: Any, messages: Counter[str]) -> None:
        # A graph that ends in a break says so itself; what is left broke before any operation.
        reported = {e.reason for e in self._state.log.of(GraphBroken)}
        code = self._own_code if frame.f_code is self._entry_code else frame.f_code
        location = Frame(code.co_filename, code.co_firstlineno, "").location if code else ""
        for reason in {_summary(m) for m in messages} - reported:
            self._state.record(GraphBroken(reason, location))


def graph_break(gm: fx.GraphModule) -> GraphBroken | None:
    """Return why Dynamo ended a graph before the function's end, None where it did not."""
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is None or not why.graph_break:
        return None
    return GraphBroken(_summary(why.reason), _location(why.user_stack))


def _make_entry(function: Callable[..., Any], state: _State) -> types.FunctionType:
    is_compiling = torch.compiler.is_compiling  # in a cell: Dynamo looks for globals by module

    def entry(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            return state.run_eagerly(function, args, kwargs)
        return function(*args, **kwargs)

    # Dynamo remembers which sizes varied under the name of the code, across all callers in the
    # process, so each entry has a name of its own. Compiled code is put among the globals: its
    # own as well, which end with it.
    name = f"{getattr(function, '__name__', 'call')}_{uuid.uuid4().hex}"
    own = types.FunctionType(
        entry.__code__.replace(co_name=name),
        {"__builtins__": builtins, "__name__": __name__},
        name,
        None,
        entry.__closure__,
    )
    own.__doc__ = function.__doc__
    own.__wrapped__ = function  # type: ignore[attr-defined] # inspect.signature follows it
    return own


def _run_as_written() -> ConvertFrameReturn:
    # This call only: a later one with other inputs may compile, and those that did stay compiled.
    return ConvertFrameReturn(
        frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP),
        apply_to_code=False,
    )


def _summary(text: str) -> str:
    """Shorten Dynamo's message to what happened and why."""
    lines = [line.strip() for line in text.strip().splitlines()]
    what = lines[0] if lines else "unknown"
    if what == "step_unsupported":
        return "an instruction that Dynamo cannot trace"
    why = [line.removeprefix("Explanation:").strip() for line in lines if "Explanation:" in line]
    return f"{what}: {why[0]}" if why and why[0] != what else what


def _location(stack: Sequence[Any] | None) -> str:
    frame = innermost(Frame(s.filename, s.lineno or 0, s.line or "") for s in stack or ())
    return frame.location if frame else ""


def require_dynamo() -> None:
    """Raise `CaptureError` where this Python or platform has no Dynamo."""
    try:
        check_if_dynamo_supported()
    except RuntimeError as error:
        raise CaptureError(f"the model cannot be traced here: {error}") from error
