"""How a command ends where its output, its cache or the user's code will not have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuseopt.cli import main
from fuseopt.cli.app import INTERRUPTED, USAGE
from fuseopt.pipeline import first_line

MODELS = """
import sys
import torch
from torch import nn


class Chain(nn.Module):
    def forward(self, x):
        return torch.tanh(x * 2) + 1


def make():
    return Chain().eval(), (torch.randn(4, 8),), {}


def leaves():
    sys.exit(7)


def interrupted():
    raise KeyboardInterrupt


def a_class():
    return Chain, (torch.randn(4, 8),), {}


def script():
    return torch.jit.script(nn.ReLU()), (torch.randn(4),), {}


def numbered():
    return Chain(), (), {1: torch.randn(4)}


def without_data():
    return Chain(), (torch.randn(4, device="meta"),), {}


def sparse():
    return Chain(), (torch.eye(4).to_sparse(),), {}
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("chains.py").write_text(MODELS)
    Path("leaves.py").write_text("raise SystemExit(3)\n")
    yield
    for name in ("chains", "leaves"):
        sys.modules.pop(name, None)


MISTAKES = [
    (["report", "chains.py:leaves"], "raised SystemExit: 7 (chains.py:"),
    (["report", "leaves.py:make"], "leaves.py raised SystemExit: 3"),
    (["report", "leaves:make"], "module leaves raised SystemExit: 3"),
    (["report", "chains.py:make", "--rules", "leaves.py"], "leaves.py raises SystemExit: 3"),
    (["report", "chains.py:a_class"], "its model is the class Chain, not an instance"),
    (["report", "chains.py:script"], "TorchScript"),
    (["report", "chains.py:numbered"], "have the key 1, which is not a name"),
    (["report", "chains.py:without_data"], "moving the model and its inputs to cpu raised"),
    (["report", "chains.py:sparse"], "calling the model raised RuntimeError"),
    (["report", "chains.py:make", "--target", "sm_999"], "'sm_999' is not one of sm_75, "),
    (["report", "chains.py:make", "--json", ""], "an empty name"),
    (
        ["explain", "chains.py:make", ""],
        "no node, module, source line or op of chains.py:make is ''",
    ),
    (["show", "chains.py:make", ""], "'' is not a region of the report: g0r0"),
    (["report", "hf:BERT"], "did you mean bert"),
    (["report", "hf:bert", "--set", "hidden_size=wide"], "expected int, got str"),
    (["report", "hf:bert", "--layers", "1", "--seq", "9999"], "must match the existing size"),
    (["report", "other.pt2"], "other.pt2 is not a program saved by torch.export.save: "),
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize(("args", "expected"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_else(capfd, args, expected):
    import torch

    torch.save({"weight": torch.ones(2)}, "other.pt2")

    code = main(args)

    out, err = capfd.readouterr()
    assert (code, out) == (USAGE, "")
    assert len(err.splitlines()) == 1, err
    assert expected in err


def test_a_cache_that_cannot_be_used_is_one_line(capfd, monkeypatch):
    Path("file").touch()
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", "file")

    assert main(["report", "chains.py:make"]) == USAGE
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "set FUSEOPT_CACHE_DIR to a directory you can write" in err


def test_an_interrupted_command_says_so(capsys):
    assert main(["report", "chains.py:interrupted"]) == INTERRUPTED
    assert capsys.readouterr().err.strip() == "fuseopt: interrupted"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    fuseopt = f"{sys.executable} -c 'import sys; from fuseopt.cli import main; sys.exit(main())'"
    script = f"set -o pipefail; {command.replace('FUSEOPT', fuseopt)}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


def test_a_reader_that_has_had_enough_loses_nothing_and_changes_no_exit_code():
    done = shell("FUSEOPT report chains.py:make --no-verify --json report.json | true")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(Path("report.json").read_text())["regions"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line():
    done = shell("FUSEOPT rules > /dev/full")

    assert done.returncode == USAGE
    assert done.stderr == "fuseopt: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "code"), [("rules >&-", 0), ("rules --rules x.py 2>&-", USAGE)]
)
def test_closed_streams_are_no_error(command, code):
    assert shell(f"FUSEOPT {command}").returncode == code


def test_help_needs_no_torch():
    done = shell(
        f'{sys.executable} -c \'import sys; from fuseopt.cli import main; main(["--help"]); '
        'sys.exit("torch" in sys.modules)\''
    )

    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "ValueError: one"),
        (
            "error for field 'a':\n    it is no int\nmore",
            "ValueError: error for field 'a': it is no int",
        ),
        ("open:", "ValueError: open:"),
        ("", "ValueError"),
    ],
)
def test_the_first_line_of_an_error_ends_where_its_statement_does(text, line):
    assert first_line(ValueError(text)) == line
