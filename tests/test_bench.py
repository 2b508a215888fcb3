"""What the benchmark times, on the CPU: rows, gradients of rows, training steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fuseopt.bench.kernels import _call
from fuseopt.bench.rows import Draw, Row, backward_rows, target_rows, unseen_rows
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
