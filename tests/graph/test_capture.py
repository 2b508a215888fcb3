"""Capture under Dynamo: what is compiled when, what is recorded, and what is left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from fuseopt.errors import CaptureError, UsageError
from fuseopt.events import FellBack, GraphBroken, Log
from fuseopt.graph import capture
from fuseopt.graph.capture import Capture


class Compiler:
    """Counts the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runs = 0

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)

        def run(*args):
            self.runs += 1
            return gm.forward(*args)

        return run


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def log() -> Log:
    return Log()


X = torch.arange(6.0).reshape(2, 3)


def test_compiling_ahead_makes_one_graph_that_has_not_run(compiler, log):
    captured = Capture(lambda x: x.relu() + 1, compiler, log)

    assert captured.compile_ahead((X,), {})
    assert (len(compiler.graphs), compiler.runs) == (1, 0)
    assert torch.equal(captured.call(X), X.relu() + 1)
    assert (len(compiler.graphs), compiler.runs) == (1, 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_code_compiled_ahead_is_used_in_the_same_gradient_mode(compiler, log, mode):
    linear = nn.Linear(3, 3)
    captured = Capture(linear.forward, compiler, log)
    with mode():
        captured.compile_ahead((X,), {})
        captured.call(X)

    assert len(compiler.graphs) == 1


def test_compiling_ahead_twice_compiles_once(compiler, log):
    captured = Capture(lambda x: x + 1, compiler, log)

    assert captured.compile_ahead((X,), {})
    assert captured.compile_ahead((X,), {})
    assert len(compiler.graphs) == 1


def test_a_handler_in_the_model_does_not_swallow_the_stop(compiler, log):
    def careful(x):
        try:
            return x.relu()
        except Exception:
            return None

    captured = Capture(careful, compiler, log)

    assert captured.compile_ahead((X,), {})
    assert compiler.runs == 0


def test_a_function_that_breaks_is_left_for_the_first_call(compiler, log):
    seen = []

    def broken(x):
        seen.append(1)
        y = x.relu()
        torch._dynamo.graph_break()
        return y + 1

    captured = Capture(broken, compiler, log)

    assert not captured.compile_ahead((X,), {})
    assert (seen, compiler.runs) == ([], 0)
    assert torch.equal(captured.call(X), X.relu() + 1)
    assert (seen, compiler.runs) == ([1], 2)
    assert len(log.of(GraphBroken)) == 1


def test_a_break_before_any_operation_is_recorded(compiler, log):
    def broken(x):
        torch._dynamo.graph_break()
        return x.relu()

    Capture(broken, compiler, log).call(X)
    (event,) = log.of(GraphBroken)

    assert "graph_break" in event.reason
    assert event.location.startswith("test_capture.py:")


def test_recompiling_stops_at_the_limit_and_says_so(compiler, log, monkeypatch):
    monkeypatch.setattr(capture, "RECOMPILE_LIMIT", 9)
    captured = Capture(lambda x, name: x + len(name), compiler, log)
    for length in range(12):
        assert torch.equal(captured.call(X, "n" * length), X + length)

    assert len(compiler.graphs) == 9
    (event,) = log.of(FellBack)
    assert "more than 9 kinds of input" in event.reason
    assert torch._dynamo.config.recompile_limit == 8  # put back after each compilation


def test_what_was_compiled_stays_in_use_after_the_limit(compiler, log, monkeypatch):
    monkeypatch.setattr(capture, "RECOMPILE_LIMIT", 9)
    captured = Capture(lambda x, name: x + len(name), compiler, log)
    for length in range(12):
        captured.call(X, "n" * length)
    runs = compiler.runs
    captured.call(X, "n")

    assert compiler.runs == runs + 1


def test_an_error_of_the_compilers_runs_the_call_as_written(log):
    def fail(gm, example_inputs):
        raise RuntimeError("no compiler today\nand more")

    captured = Capture(lambda x: x + 1, fail, log)
    for _ in range(3):
        assert torch.equal(captured.call(X), X + 1)

    (event,) = log.of(FellBack)
    assert event.reason.startswith("BackendCompilerFailed: ")


def test_a_mistake_of_the_users_comes_out_of_the_compiler_as_it_is(log):
    def fail(gm, example_inputs):
        raise UsageError("unknown option")

    captured = Capture(lambda x: x + 1, fail, log)
    with pytest.raises(UsageError, match=r"^unknown option$"):
        captured.call(X)
    with pytest.raises(UsageError, match=r"^unknown option$"):
        captured.compile_ahead((X,), {})


def test_strict_raises_what_would_have_been_a_fallback(log):
    def fail(gm, example_inputs):
        raise RuntimeError("no compiler today")

    captured = Capture(lambda x: x + 1, fail, log, strict=True)
    with pytest.raises(CaptureError, match="could not be captured"):
        captured.call(X)


def test_a_failing_kind_of_input_leaves_the_others_compiled(compiler, log):
    def pick(x, how):
        if how == "bad":
            return x.view(7, 7)
        return x + 1

    captured = Capture(pick, compiler, log)
    captured.call(X, "good")
    for _ in range(4):
        with pytest.raises(RuntimeError, match="is invalid for input of size 6"):
            captured.call(X, "bad")
    runs = compiler.runs
    captured.call(X, "good")

    assert compiler.runs == runs + 1
    assert log.of(FellBack) == []  # the user's error, and eager raises it too


def test_a_call_under_a_dispatch_mode_does_not_end_the_capture(compiler, log):
    from torch.utils.flop_counter import FlopCounterMode

    linear = nn.Linear(3, 4)
    captured = Capture(linear.forward, compiler, log)
    for _ in range(capture.FAILURE_LIMIT + 1):
        with FlopCounterMode(display=False) as flops:
            captured.call(X)
        assert flops.get_total_flops() == 2 * 2 * 3 * 4
    captured.call(X)

    assert compiler.runs == 1
    (event,) = log.of(FellBack)
    assert "TorchDispatchMode" in event.reason


def test_each_capture_is_compiled_for_itself(log):
    class Model(nn.Module):
        def forward(self, x):
            return x + 1

    compilers = [Compiler() for _ in range(12)]
    captures = [Capture(Model().forward, c, log) for c in compilers]
    for captured in captures:
        captured.call(X)

    assert [len(c.graphs) for c in compilers] == [1] * 12
    assert log.events == []


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_dynamic_decides_how_often_a_new_size_compiles(compiler, log, dynamic):
    captured = Capture(lambda x: x.relu() * 2, compiler, log, dynamic=dynamic)
    for rows in (2, 4, 6, 8):
        captured.call(torch.ones(rows, 3))

    assert len(compiler.graphs) == {None: 2, True: 1, False: 4}[dynamic]


def test_nothing_outlives_a_capture(compiler, log):
    model = nn.Linear(3, 3)
    captured = Capture(model.forward, compiler, log)
    captured.call(X)
    ended = weakref.ref(model), weakref.ref(compiler.graphs[0]), weakref.ref(compiler)
    # Dynamo keeps the backend object for good: it must not keep any of these.
    del model, captured, compiler
    gc.collect()

    # The fixture holds the compiler itself.
    assert ended[0]() is None


def test_with_dynamo_turned_off_the_model_runs_as_written():
    code = (
        "import torch, fuseopt; f = fuseopt.optimize(lambda x: x + 1, (torch.ones(2),));"
        "print(f(torch.ones(2)).tolist(), [e.reason for e in f.log.events])"
    )
    out = subprocess.run(
        [sys.executable, "-c", f"import os; os.environ['TORCHDYNAMO_DISABLE'] = '1'; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[2.0, 2.0] ['Dynamo did not trace the call']"
