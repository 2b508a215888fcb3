"""`fuseopt.optimize`: what it accepts, what it returns, and what it leaves alone."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuseopt
from fuseopt.errors import CacheError, CaptureError, KernelError, RuleError, UsageError
from fuseopt.events import FellBack, GraphBroken, GraphCaptured, Reason


class Block(nn.Module):
    """Has a parameter, a persistent and a non-persistent buffer, and a Python counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.proj = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.ones(8), persistent=False)
        self.calls = 0

    def forward(self, x, *, shift=None):
        """Normalise, project, activate."""
        self.calls += 1
        self.count.add_(1)
        h = F.gelu(self.proj(self.norm(x))) * self.scale + torch.rand_like(x)
        return {"h": h if shift is None else h + shift, "count": self.count * 2, "none": None}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return F.gelu(self.proj(self.norm(x)))

    def generate(self, x):
        return self(self(x))


class Broken(Plain):
    def forward(self, x):
        h = self.norm(x)
        torch._dynamo.graph_break()
        return F.gelu(self.proj(h))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def captured(optimized) -> int:
    return len(optimized.log.of(GraphCaptured))


def fallbacks(optimized) -> list[FellBack]:
    return [e for e in optimized.log.of(FellBack) if e.code is Reason.CAPTURE]


# ------------------------------------------------------------------------- compiling ahead


@pytest.mark.parametrize(("grad", "graphs"), [(False, 1), (True, 2)])
def test_example_inputs_compile_at_once_and_the_first_call_does_not(x, grad, graphs):
    with torch.set_grad_enabled(grad):
        optimized = fuseopt.optimize(Block(), (x,), {"shift": 1.0})
        before = captured(optimized)
        optimized(x, shift=1.0)

    assert before == captured(optimized) == graphs


@pytest.mark.parametrize("grad", [False, True])
def test_compiling_ahead_changes_nothing(x, grad):
    model, given = Block(), x.clone()
    states = torch.get_rng_state(), random.getstate()
    with torch.set_grad_enabled(grad):
        fuseopt.optimize(model, (given,))

    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert model.calls == 0
    assert model.count == 0
    assert torch.equal(given, x)


def test_compiling_ahead_runs_no_python_code_even_without_a_tensor_operation(x):
    class Counts(nn.Module):
        seen = 0

        def forward(self, x):
            self.seen += 1
            return x

    model = Counts()
    optimized = fuseopt.optimize(model, (x,))

    assert model.seen == 0
    assert optimized(x) is x
    assert model.seen == 1


def test_without_example_inputs_the_first_call_compiles(x):
    optimized = fuseopt.optimize(Plain())

    assert captured(optimized) == 0
    optimized(x)
    assert captured(optimized) > 0


@torch.no_grad()
def test_a_new_kind_of_input_is_compiled_when_it_comes(x):
    model = Plain()
    optimized = fuseopt.optimize(model, (x,))
    torch.testing.assert_close(optimized(x[0]), model(x[0]))
    assert captured(optimized) == 2
    optimized(x), optimized(x[0])
    assert captured(optimized) == 2


@torch.no_grad()
def test_a_size_becomes_dynamic_once_it_varies(x):
    model = Plain()
    optimized = fuseopt.optimize(model, (x,))
    for rows in (3, 5, 7, 9, 11):
        torch.testing.assert_close(
            optimized(torch.ones(rows, 8)), model(torch.ones(rows, 8)), rtol=1e-6, atol=1e-6
        )

    assert captured(optimized) == 2


@torch.no_grad()
def test_what_one_model_saw_does_not_make_sizes_dynamic_in_another():
    for rows in (3, 5, 7):
        optimized = fuseopt.optimize(Plain(), (torch.ones(rows, 8),))
        assert captured(optimized) == 1
        assert "sym_size" not in optimized.source()
        optimized(torch.ones(rows, 8))
        assert captured(optimized) == 1


@torch.no_grad()
def test_many_kinds_of_input_stay_compiled(x):
    optimized = fuseopt.optimize(lambda x, name: x * 2 + len(name), dynamic=False)
    for length in range(12):
        assert torch.equal(optimized(x, "n" * length), x * 2 + length)

    assert captured(optimized) == 12
    assert fallbacks(optimized) == []


@torch.no_grad()
def test_a_graph_break_is_reported_with_its_line_and_the_parts_are_compiled(x):
    model = Broken()
    optimized = fuseopt.optimize(model, (x,))
    torch.testing.assert_close(optimized(x), model(x))
    (broken,) = optimized.log.of(GraphBroken)
    line = inspect.getsourcelines(Broken.forward)[1] + 2

    assert broken.location == f"test_api.py:{line}"
    assert "graph_break" in broken.reason
    assert captured(optimized) == 2


# ------------------------------------------------------------------------- the module contract


def test_state_is_shared_and_not_copied(x):
    model = Plain()
    optimized = fuseopt.optimize(model, (x,))

    assert list(optimized.state_dict()) == list(model.state_dict())
    assert optimized.proj.weight is model.proj.weight
    optimized.eval()
    assert not model.training
    model.extra = nn.Linear(2, 2)
    assert optimized.extra is model.extra


def test_the_original_keeps_its_class_attributes_and_forward(x):
    model = Plain()
    before = dict(model.__dict__)
    optimized = fuseopt.optimize(model, (x,))
    optimized(x)

    assert type(model) is Plain
    assert model.__dict__ == before
    assert type(model).forward is Plain.forward
    assert optimized.original is model


def test_the_result_is_an_instance_of_the_models_class_and_carries_its_name(x):
    optimized = fuseopt.optimize(Plain())

    assert isinstance(optimized, Plain)
    assert type(optimized).__name__ == "Plain"
    assert type(optimized).__qualname__ == "OptimizedPlain"
    assert inspect.signature(optimized.forward) == inspect.signature(Plain().forward)
    assert inspect.signature(type(optimized).forward) == inspect.signature(Plain.forward)


@torch.no_grad()
def test_methods_that_call_the_model_use_the_compiled_forward(x):
    model = Plain()
    optimized = fuseopt.optimize(model)
    torch.testing.assert_close(optimized.generate(x), model.generate(x))

    assert captured(optimized) == 1


def test_outputs_keep_their_containers(x):
    out = fuseopt.optimize(Block())(x, shift=2.0)

    assert list(out) == ["h", "count", "none"]
    assert out["none"] is None
    assert out["count"] == 2


def test_gradients_are_those_of_the_original(x):
    model = Plain()
    twin = copy.deepcopy(model)
    optimized = fuseopt.optimize(model)
    optimized(x).pow(2).sum().backward()
    twin(x).pow(2).sum().backward()
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)

    levels = [e.level for e in optimized.log.of(GraphCaptured)]
    assert levels == ["forward", "backward"]


@pytest.mark.parametrize(("training", "levels"), [(True, 2), (False, 1)])
def test_a_model_in_training_mode_has_its_backward_compiled_ahead(x, training, levels):
    optimized = fuseopt.optimize(Plain().train(training), (x,))
    assert captured(optimized) == levels
    optimized(x).sum().backward()
    assert captured(optimized) == 2


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("ahead", [True, False])
def test_backward_runs_twice_over_a_retained_graph(x, dynamic, ahead):
    model = Plain().train()
    optimized = fuseopt.optimize(model, (x,) if ahead else None, dynamic=dynamic)
    out = optimized(x).square().sum()
    first = torch.autograd.grad(out, model.norm.weight, retain_graph=True)
    second = torch.autograd.grad(out, model.norm.weight)
    torch.testing.assert_close(first, second)
    expected = torch.autograd.grad(model(x).square().sum(), model.norm.weight)
    torch.testing.assert_close(first, expected)


def test_hooks_on_the_model_and_on_the_result_run_once_each(x):
    seen: list[str] = []
    model = Plain()
    model.register_forward_hook(lambda *_: seen.append("model"))
    optimized = fuseopt.optimize(model, (x,))
    optimized.register_forward_pre_hook(lambda *_: seen.append("result"))
    optimized(x)

    assert seen == ["result", "model"]


@pytest.mark.parametrize("name", ["norm", "proj"])
def test_a_hook_added_to_a_submodule_later_runs_and_can_be_removed(x, name):
    seen: list[int] = []
    optimized = fuseopt.optimize(Plain(), (x,))
    optimized(x)
    handle = getattr(optimized, name).register_forward_hook(lambda *_: seen.append(1))
    optimized(x)
    assert seen == [1]
    handle.remove()
    optimized(x)
    assert seen == [1]


@torch.no_grad()
def test_a_deep_copy_is_independent_and_works(x):
    optimized = fuseopt.optimize(Plain(), (x,))
    expected = optimized(x)
    twin = copy.deepcopy(optimized)
    twin.proj.weight.zero_()

    assert isinstance(twin, Plain)
    assert torch.equal(optimized(x), expected)
    torch.testing.assert_close(twin(x), twin.original(x))


@torch.no_grad()
def test_a_pickled_model_loads_as_an_optimised_one(x):
    optimized = fuseopt.optimize(Plain(), numerics="eager")
    loaded = pickle.loads(pickle.dumps(optimized))

    assert type(loaded).__qualname__ == "OptimizedPlain"
    torch.testing.assert_close(loaded(x), optimized.original(x))
    assert captured(loaded) == 1


@torch.no_grad()
def test_a_forward_set_on_the_model_is_the_one_compiled(x):
    model = Plain()
    forward = model.forward
    model.forward = lambda x: forward(x) * 2
    optimized = fuseopt.optimize(model, (x,))

    torch.testing.assert_close(optimized(x), forward(x) * 2)
    assert captured(optimized) == 1


def test_a_forward_set_on_the_result_is_used_until_deleted(x):
    model = Plain()
    optimized = fuseopt.optimize(model)
    optimized.forward = lambda x: x

    assert optimized(x) is x
    assert "forward" not in vars(model)
    del optimized.forward
    torch.testing.assert_close(optimized(x), model(x))


def test_a_models_own_attributes_go_before_ours(x):
    class Logs(Plain):
        def log(self, value):
            return value

    optimized = fuseopt.optimize(Logs())

    assert optimized.log(3) == 3
    assert optimized.original is not None


def test_slots_of_the_models_class_are_shared(x):
    class Slotted(nn.Module):
        __slots__ = ("factor",)

        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def forward(self, x):
            return x * self.factor

    model = Slotted()
    optimized = fuseopt.optimize(model)
    assert torch.equal(optimized(x), x * 2)
    optimized.factor = 3.0
    assert model.factor == 3.0
    assert torch.equal(optimized(x), x * 3)


def test_the_models_class_does_not_hear_of_the_subclass():
    class Registers(nn.Module):
        subclasses: list[type] = []  # noqa: RUF012

        def __init_subclass__(cls, *, tag):
            cls.subclasses.append(cls)

        def forward(self, x):
            return x + 1

    fuseopt.optimize(Registers())
    assert Registers.subclasses == []


def test_a_finaliser_of_the_models_class_runs_only_for_the_model():
    ended: list[int] = []

    class Closes(nn.Module):
        def __del__(self):
            ended.append(1)

        def forward(self, x):
            return x + 1

    model = Closes()
    optimized = fuseopt.optimize(model)
    del optimized
    assert ended == []
    del model
    assert ended == [1]


def test_optimising_again_starts_from_the_original():
    model = Plain()
    assert fuseopt.optimize(fuseopt.optimize(model)).original is model


@torch.no_grad()
def test_an_enclosing_model_captures_through_an_optimised_part(x):
    part = Plain()
    whole = nn.Sequential(fuseopt.optimize(part), nn.ReLU())
    expected = nn.Sequential(part, nn.ReLU())(x)

    assert list(whole.state_dict()) == list(nn.Sequential(part, nn.ReLU()).state_dict())
    outer = fuseopt.optimize(whole, (x,))
    torch.testing.assert_close(outer(x), expected)
    assert captured(outer) == 1
    exported = torch.export.export(whole, (x,)).module()
    torch.testing.assert_close(exported(x), expected)


@torch.no_grad()
def test_the_opaque_encoder_kernel_is_opened_and_its_switch_put_back(x):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    optimized = fuseopt.optimize(model, (x[None],))
    torch.testing.assert_close(optimized(x[None]), model(x[None]), rtol=1e-5, atol=1e-5)

    assert "layer_norm" in optimized.source()
    assert "_transformer_encoder_layer_fwd" not in optimized.source()
    assert torch.backends.mha.get_fastpath_enabled()


# ------------------------------------------------------------------------- functions


def activate(x: torch.Tensor) -> torch.Tensor:
    """Activate."""
    return F.silu(x) + 1


def test_a_function_keeps_its_name_and_gains_a_log(x):
    optimized = fuseopt.optimize(activate, (x,))

    assert (optimized.__name__, optimized.__doc__) == ("activate", "Activate.")
    assert optimized.original is activate
    torch.testing.assert_close(optimized(x), activate(x))
    assert captured(optimized) == 1
    assert "silu" in optimized.source()
    assert copy.deepcopy(optimized) is optimized


@fuseopt.optimize
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_functions_pickle_by_name_when_decorated_and_by_original_otherwise(x):
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    loaded = pickle.loads(pickle.dumps(fuseopt.optimize(activate)))
    assert loaded.original is activate


def test_an_enclosing_capture_goes_through_a_decorated_function(x):
    outer = fuseopt.optimize(lambda x: decorated(x) * 2, (x,))
    assert torch.equal(outer(x), (x + 1) * 2)
    assert captured(outer) == 1


def test_optimize_decorates_methods(x):
    class Model(nn.Module):
        @fuseopt.optimize
        def double(self, x):
            return x * 2

        def forward(self, x):
            return self.double(x)

    assert torch.equal(Model()(x), x * 2)


# ------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fuseopt.optimize(Plain), "Plain is a class: pass an instance"),
        (lambda x: fuseopt.optimize(3), "not int"),
        (lambda x: fuseopt.optimize(Plain(), x), r"write \(x,\), not x"),
        (lambda x: fuseopt.optimize(Plain(), {"x": x}), "args must be a tuple or list"),
        (lambda x: fuseopt.optimize(Plain(), (x,), [x]), "kwargs must be a dict"),
        (lambda x: fuseopt.optimize(Plain(), (x, x)), "too many positional arguments"),
        (lambda x: fuseopt.optimize(Plain(), ()), "missing a required argument: 'x'"),
        (lambda x: fuseopt.optimize(Plain(), mode="fast"), "mode='fast' is not one of"),
        (lambda x: fuseopt.optimize("model.pt2"), "there is no file model.pt2"),
        (
            lambda x: fuseopt.optimize(torch.compile(Plain(), backend="eager")),
            "pass model._orig_mod",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(x, call, message):
    with pytest.raises(UsageError, match=message) as error:
        call(x)
    assert "\n" not in str(error.value)


def test_a_mistaken_rule_is_told_when_optimising():
    with pytest.raises(RuleError, match="3 is no rule"):
        fuseopt.optimize(Plain(), rules=[3])


def test_an_unknown_variable_is_told_when_optimising(monkeypatch):
    monkeypatch.setenv("FUSEOPT_JOBZ", "2")
    with pytest.raises(UsageError, match="did you mean FUSEOPT_JOBS"):
        fuseopt.optimize(Plain())


def test_a_home_that_is_not_there_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", "~nobody-of-this-name/cache")
    with pytest.raises(UsageError, match="set FUSEOPT_CACHE_DIR to a directory you can write"):
        fuseopt.optimize(Plain())


@torch.no_grad()
def test_a_cache_that_cannot_be_used_costs_no_kernel(x, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot make the cache directory"):
        optimized = fuseopt.optimize(Plain().eval(), (x,))

    torch.testing.assert_close(optimized(x), optimized.original(x))
    assert any(region.running for region in optimized.report.regions)


def test_a_file_that_is_no_program_is_told_in_one_line(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(UsageError, match=r"is not a program saved by torch\.export\.save"):
        fuseopt.optimize(path)


@pytest.mark.parametrize("value", [torch.ones(3, 5), "text", None])
def test_an_error_of_the_users_is_the_one_that_eager_raises(value):
    model = Plain()
    with pytest.raises(Exception) as expected:  # noqa: PT011
        model(value)
    optimized = fuseopt.optimize(model)
    with pytest.raises(type(expected.value)) as got:
        optimized(value)

    assert str(got.value) == str(expected.value)
    torch.testing.assert_close(optimized(torch.ones(3, 8)), model(torch.ones(3, 8)))


@torch.no_grad()
def test_a_call_that_dynamo_fails_on_runs_as_written_and_says_so(x, monkeypatch):
    from torch._dynamo import symbolic_convert

    def fail(*args, **kwargs):
        raise RuntimeError("no bytecode today")

    model = Plain()
    optimized = fuseopt.optimize(model)
    monkeypatch.setattr(symbolic_convert.InstructionTranslator, "__init__", fail)
    torch.testing.assert_close(optimized(x), model(x))
    (event,) = fallbacks(optimized)
    assert "no bytecode today" in event.reason
    strict = fuseopt.optimize(model, strict=True)
    with pytest.raises(CaptureError, match="no bytecode today"):
        strict(x)


# ------------------------------------------------------------------------- exported programs


class Updates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, *, extra):
        self.count.add_(1)
        h = F.dropout(F.gelu(self.fc(x)), 0.1, self.training) + extra["a"]
        x.add_(1)
        return {"h": h, "rows": x.shape[0] * 2}


def export_updates(decomposed: bool = False):
    model, extra = Updates().eval(), {"a": torch.ones(8)}
    rows = {"x": {0: torch.export.Dim.AUTO}, "extra": {"a": None}}
    program = torch.export.export(
        copy.deepcopy(model), (torch.randn(4, 8),), {"extra": extra}, dynamic_shapes=rows
    )
    return model, program.run_decompositions({}) if decomposed else program, {"extra": extra}


# torch's own copying of a tree of inputs, on some versions
treespec_warning = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")


@treespec_warning
@pytest.mark.parametrize("decomposed", [False, True])
@torch.no_grad()
def test_an_exported_program_runs_as_its_model_does(decomposed):
    model, program, kwargs = export_updates(decomposed)
    optimized = fuseopt.optimize(program)
    for rows in (4, 6, 4):
        x = torch.randn(rows, 8)
        given = x.clone()
        torch.testing.assert_close(optimized(given, **kwargs), model(x, **kwargs))
        torch.testing.assert_close(given, x)
    assert optimized.count == model.count == 3
    assert sorted(optimized.state_dict()) == sorted(model.state_dict())
    assert captured(optimized) == 1
    assert fallbacks(optimized) == []


@torch.no_grad()
def test_inputs_that_were_not_exported_go_to_the_programs_own_module():
    _, program, kwargs = export_updates()
    optimized = fuseopt.optimize(program)
    with pytest.raises(AssertionError, match="Guard failed"):
        optimized(torch.randn(4, 7), **kwargs)
    strided = torch.randn(8, 4).t()
    torch.testing.assert_close(
        optimized(strided.clone(), **kwargs)["h"], program.module()(strided, **kwargs)["h"]
    )
    assert any("other dtypes, layouts or sizes" in e.reason for e in fallbacks(optimized))


def test_gradients_through_a_program_come_from_its_own_module():
    program = torch.export.export(Plain(), (torch.randn(3, 8),))
    optimized = fuseopt.optimize(program)
    optimized(torch.randn(3, 8)).sum().backward()

    assert optimized.proj.weight.grad is not None
    assert any("gradients" in e.reason for e in fallbacks(optimized))


@treespec_warning
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@torch.no_grad()
def test_a_saved_program_is_accepted_by_its_path_and_pickles(tmp_path):
    model, program, kwargs = export_updates()
    torch.export.save(program, tmp_path / "model.pt2")
    optimized = fuseopt.optimize(tmp_path / "model.pt2")
    x = torch.randn(4, 8)
    expected = model(x.clone(), **kwargs)

    torch.testing.assert_close(optimized(x.clone(), **kwargs), expected)
    twin = copy.deepcopy(optimized)
    twin.fc.weight.zero_()
    torch.testing.assert_close(optimized(x.clone(), **kwargs), expected)
    loaded = pickle.loads(pickle.dumps(optimized))
    torch.testing.assert_close(loaded(x.clone(), **kwargs), expected)


# ------------------------------------------------------------------------- import


def test_importing_fuseopt_is_light():
    code = (
        "import sys, torch; before = set(sys.modules); import fuseopt;"
        "print([m for m in ('triton', 'sympy', 'torch._dynamo', 'torch._functorch.aot_autograd')"
        " if m in sys.modules and m not in before])"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("FUSEOPT_")}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("error", [KernelError("no registers left"), CacheError("disk full")])
@torch.no_grad()
def test_a_kernel_that_cannot_be_built_for_new_sizes_runs_as_written(
    x, monkeypatch, tmp_path, error
):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    model = Plain().eval()
    optimized = fuseopt.optimize(model, (x,), dynamic=True)
    torch.testing.assert_close(optimized(x), model(x))

    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("fuseopt.runtime.build.generate", fail)
    for rows in (100, 101):
        given = torch.randn(rows, 8)
        torch.testing.assert_close(optimized(given), model(given))

    told = [(r.code, r.reason) for r in optimized.report.rolled_back]
    kernels = {r.key for r in optimized.report.regions}
    assert told == [(Reason.COMPILE, f"{error}; it runs as written at sizes like [100]")] * len(
        kernels
    )


# --- tensors that only operations know how to work on ------------------------------------------


def curve(x):
    return (x * 2 + 1).tanh() * x


@pytest.fixture
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


@pytest.mark.usefixtures("interpreted")
def test_forward_mode_keeps_its_tangents():
    import torch.autograd.forward_ad as forward_ad

    optimized, x, t = fuseopt.optimize(curve), torch.randn(4), torch.randn(4)

    def tangent(function):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, t))).tangent

    for _ in range(2):
        torch.testing.assert_close(tangent(optimized), tangent(curve))
        torch.testing.assert_close(optimized(x), curve(x))


@pytest.mark.usefixtures("interpreted")
def test_fake_tensors_give_fake_tensors():
    from torch._subclasses import FakeTensor, FakeTensorMode

    optimized = fuseopt.optimize(curve)

    with FakeTensorMode() as mode:
        given = optimized(mode.from_tensor(torch.randn(4, 8)))

    assert isinstance(given, FakeTensor)
    assert given.shape == (4, 8)
    x = torch.randn(4, 8)
    torch.testing.assert_close(optimized(x), curve(x))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("first", [True, False], ids=["batched first", "plain first"])
@pytest.mark.parametrize("verify", [True, False])
def test_gradients_may_be_batched(first, verify):
    x = torch.randn(2, 3, requires_grad=True)
    optimized = fuseopt.optimize(curve, verify=verify)
    each = torch.eye(6).view(6, 2, 3)

    def jacobian(function):
        return torch.autograd.grad(function(x), x, each, is_grads_batched=True)[0]

    if not first:
        optimized(x).sum().backward()

    torch.testing.assert_close(jacobian(optimized), jacobian(curve))
    assert not optimized.log.of(FellBack)


def test_a_forward_assigned_to_the_original_afterwards_is_what_runs(x):
    block = nn.Sequential(nn.LayerNorm(8))
    optimized = fuseopt.optimize(block)
    before = optimized(x)

    block.forward = lambda x: x * 3
    assert torch.equal(optimized(x), x * 3)
    del block.forward
    torch.testing.assert_close(optimized(x), before)


def test_example_inputs_that_the_model_refuses():
    optimized = fuseopt.optimize(nn.Linear(4, 4), (torch.randn(2, 5),))

    (event,) = optimized.log.of(FellBack)
    assert "example inputs" in event.reason
    with pytest.raises(CaptureError, match="example inputs"):
        fuseopt.optimize(nn.Linear(4, 4), (torch.randn(2, 5),), strict=True)
