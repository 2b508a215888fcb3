"""Hold in your own tests that a model stays fused.

A change to a model, such as another cast or an op between two others, can split a fused region
without changing any result. These checks need no GPU: where there is none, the report holds the
regions that would be fused.

    python examples/report_in_ci.py
"""

import json

import torch
from torch import nn

import fuseopt


def make_model():
    """Return the model under test and inputs for it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 3).eval(), torch.randn(2, 16, 64)


def test_every_residual_is_fused_with_its_norm():
    model, x = make_model()
    with torch.no_grad():
        report = fuseopt.optimize(model, (x,)).report

    report.assert_fused("residual_norm", at_least=6)


def test_launches_do_not_grow():
    model, x = make_model()
    with torch.no_grad():
        totals = fuseopt.optimize(model, (x,)).report.totals

    assert totals.launches_after <= 40
    assert totals.graph_breaks == 0


def main():
    test_every_residual_is_fused_with_its_norm()
    test_launches_do_not_grow()
    model, x = make_model()
    with torch.no_grad():
        report = fuseopt.optimize(model, (x,)).report
    data = report.to_json()
    print(json.dumps(data["totals"], indent=1))
    return data


if __name__ == "__main__":
    main()
