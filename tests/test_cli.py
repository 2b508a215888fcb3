"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

import fuseopt
from fuseopt.cli import main
from fuseopt.cli.app import FAILED, USAGE
from fuseopt.cli.targets import Choices, load_target
from fuseopt.report.json import SCHEMA

MODELS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)) * 2)


def make(width=16, layers=3):
    model = nn.Sequential(*(Block(width) for _ in range(layers)))
    return model.eval(), (torch.randn(4, 8, width),), {}


def without_kwargs():
    return nn.ReLU(), (torch.randn(4),)


def function():
    return (lambda x, y: torch.softmax(x * 2 + y, -1)), (torch.randn(4, 8), torch.randn(8)), {}


class Branching(nn.Module):
    def forward(self, x):
        y = torch.tanh(x) * 2
        return torch.relu(y + 1) if y.sum() > 0 else y - 1


def branching():
    return Branching().eval(), (torch.ones(8, 8),), {}


def probabilities():
    def loss(x, y):
        return torch.nn.functional.binary_cross_entropy(x, y, reduction="none") * 2 + x

    return loss, (torch.rand(4, 8), torch.rand(4, 8)), {}


def training():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (torch.randn(4, 8),), {}


def raises():
    raise ValueError("first line\\nsecond line")


def number():
    return 3


def bare_tensor():
    return nn.ReLU(), torch.randn(4), {}


def list_for_kwargs():
    return nn.ReLU(), (torch.randn(4),), [1]


def no_model():
    return "resnet", (torch.randn(4),), {}


def misfit():
    return nn.Linear(8, 8), (torch.randn(4, 9),), {}


instance = nn.ReLU()
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    yield
    sys.modules.pop("models", None)


@pytest.fixture
def run(capsys):
    """Run the command line; return its exit code, output and error lines."""

    def call(*args: str) -> tuple[int, str, list[str]]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return call


# --- report --------------------------------------------------------------------------------------


def test_report_prints_what_is_fused_and_what_is_not(run):
    code, out, err = run("report", "models.py:make")

    assert (code, err) == (0, [])
    for part in (
        "models.py:make: cpu",
        "verified (interpreter)",
        "Planned, not running",
        "0-1 + 1-2.norm",
        "models.py:13",
        "heavy-op  3 operations",
        "3×  linear  0-2.linear",
    ):
        assert part in out


def test_report_takes_a_module_by_its_dotted_name(run):
    code, out, _ = run("report", "models:make", "--no-verify")

    assert code == 0
    assert "not verified" in out


def test_settings_are_arguments_of_the_factory(run):
    _, out, _ = run("report", "models.py:make", "--set", "layers=5", "--no-verify")

    assert "0-4.linear" in out


def test_a_factory_may_leave_out_keyword_arguments(run):
    assert run("report", "models.py:without_kwargs")[0] == 0


def test_functions_are_reported_with_their_own_lines(run):
    code, out, _ = run("report", "models.py:function")

    assert code == 0
    assert "the model itself  models.py:26" in out


def test_a_model_in_training_mode_is_named_as_such(run):
    assert "in training mode" in run("report", "models.py:training", "--no-verify")[1]


def test_what_export_cannot_capture_goes_through_dynamo(run):
    code, out, err = run("report", "models.py:branching")

    assert (code, err) == (0, [])
    assert "graph break" in out
    assert "torch.export did not capture the model" in out


def test_strict_makes_graph_breaks_a_failure(run):
    code, _, err = run("report", "models.py:branching", "--strict")

    assert code == FAILED
    assert any("graph break" in line for line in err)


def test_report_reads_saved_programs(run):
    with torch.no_grad():
        program = torch.export.export(nn.Sequential(nn.LayerNorm(8)), (torch.randn(4, 8),))
    torch.export.save(program, "model.pt2")

    code, out, _ = run("report", "model.pt2")

    assert code == 0
    assert "model.pt2: saved program, cpu" in out
    assert "layer_norm" in out


def test_a_saved_program_moves_to_the_device_asked_for(tmp_path):
    program = torch.export.export(nn.LayerNorm(8), (torch.randn(2, 8),))
    torch.export.save(program, tmp_path / "model.pt2")

    target = load_target(str(tmp_path / "model.pt2"), Choices(device=torch.device("meta")))

    tensors = [*target.args, *target.model.state_dict.values()]
    assert {t.device.type for t in tensors} == {"meta"}


def test_json_and_html_files_hold_the_report(run):
    code, _, _ = run("report", "models.py:make", "--json", "r.json", "--html", "r.html")

    data = json.loads(Path("r.json").read_text())
    assert code == 0
    jsonschema.validate(data, SCHEMA)
    assert data["subject"] == "models.py:make: cpu"
    assert all(r["verified"]["passed"] for r in data["regions"])
    assert not any(r["running"] for r in data["regions"])
    assert "0-1 + 1-2.norm" in Path("r.html").read_text()


def test_kernels_run_where_interpretation_is_asked_for(run, monkeypatch):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")

    code, out, _ = run("report", "models.py:make")

    assert code == 0
    assert "Planned" not in out
    assert "graph 0 agrees with the original" in out


def test_a_named_target_shows_what_kernels_take_of_the_chip(run):
    code, out, _ = run("report", "models.py:function", "--target", "sm_90", "--no-verify")

    assert code == 0
    assert "sm_90" in out
    assert "registers" in out


def test_numerics_reach_the_kernels(run):
    assert run("report", "models.py:make", "--numerics", "eager", "--dtype", "bf16")[0] == 0


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "qwen3", "gemma2", "t5", "vit", "convnext"]
)
def test_architectures_are_made_from_their_default_configuration(run, name):
    code, out, err = run("report", f"hf:{name}", "--layers", "1", "--seq", "16", "--no-verify")

    assert (code, err) == (0, [])
    assert out.startswith(f"hf:{name}: ")
    assert "bfloat16" in out
    assert "Would be fused" in out


def test_architectures_take_settings_sizes_and_tasks(run):
    code, out, _ = run(
        *("report", "hf:bert", "--no-verify", "--layers", "1", "--dtype", "float32"),
        *("--batch", "3", "--seq", "24", "--task", "masked-lm"),
        *("--set", "hidden_size=64", "--set", "num_attention_heads=4"),
        *("--set", "intermediate_size=96"),
    )

    assert code == 0
    assert "BertForMaskedLM" in out
    assert "input_ids [3, 24]" in out
    assert "f32[3,24,64]" in out


# --- explain and show ----------------------------------------------------------------------------


def test_explain_finds_a_node(run):
    code, out, _ = run("explain", "models.py:make", "layer_norm_1")

    assert code == 0
    assert out.startswith("layer_norm_1  layer_norm  1.norm  models.py:13")
    assert "g0r1" in out


def test_explain_finds_a_module_and_groups_its_operations(run):
    _, out, _ = run("explain", "models.py:make", "1")

    assert out.startswith("1: ")
    assert "of these: " in out
    assert "heavy-op  1 operation" in out


def test_explain_finds_a_source_line_and_an_op(run):
    assert "linear: 3 operations" in run("explain", "models.py:make", "linear")[1]
    assert "models.py:13: " in run("explain", "models.py:make", "models.py:13")[1]


def test_explain_suggests_where_nothing_is_found(run):
    code, _, err = run("explain", "models.py:make", "layer_nrm_1")

    assert code == USAGE
    assert len(err) == 1
    assert "did you mean layer_norm_1" in err[0]


def test_show_prints_the_loop_ir_and_the_source(run):
    code, out, _ = run("show", "models.py:function", "g0r0")

    assert code == 0
    assert "Loop IR" in out
    assert "fold sum over" in out
    assert "@triton.jit" in out


def test_show_says_which_regions_there_are(run):
    code, _, err = run("show", "models.py:function", "g9r9")

    assert code == USAGE
    assert err == ["fuseopt: 'g9r9' is not a region of the report: g0r0"]


@pytest.mark.parametrize("factory", ["function", "make", "probabilities"])
def test_show_writes_a_file_that_runs_on_its_own(run, factory):
    code, out, _ = run("show", f"models.py:{factory}", "g0r0", "-o", "kernel.py")

    assert code == 0
    assert out == "wrote kernel.py; run it with: python kernel.py\n"
    assert "fuseopt" not in Path("kernel.py").read_text().partition('"""\n\nimport')[2]
    done = subprocess.run(
        [sys.executable, "kernel.py"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "agrees with PyTorch" in done.stdout


REPLACING = '''
import torch
from fuseopt.rule import Prewritten, Rule, register


def scaled_softmax(x, bias):
    return torch.softmax(2 * x + bias, -1)


@register
class BiasedSoftmax(Rule):
    """Softmax of a value and a bias."""

    @staticmethod
    def pattern(x, bias):
        return torch.softmax(x * 2 + bias, -1)

    def kernel(self, match):
        return Prewritten(scaled_softmax, ("x", "bias"))
'''


def test_rules_of_a_file_are_listed_and_used(run):
    Path("rules.py").write_text(REPLACING)

    listed = run("rules", "--rules", "rules.py")[1]
    code, out, err = run("report", "models.py:function", "--rules", "rules.py")

    assert "Softmax of a value and a bias." in listed
    assert (code, err) == (0, [])
    assert "biased_softmax" in out


def test_show_has_no_kernel_for_what_a_rule_replaces(run):
    Path("rules.py").write_text(REPLACING)

    code, _, err = run("show", "models.py:function", "g0p0", "--rules", "rules.py")

    assert code == USAGE
    assert len(err) == 1
    assert "runs what the rule biased_softmax has of its own" in err[0]


# --- other commands ------------------------------------------------------------------------------


def test_rules_lists_rules_with_a_line_each(run):
    code, out, _ = run("rules")

    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert code == 0
    assert {"rms_norm", "layer_norm", "softmax", "rope"} <= set(names)
    assert all(len(line.split()) > 2 for line in out.splitlines() if not line.startswith(" "))


def test_env_tells_versions_and_the_cache(run, tmp_path):
    code, out, _ = run("env")

    assert code == 0
    for part in (fuseopt.__version__, torch.__version__, "triton", "FUSEOPT_CACHE_DIR="):
        assert part in out


def test_env_survives_a_mistaken_variable(run, monkeypatch):
    monkeypatch.setenv("FUSEOPT_JOBBS", "2")

    code, out, err = run("env")

    assert (code, err) == (0, [])
    assert "did you mean FUSEOPT_JOBS" in " ".join(out.split())


def test_demo_runs_without_the_trained_model(run, monkeypatch):
    monkeypatch.setattr("fuseopt.cli.demo.find_minilm", lambda: None)

    code, out, _ = run("demo", "--device", "cpu")

    assert code == 0
    assert out.startswith("A Llama-style model with random weights on the CPU")
    assert "largest difference from the original: 0.0e+00" in out
    assert "layers.0-3" in out


def test_demo_runs_kernels_where_asked(run, monkeypatch):
    monkeypatch.setattr("fuseopt.cli.demo.find_minilm", lambda: None)
    monkeypatch.delenv("FUSEOPT_INTERPRET", raising=False)
    monkeypatch.setattr("fuseopt.cli.small_model.TOKENS", 8)
    monkeypatch.setattr("fuseopt.cli.small_model.LAYERS", 1)

    code, out, _ = run("demo", "--interpret")

    assert code == 0
    assert "verified (interpreter)" in out
    assert "Planned" not in out


def test_the_version_is_printed(run):
    assert run("--version") == (0, f"fuseopt {fuseopt.__version__}\n", [])


def test_help_names_the_commands(run):
    code, out, _ = run("--help")

    assert code == 0
    for name in ("report", "explain", "show", "rules", "env", "demo"):
        assert name in out


# --- mistakes ------------------------------------------------------------------------------------

MISTAKES = [
    (["report"], "Missing argument 'TARGET'"),
    (["repport", "x"], "No such command 'repport'"),
    (["report", "models.py:make", "--bogus"], "No such option: --bogus"),
    (["report", "models.py"], "is not one of file.py:factory"),
    (["report", "missing.py:make"], "there is no file missing.py"),
    (["report", "missing.module:make"], "there is no module missing.module"),
    (["report", "models.py:nothing"], "there is no nothing in models"),
    (["report", "models.py:instance"], "is a ReLU, not a function"),
    (["report", "models.py:raises"], "raised ValueError: first line (models.py:"),
    (["report", "models.py:number"], "must return (model, args, kwargs), not int"),
    (["report", "models.py:bare_tensor"], "its args are a Tensor, not a tuple"),
    (["report", "models.py:list_for_kwargs"], "its kwargs are a list, not a dict"),
    (["report", "models.py:no_model"], "its model is a str"),
    (["report", "models.py:misfit"], "calling the model raised RuntimeError"),
    (["report", "models.py:make", "--set", "wide=3"], "raised TypeError"),
    (["report", "models.py:make", "--set", "width"], "is not of the form key=value"),
    (["report", "models.py:make", "--layers", "2"], "--layers is for hf:NAME targets"),
    (["report", "models.py:make", "--numerics", "fp8"], "numerics='fp8' is not one of"),
    (["report", "models.py:make", "--dtype", "int8"], "--dtype 'int8' is not one of"),
    (["report", "models.py:make", "--device", "tpu"], "--device"),
    (["report", "models.py:make", "--target", "sm90x"], "is not of the form sm_80"),
    (["report", "models.py:make", "--json", "no/such/folder.json"], "there is no folder"),
    (["report", "models.py:make", "--json", "."], "is a folder"),
    (["report", "models.py:make", "--rules", "missing.py"], "there is no file missing.py"),
    (["report", "hf:lama"], "did you mean llama"),
    (["report", "hf:bert", "--set", "hiden_size=3"], "did you mean hidden_size?"),
    (["report", "hf:bert", "--layers", "0"], "--layers 0 is not a positive number"),
    (["report", "hf:bert", "--task", "poetry"], "--task 'poetry' is not one of"),
    (["report", "hf:vit", "--task", "causal-lm"], "has no model for the task causal-lm"),
    (["report", "missing.pt2"], "there is no file missing.pt2"),
    (["report", "damaged.pt2"], "is not a program saved by torch.export.save"),
    (["show", "models.py:function", "g0r0", "-o", "no/such/k.py"], "there is no folder"),
    (["rules", "--rules", "models.py"], "registers no rule"),
]


@pytest.mark.parametrize(("args", "expected"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_a_usage_error(run, args, expected):
    Path("damaged.pt2").write_bytes(b"PK\x03\x04 not an archive")

    code, out, err = run(*args)

    assert code == USAGE
    assert out == ""
    assert len(err) == 1, err
    assert expected in err[0]


def test_a_mistaken_variable_is_one_line(run, monkeypatch):
    monkeypatch.setenv("FUSEOPT_INTERPET", "1")

    code, _, err = run("report", "models.py:make")

    assert code == USAGE
    assert len(err) == 1
    assert "FUSEOPT_INTERPET; did you mean FUSEOPT_INTERPRET?" in err[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_timing_without_a_gpu_is_refused(run):
    code, _, err = run("report", "models.py:make", "--time")

    assert code == USAGE
    assert err == ["fuseopt: --time needs a GPU: kernels do not run on a CPU"]


def test_a_failed_check_is_exit_code_one(run, monkeypatch):
    from fuseopt.events import Verified

    def fail(key, *_):
        return Verified(key, False, "interpreter", 1.0, 0.0, 1e-6, "element [0] is 2, exact is 1")

    monkeypatch.setattr("fuseopt.sites.check_region", fail)

    code, out, err = run("report", "models.py:function")

    assert code == FAILED
    assert "Rolled back: " in out
    assert "verification  3 operations" in out
    assert len(err) == 1
    assert "element [0] is 2, exact is 1" in err[0]


def test_an_internal_error_is_one_line_too(run, monkeypatch):
    def crash(*_args, **_kwargs):
        raise RuntimeError("boom")

    monkeypatch.setattr("fuseopt.cli.report.build_report", crash)

    code, _, err = run("report", "models.py:function", "--no-verify")

    assert code == FAILED
    assert err == [
        "fuseopt: internal error: RuntimeError: boom (fuseopt --traceback ... shows where)"
    ]


def test_the_installed_command_ends_with_the_exit_code():
    command = [sys.executable, "-c", "import sys; from fuseopt.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "report", "missing.pt2"], capture_output=True, text=True, check=False
    )

    assert done.returncode == USAGE
    assert done.stderr == "fuseopt: there is no file missing.pt2\n"
    assert done.stdout == ""
