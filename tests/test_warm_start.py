"""A second process starts from what the first one found out: names of regions and verdicts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fuseopt
from fuseopt.events import RegionFused, RolledBack, Verified
from fuseopt.match import find
from fuseopt.match.name import Naming
from fuseopt.match.registry import registry_with
from fuseopt.match.remembered import Remembered
from fuseopt.rule import Rule
from fuseopt.runtime import build
from fuseopt.verify import check


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def softmax(x):
    return F.softmax(x * 0.5, -1)


def optimized(**options):
    """A function optimised and called as if for the first time."""
    torch._dynamo.reset()
    made = fuseopt.optimize(softmax, **options)
    with torch.no_grad():
        torch.testing.assert_close(made(torch.ones(3, 40)), softmax(torch.ones(3, 40)))
    return made


def refuse(*_, **__):
    raise AssertionError("it is known already")


def test_names_and_verdicts_are_found_again(monkeypatch):
    first = optimized()
    monkeypatch.setattr(find.Search, "all", refuse)
    monkeypatch.setattr(check, "_check", refuse)

    second = optimized()

    (before,), (after,) = first.log.of(RegionFused), second.log.of(RegionFused)
    assert before.rule == after.rule != ""
    assert before.kernel == after.kernel
    verdicts = [e for e in second.log.of(Verified) if not e.key.startswith("graph:")]
    assert [v.how for v in verdicts] == ["interpreter, in an earlier process"]
    assert verdicts[0].passed
    known = [e for e in first.log.of(Verified) if not e.key.startswith("graph:")]
    assert verdicts[0].error == known[0].error


def test_another_text_of_a_kernel_is_checked_anew(monkeypatch):
    from dataclasses import replace

    optimized()
    generate = build.generate

    def wrong(*args, **kwargs):
        found = generate(*args, **kwargs)
        texts = [c.source.text.replace("0.5", "0.25") for c in found]
        return [
            replace(c, source=replace(c.source, text=t)) for c, t in zip(found, texts, strict=True)
        ]

    monkeypatch.setattr(build, "generate", wrong)

    assert optimized().log.of(RolledBack)


def test_a_failed_check_is_not_remembered(monkeypatch):
    right = check._check
    failed = lambda key, *_: Verified(key, False, "interpreter", detail="made to fail")  # noqa: E731
    monkeypatch.setattr(check, "_check", failed)
    assert optimized().log.of(RolledBack)

    monkeypatch.setattr(check, "_check", right)

    assert not optimized().log.of(RolledBack)


def test_names_are_not_kept_where_users_rules_take_part():
    class Halved(Rule):
        @staticmethod
        def pattern(x):
            return F.softmax(x * 0.5, -1)

    entries = Entries()
    named = Naming("softmax")
    for rules, kept in (([], named), ([Halved], None)):
        names = Remembered(entries, registry_with(rules))
        names.write("key", named)

        assert names.read("key") == kept


class Entries:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept = {}

    def read_json(self, kind, key):
        return self.kept.get((kind, key))

    def write_json(self, kind, key, value):
        self.kept[kind, key] = value
