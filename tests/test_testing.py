"""`check_rule`: passes every built-in rule and tells the mistakes of others."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fuseopt.errors import RuleError, VerificationError
from fuseopt.match.registry import default_registry
from fuseopt.match.rules import Rule, name_of
from fuseopt.rule import Match, Prewritten, Row
from fuseopt.testing import check_rule

# sigmoid(x) of an x that is a difference of logarithms: its exponential becomes a product.
KNOWN_MISSES = ("sigmoid(x := log_softmax(y))",)


@pytest.mark.parametrize("rule", default_registry().rules, ids=name_of)
def test_built_in_rules_pass(rule):
    report = check_rule(rule, allow=KNOWN_MISSES)

    assert report.rule == name_of(rule)
    assert report.found >= 20
    assert len(report.lost) <= 1
    assert report.verified > 0 or report.rule == "pointwise"


def rule_of(name: str, function, **methods) -> type[Rule]:
    return type(name, (Rule,), {"pattern": staticmethod(function), **methods})


def good(x, weight: Row, eps: float):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def test_the_report_can_be_read():
    report = check_rule(rule_of("Good", good))

    assert str(report).splitlines()[0] == "rule good: 1 patterns"
    assert "also matched by: rms_norm" in str(report)
    assert f"{report.verified} kernels agree" in str(report)


def literal(x):
    return x[..., :24] * 2.0


def lost_scalar(x, scale: float):
    return x * math.sqrt(scale) + 1.0


def branches(x, scale: float):
    return torch.tanh(x) if scale > 0.5 else x * scale


def by_size(x):
    return torch.tanh(x) if x.shape[-1] > 64 else torch.sin(x)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (literal, "has the number 24 for a size"),
        (lost_scalar, "loses sight of scale"),
        (branches, "does other things for other scalars"),
        (by_size, "does other things at other sizes"),
    ],
)
def test_mistakes_are_told(function, text):
    with pytest.raises(RuleError, match=text):
        check_rule(rule_of("Wrong", function))


def test_an_expression_that_is_not_found_is_named():
    def gated(x, gate):
        return torch.sigmoid(x) * gate

    with pytest.raises(AssertionError, match="Gated is not found as gated"):
        check_rule(rule_of("Gated", gated))


def test_a_kernel_that_disagrees_is_told():
    def kernel(self, match: Match) -> Prewritten:
        return Prewritten(
            lambda x, w, e: F.rms_norm(x, x.shape[-1:], w, e) * 1.1, ("x", "weight", "eps")
        )

    with pytest.raises(VerificationError, match="disagrees with what it replaces"):
        check_rule(rule_of("Disagrees", good, kernel=kernel))


def test_a_pair_of_functions_is_checked_too():
    def better(x, weight, eps):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    report = check_rule((good, better))

    assert report.rule == "good"
    assert report.verified >= 4
