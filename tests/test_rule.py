"""Writing rules: what is accepted, what is refused, and what a matched rule does to a graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from spellings import W, X, Y, matches, trace

from fuseopt.compiler import compile_graph
from fuseopt.config import Config, Environment
from fuseopt.errors import RuleError, VerificationError
from fuseopt.events import Log, NotFused, Reason, RegionFused, RolledBack, Verified
from fuseopt.graph.form import Input, NormalisedGraph
from fuseopt.match.name import Names
from fuseopt.match.registry import Registry, load_rules, registering, registry_with
from fuseopt.match.rules import name_of
from fuseopt.rule import Match, Prewritten, Reject, Row, Rule, register

EPS = 1e-6


class ScaledNorm(Rule):
    """A norm of this file's own."""

    anchor = "norm"

    @staticmethod
    def pattern(x, weight: Row, eps: float):
        return F.rms_norm(x, x.shape[-1:], weight, eps)


# --- what a rule must be --------------------------------------------------------------------------


def test_a_rule_is_named_by_its_class():
    assert name_of(ScaledNorm) == "scaled_norm"
    assert name_of(type("RMSNorm2D", (Rule,), {})) == "rmsnorm2_d"


def bare(x):
    return x * 2.0


class HasState(Rule):
    pattern = staticmethod(bare)

    def __init__(self):
        self.seen = 0


class NoPattern(Rule):
    pass


class NotStatic(Rule):
    def pattern(self, x):
        return x * 2.0


class UnknownAnnotation(Rule):
    @staticmethod
    def pattern(x, weight: str):
        return x * 2.0


class OptionalScalar(Rule):
    @staticmethod
    def pattern(x, eps: float | None):
        return x * 2.0


class Starred(Rule):
    @staticmethod
    def pattern(*tensors):
        return tensors[0]


class Undefined(Rule):
    @staticmethod
    def pattern(x, weight: Missing):  # noqa: F821
        return x * weight


class NoParameters(Rule):
    @staticmethod
    def pattern():
        return torch.zeros(3)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (HasState, "HasState has an __init__: rules hold no state"),
        (NoPattern, "NoPattern has no pattern"),
        (NotStatic, "make it a @staticmethod"),
        (UnknownAnnotation, "annotates weight as str"),
        (OptionalScalar, "annotates eps as"),
        (Starred, "takes *tensors; name each parameter"),
        (Undefined, "names what is not there: name 'Missing' is not defined"),
        (NoParameters, "has no parameters"),
        (42, "42 is no rule"),
        (Rule, "is no rule"),
        ((bare, 3), "a pair of functions is (pattern, replacement)"),
    ],
)
def test_a_mistake_is_told_in_one_line(rule, text):
    with pytest.raises(RuleError) as caught:
        Registry([rule])

    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def raises(x):
    return x.no_such_method()


def other_value(x):
    return x + torch.ones(x.shape, dtype=x.dtype) * W.double()[0]


def not_a_tensor(x):
    return [x]


def unused(x, y):
    return x * 2.0


def undeclared(x):
    return torch.linalg.det(x.view(-1, 2, 2))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raises, "raises AttributeError: 'Tensor' object has no attribute"),
        (other_value, "reads a tensor that is not one of its parameters"),
        (not_a_tensor, "returns list; return a tensor"),
        (unused, "does not use y in its first output"),
        (undeclared, "which has no definition in fuseopt.ops"),
    ],
)
def test_a_pattern_that_cannot_be_lifted_says_why(function, text):
    rule = type("Broken", (Rule,), {"pattern": staticmethod(function)})
    registry = Registry([rule])

    with pytest.raises(RuleError) as caught:
        registry.patterns(rule)

    assert text in str(caught.value)


# --- the registry ---------------------------------------------------------------------------------


def test_names_must_differ():
    other = type("ScaledNorm", (Rule,), {"pattern": staticmethod(bare)})

    with pytest.raises(RuleError, match="two rules are named scaled_norm"):
        Registry([ScaledNorm, other])
    assert Registry([ScaledNorm, ScaledNorm]).rules == (ScaledNorm,)


def test_registering_goes_to_the_registry_in_use():
    with registering(Registry()) as registry:
        register(ScaledNorm)

    assert registry.rules == (ScaledNorm,)
    assert ScaledNorm not in registry_with([]).rules


def test_a_users_rules_come_beside_the_built_in_ones():
    registry = registry_with([ScaledNorm, (bare, bare)])

    names = [name_of(r) for r in registry.rules]
    assert names[-2:] == ["scaled_norm", "bare"]
    assert "layer_norm" in names
    assert len(registry_with([]).rules) == len(names) - 2


def test_a_rule_may_not_take_a_built_in_name():
    clash = type("Softmax", (Rule,), {"pattern": staticmethod(bare)})

    with pytest.raises(RuleError, match=r"two rules are named softmax: fuseopt\.patterns"):
        registry_with([clash])


RULES = """
from __future__ import annotations
from fuseopt.rule import Row, Rule, register

@register
class Doubled(Rule):
    @staticmethod
    def pattern(x, w: Row):
        return x * 2.0 + w
"""


def test_rules_are_loaded_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RULES)

    (rule,) = load_rules(path)

    assert name_of(rule) == "doubled"
    assert load_rules(path)[0].__name__ == "Doubled"  # again, without a clash
    found = matches(lambda x, w: w + (x + x), X, W, registry=Registry([rule]))
    assert [m.rule for m in found] == ["doubled"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "registers no rule"), ("raise ValueError('no')", "raises ValueError: no")],
)
def test_a_file_without_rules_is_an_error(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)

    with pytest.raises(RuleError, match=message):
        load_rules(path)
    with pytest.raises(RuleError, match="there is no file"):
        load_rules(tmp_path / "missing.py")


def test_rules_of_installed_packages_are_used(tmp_path):
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[fuseopt.rules]\ndoubled = theirs:Doubled\n")
    (tmp_path / "theirs.py").write_text(RULES.replace("@register", ""))
    code = (
        "from fuseopt.match.registry import default_registry\n"
        "from fuseopt.match.rules import name_of\n"
        "print(*(name_of(r) for r in default_registry().rules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}", "PATH": ""},
    )

    assert done.stdout.split()[-1] == "doubled"


# --- what rules do in a graph ---------------------------------------------------------------------


def norm(x, w):
    return torch.tanh(x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * w)


def compiled(function, *args, rules, strict=False, tmp_path):
    """Compile a function for the interpreter; return its call and the log."""
    gm = trace(lambda *given: (function(*given),), *args)
    inputs = tuple(Input("input") for _ in args)
    log = Log()
    graph = NormalisedGraph(gm, "inference", log.next_graph(), inputs)
    environment = Environment(interpret=True, cache_dir=tmp_path)
    run = compile_graph(graph, Config(rules=tuple(rules), strict=strict), environment, log)
    return (lambda *given: run(list(given))[0]), log


def drawn(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator) for s in shapes]


def names_of(log: Log) -> list[str]:
    return [e.rule for e in log.of(RegionFused)]


def test_a_region_is_named_by_the_best_rule(tmp_path):
    call, log = compiled(norm, X, W, rules=[], tmp_path=tmp_path)
    x, w = drawn((2, 3, 16), (16,))

    (region,) = log.of(RegionFused)
    assert region.rule == "rms_norm"
    assert region.kernel.startswith("fused_rms_norm_")
    torch.testing.assert_close(call(x, w), norm(x, w))


def test_what_no_rule_names_is_pointwise_or_nothing(tmp_path):
    _, chain = compiled(lambda x, y: (x + y).exp() * y, X, Y, rules=[], tmp_path=tmp_path)
    _, reduced = compiled(lambda x: x.exp().amax(-1) * 2, X, rules=[], tmp_path=tmp_path)

    assert names_of(chain) == ["pointwise"]
    assert names_of(reduced) == [""]


def rms(x, weight: Row, eps: float):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def test_a_replacement_runs_where_its_pattern_is_found(tmp_path):
    calls = []

    def mine(x, weight, eps):
        calls.append(eps)
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    call, log = compiled(norm, X, W, rules=[(rms, mine)], tmp_path=tmp_path)
    checked = len(calls)
    x, w = drawn((2, 3, 16), (16,))
    result = call(x, w)

    assert names_of(log)[0] == "rms"
    assert all(v.passed for v in log.of(Verified))
    assert len(calls) > checked > 0
    assert set(calls) == {EPS}
    torch.testing.assert_close(result, norm(x, w))


def test_a_wrong_replacement_is_rolled_back(tmp_path):
    def wrong(x, weight, eps):
        return F.rms_norm(x, x.shape[-1:], weight, eps) * 1.01

    call, log = compiled(norm, X, W, rules=[(rms, wrong)], tmp_path=tmp_path)
    x, w = drawn((2, 3, 16), (16,))

    (event,) = log.of(RolledBack)
    assert event.code is Reason.WRONG
    assert names_of(log) == ["rms_norm"]  # the generated kernel is there instead
    torch.testing.assert_close(call(x, w), norm(x, w))
    with pytest.raises(VerificationError, match="rule rms"):
        compiled(norm, X, W, rules=[(rms, wrong)], strict=True, tmp_path=tmp_path)


@pytest.mark.parametrize("result", [torch.zeros(3), "nothing", ()])
def test_a_replacement_that_gives_something_else_is_rolled_back(tmp_path, result):
    _, log = compiled(norm, X, W, rules=[(rms, lambda x, weight, eps: result)], tmp_path=tmp_path)

    assert [e.code for e in log.of(RolledBack)] == [Reason.WRONG]


def test_a_replacement_that_changes_what_it_is_given_is_rolled_back(tmp_path):
    def greedy(x, weight, eps):
        x.mul_(2)
        return F.rms_norm(x / 2, x.shape[-1:], weight, eps)

    call, log = compiled(norm, X, W, rules=[(rms, greedy)], tmp_path=tmp_path)
    x, w = drawn((2, 3, 16), (16,))
    kept = x.clone()

    torch.testing.assert_close(call(x, w), norm(kept, w))
    assert torch.equal(x, kept)
    (event,) = log.of(RolledBack)
    assert "changes a tensor" in event.reason


class Both(Rule):
    """A kernel that gives the sum beside the norm, where that is needed."""

    @staticmethod
    def pattern(x, residual, weight: Row, eps: float):
        h = x + residual
        return F.rms_norm(h, h.shape[-1:], weight, eps), h

    def kernel(self, match: Match) -> Prewritten:
        return Prewritten(_both, ("x", "residual", "weight", "eps"))


def _both(x, residual, weight, eps):
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


def test_a_kernel_gives_the_values_that_its_pattern_names(tmp_path):
    def block(x, y, w):
        h = x + y
        return h * torch.tanh(F.rms_norm(h, (16,), w, EPS)).sum(-1, keepdim=True)

    call, log = compiled(block, X, Y, W, rules=[Both], tmp_path=tmp_path)
    x, y, w = drawn((2, 3, 16), (2, 3, 16), (16,))

    (region,) = (e for e in log.of(RegionFused) if e.rule == "both")
    assert len(region.outputs) == 2
    torch.testing.assert_close(call(x, y, w), block(x, y, w))


class Declining(Rule):
    @staticmethod
    def pattern(x, weight: Row, eps: float):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def check(self, match: Match) -> Reject | None:
        return Reject(f"eps is {match['eps']}", match.node("weight"))


def test_a_rule_may_decline_and_the_region_is_fused_all_the_same(tmp_path):
    _, log = compiled(norm, X, W, rules=[Declining], tmp_path=tmp_path)

    (event,) = log.of(NotFused)
    assert (event.code, event.rule) == (Reason.REJECTED, "declining")
    assert event.reason == "eps is 1e-06"
    assert event.culprit.name == "arg1_1"
    assert names_of(log) == ["rms_norm"]


class Virtual(Rule):
    @staticmethod
    def pattern(x, weight: Row, eps: float):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def kernel(self, match: Match) -> Prewritten:
        return Prewritten(F.rms_norm, ("x", "weight", "eps"))


def test_a_kernel_needs_every_value_it_reads(tmp_path):
    def two_weights(x, w, v):
        return torch.tanh(x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * w * v)

    _, log = compiled(two_weights, X, W, W, rules=[Virtual], tmp_path=tmp_path)

    declined = [e for e in log.of(NotFused) if e.rule == "virtual"]
    assert not declined or "not computed by one operation" in declined[0].reason
    assert "virtual" not in names_of(log) or len(declined) == 0


class Shifted(Rule):
    """A kernel that gives a product and a function of its sum with a shift."""

    @staticmethod
    def pattern(x, y, shift):
        h = x * y
        return torch.tanh(h + shift), h

    def kernel(self, match: Match) -> Prewritten:
        return Prewritten(_shifted, ("x", "y", "shift"))


def _shifted(x, y, shift):
    h = x * y
    return torch.tanh(h + shift), h


def test_a_kernel_reads_no_random_numbers_that_wait_for_its_result(tmp_path):
    """The shift is the second draw, which waits for the first, which reads the product."""

    def block(x, y):
        h = x * y
        first = torch.bernoulli(torch.sigmoid(h))
        return torch.tanh(h + torch.rand_like(x)) + first

    call, log = compiled(block, X, Y, rules=[Shifted], tmp_path=tmp_path)
    x, y = drawn((2, 3, 16), (2, 3, 16))
    torch.manual_seed(0)
    found = call(x, y)
    torch.manual_seed(0)

    assert [e.code for e in log.of(NotFused) if e.rule == "shifted"] == [Reason.CYCLE]
    assert "shifted" not in names_of(log)
    torch.testing.assert_close(found, block(x, y))


class Confused(Rule):
    """A rule whose methods do what `answer` says."""

    @staticmethod
    def pattern(x, weight: Row, eps: float):
        return F.rms_norm(x, x.shape[-1:], weight, eps)


@pytest.mark.parametrize(
    ("method", "answer", "text"),
    [
        (
            "check",
            lambda self, match: match["nothing"],
            "Confused.check raises KeyError: 'nothing'",
        ),
        ("check", lambda self, match: True, "Confused.check must not give a bool"),
        ("kernel", lambda self, match: F.rms_norm, "Confused.kernel must not give a function"),
        (
            "kernel",
            lambda self, match: Prewritten(F.rms_norm, ("input", "eps")),
            "Confused.kernel reads input; its pattern has x, weight, eps, features",
        ),
    ],
)
def test_a_rule_that_answers_wrongly_is_told(tmp_path, method, answer, text):
    rule = type("Confused", (Confused,), {method: answer})

    with pytest.raises(RuleError) as caught:
        compiled(norm, X, W, rules=[rule], tmp_path=tmp_path)

    assert text in str(caught.value)


class Kept(Rule):
    """Only keeps together what it matches."""

    @staticmethod
    def pattern(a, b):
        return torch.tanh(a) * torch.exp(b)


def test_a_users_match_is_kept_in_one_region(tmp_path):
    _, log = compiled(
        lambda x, y: torch.tanh(x) * torch.exp(y), X, Y, rules=[Kept], tmp_path=tmp_path
    )

    assert names_of(log) == ["kept"]


def test_a_nearly_matching_region_has_a_nearest_rule():
    def nearly(x, w):
        return x / ((x * x).mean(-1, keepdim=True).sqrt() + EPS) * w

    gm = trace(nearly, X, W)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    names = Names(registry_with([]), lambda n: False)

    found = names.nearest(nodes, nodes[-1])

    assert found is not None
    assert found.rule.endswith("norm")
    assert found.text.startswith("the rule has")
