"""What the benchmark times, on the CPU: rows, gradients of rows, training steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fuseopt.bench.kernels import _call
from fuseopt.bench.rows import Draw, Row, backward_rows, target_rows, unseen_rows
from fuseopt.bench.tables import insert, tables
from fuseopt.bench.training import Step, loss_of
from fuseopt.cli import main
from fuseopt.errors import UsageError

CPU = torch.device("cpu")


def scaled(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * w + n


def scaled_row() -> Row:
    inputs = lambda d: (d(4, 6), d(6), d.integers(9, 6))  # noqa: E731
    return Row("scaled 4x6", scaled, inputs, lambda e: 48 * e, lambda e: 72 * e)


def test_backward_rows_time_the_gradients_of_all_float_inputs():
    (row,) = backward_rows([scaled_row()])
    args = row.make(Draw(CPU, torch.float32))
    args = [a.requires_grad_() if a.dtype.is_floating_point else a for a in args]

    dx, dw = _call(row, row.function, args)()

    assert row.name == "scaled 4x6 backward"
    assert row.compulsory(2) == 144
    given = dx / args[1]
    torch.testing.assert_close(dw, (given * args[0]).sum(0))


def test_rows_without_a_backward_figure_have_no_backward_row():
    rows = target_rows()

    found = backward_rows(rows)

    assert len(found) == sum(r.bytes_backward is not None for r in rows)
    assert not any("rope" in r.name for r in found)
    assert len({r.name for r in [*rows, *found, *unseen_rows()]}) == len(
        [*rows, *found, *unseen_rows()]
    )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - 1).pow(2).mean()}


@pytest.mark.parametrize("provider", ["eager", "fuseopt"])
def test_a_step_learns_and_leaves_the_original_alone(provider):
    torch.manual_seed(0)
    model = Model()
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    step = Step(model, (torch.randn(16, 8),), {}, provider)

    losses = [float(step()) for _ in range(30)]

    assert losses[-1] < losses[0]
    assert all(torch.equal(kept[k], v) for k, v in model.state_dict().items())


def test_a_model_without_a_loss_is_refused():
    with pytest.raises(UsageError, match="return a loss"):
        loss_of({"logits": torch.ones(3, requires_grad=True)})
    with pytest.raises(UsageError, match="return a loss"):
        loss_of(torch.ones(()))


@pytest.mark.parametrize(
    "argv",
    [
        ["bench"],
        ["bench", "--kernels", "nothing"],
        ["bench", "--kernels", "target", "--rows", "no such row"],
        ["bench", "--kernels", "target", "--train"],
        ["bench", "file.py:model", "--provider", "nobody"],
    ],
)
def test_a_wrong_benchmark_is_a_usage_error(argv, capsys):
    assert main(argv) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


ENVIRONMENT = {"device": "a GPU", "torch": "2.13", "triton": "3.7", "date": "2026-11-30"}


def test_tables_are_made_of_what_was_measured(tmp_path):
    timed = {"seconds": 1e-4, "share": 0.9, "note": ""}
    half = {"seconds": 2e-4, "share": 0.4, "note": ""}
    absent = {"seconds": None, "share": 0.0, "note": "no such function"}
    rows = [
        {"name": "softmax 8x8", "providers": {"eager": half, "fuseopt": timed}},
        {"name": "rms_norm 8x8", "providers": {"eager": absent, "fuseopt": half}},
    ]
    kernels = {"environment": ENVIRONMENT, "dtype": "bfloat16", "copy_rate": 4e12, "rows": rows}
    call = {"seconds": 0.01, "first_call": 3.0, "kernels": 7, "peak_bytes": 2**30, "note": ""}
    models = [{"name": "bert", "providers": {"fuseopt": call}}]
    step = {**call, "first_step": 4.0, "losses": [2.0, 1.5]}
    trained = [{"name": "bert", "providers": {"eager": step}, "other_seed": [2.0, 1.25]}]
    for name, data in (
        ("a", kernels),
        ("b", {"environment": ENVIRONMENT, "models": models}),
        ("c", {"environment": ENVIRONMENT, "models": trained}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))

    made = tables(tmp_path)

    assert "`a.json`: a GPU, torch 2.13, triton 3.7, 2026-11-30, bfloat16" in made
    assert "| softmax 8x8 | 200 (40%) | 100 (90%) |" in made
    assert "| rms_norm 8x8 | - | 200 (40%) |" in made
    assert "| geometric mean | (40% of 1) | (60% of 2) |" in made
    assert "| bert | fuseopt | 10.00 | 7 | 1.00 | 3.0 |" in made
    assert "| bert | eager, another seed |  |  |  |  | 1.2500 |" in made


def test_readme_shows_the_tables_of_what_was_measured():
    root = Path(__file__).parents[1]
    readme = (root / "README.md").read_text()

    assert insert(readme, tables(root / "tests" / "measured")) == readme
