"""fuseopt as a `torch.compile` backend: found by name, same pipeline, same semantics."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import fuseopt


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(8), nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, *, residual=None):
        self.count.add_(1)
        h = F.gelu(self.proj(self.norm(x)))
        return h if residual is None else h + residual


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def test_the_backend_is_found_by_name_without_importing_fuseopt():
    code = (
        "import torch, sys; assert 'fuseopt' in torch._dynamo.list_backends(exclude_tags=());"
        "assert 'fuseopt' not in sys.modules;"
        "print(torch.compile(lambda x: x.relu() + 1, backend='fuseopt')(torch.ones(2)).tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[2.0, 2.0]"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mode": "default"},
        {"dynamic": True},
        {"fullgraph": True},
        {"options": {"numerics": "eager", "verify": False, "mode": "default"}},
    ],
)
@torch.no_grad()
def test_arguments_of_torch_compile_are_accepted(x, arguments):
    model = Block()
    compiled = torch.compile(model, backend="fuseopt", **arguments)
    for rows in (3, 5, 1):
        given = torch.ones(rows, 8)
        torch.testing.assert_close(compiled(given), copy.deepcopy(model)(given))
    assert model.count == 3


@torch.no_grad()
def test_graph_breaks_and_keyword_arguments_work(x):
    class Broken(Block):
        def forward(self, x, *, residual=None):
            h = self.norm(x)
            if h.sum() > 0:
                h = h * 2
            return super().forward(h, residual=residual)

    model = Broken()
    compiled = torch.compile(model, backend="fuseopt")
    for given in (x, -x):
        torch.testing.assert_close(compiled(given, residual=x), model(given, residual=x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"numeric": "fp32"}}, "unknown option 'numeric'; did you mean numerics"),
        ({"options": {"dynamic": True}}, "dynamic is an argument of torch.compile"),
        ({"mode": "max-autotune"}, "mode='max-autotune' is not one of"),
    ],
)
def test_a_wrong_option_is_named(x, arguments, message):
    with pytest.raises(BackendCompilerFailed, match=message):
        torch.compile(Block(), backend="fuseopt", **arguments)(x)


def test_training_gives_the_gradients_of_eager(x):
    model = Block()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="fuseopt")
    for _ in range(2):
        compiled(x).pow(2).sum().backward()
        twin(x).pow(2).sum().backward()
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    assert torch.equal(model.count, twin.count)


def test_double_backward_is_refused_with_a_reason(x):
    compiled = torch.compile(lambda x: (x * x.sigmoid()).sum(), backend="fuseopt")
    given = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(compiled(given), given, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(first.sum(), given)


def test_autocast_gives_the_dtypes_of_eager(x):
    model = Block()
    compiled = torch.compile(model, backend="fuseopt")
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got, want = compiled(x), model(x)
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_inference_mode_and_then_training(x):
    model = Block()
    compiled = torch.compile(model, backend="fuseopt")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x * 1), model(x * 1))
    compiled(x).sum().backward()
    assert model.proj.weight.grad is not None


def test_dropout_is_reproducible_and_the_backward_mask_is_the_forward_one(x):
    compiled = torch.compile(lambda x: F.dropout(x, 0.5) * 2, backend="fuseopt")
    given = torch.ones(64, 8, requires_grad=True)
    torch.manual_seed(3)
    first, second = compiled(given), compiled(given)
    torch.manual_seed(3)
    assert torch.equal(compiled(given), first)
    assert not torch.equal(first, second)
    second.sum().backward()
    assert torch.equal(given.grad != 0, second != 0)


def test_checkpointing_inside_the_model(x):
    class Checkpointed(Block):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    model = Checkpointed()
    twin = copy.deepcopy(model)
    torch.compile(model, backend="fuseopt")(x).sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(model.proj.weight.grad, twin.proj.weight.grad)


@torch.no_grad()
def test_a_hook_added_after_the_first_call_runs(x):
    model, seen = Block(), []
    compiled = torch.compile(model, backend="fuseopt")
    compiled(x)
    model.norm.register_forward_hook(lambda *_: seen.append(1))
    compiled(x)

    assert seen == [1]
    assert torch._dynamo.config.skip_nnmodule_hook_guards  # nothing global was changed


@torch.no_grad()
def test_a_log_given_as_option_explains_what_happened(x):
    log = fuseopt.Log()
    compiled = torch.compile(Block().eval(), backend="fuseopt", options={"log": log})
    compiled(x)

    report = fuseopt.Report.from_log(log, "block")

    assert report.subject == "block"
    assert any("layer_norm" in n.op for r in report.regions for n in r.nodes)


@torch.no_grad()
def test_something_else_as_log_is_an_error(x):
    compiled = torch.compile(Block().eval(), backend="fuseopt", options={"log": [1]})
    with pytest.raises(BackendCompilerFailed, match=r"log takes a fuseopt\.Log, not list"):
        compiled(x)
