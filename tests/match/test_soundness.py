"""A term means what its expression means: evaluated in float64, both give the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from evaluation import Evaluation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.graph.lift import is_free, lift
from fuseopt.match.erase import Erasure
from fuseopt.match.shadow import Shadow

Function = Callable[..., torch.Tensor]
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(3, 8, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(3, 8, generator=GENERATOR, dtype=torch.float64)
W = torch.rand(8, generator=GENERATOR, dtype=torch.float64) + 0.5
CUBE = torch.randn(2, 6, 4, generator=GENERATOR, dtype=torch.float64)


def value_of_term(function: Function, *args: torch.Tensor, shared: bool = False) -> torch.Tensor:
    """What the term of a function's result is, evaluated."""

    def call(*given: torch.Tensor) -> torch.Tensor:
        return function(*given).clone()  # the result of a view alone has no term of its own

    gm = make_fx(call, pre_dispatch=True)(*args)
    places = dict(zip(gm.graph.find_nodes(op="placeholder"), args, strict=True))
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not is_free(n)]
    lifted = lift(nodes)
    result = lifted.exprs[gm.graph.output_node().args[0]]
    erasure = Erasure()
    shadow = Shadow(erasure, [erasure.of(result)], share_exponentials=shared)

    def read(source) -> torch.Tensor:
        node = lifted.inputs[source.key]
        tensor = getattr(gm, node.target) if node.op == "get_attr" else places[node]
        return tensor.reshape([s for s in tensor.shape if s != 1])

    return Evaluation(shadow.table, read).over(shadow.term(result), shadow.axes_of(result))


FUNCTIONS = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,), W, Y[0]),
    "rms_norm": lambda x: F.rms_norm(x, (8,), W, 1e-3),
    "var": lambda x: x.var(-1),
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: x * x.exp() / (1 + x.exp()),
    "mish": lambda x: F.mish(x),
    "softplus": lambda x: F.softplus(x),
    "erfc": lambda x: torch.erfc(-x),
    "sinh": lambda x: torch.sinh(x) + torch.cosh(x),
    "relu": lambda x: torch.where(x > 0, x, 0.0) + torch.where(x < 1, x, 1.0),
    "powers": lambda x: (x * x).sqrt() + (2 * x).pow(2) * (x * x + 1) ** -1.5,
    "factors": lambda x: x * 0.5 + x * 0.5 * torch.erf(x) - 0.25 * x,
    "halves": lambda x: x * W + torch.cat([-x[..., 4:], x[..., :4]], -1),
    "pairs": lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2),
    "flip": lambda x: x.flip(-1) - x.roll(3, -1),
    "means": lambda x: x.view(3, 2, 4).mean(-1).mean(-1, keepdim=True) + x,
    "drift": lambda x: (x - x.mean(-1, keepdim=True)).sum(-1),
    "compare": lambda x: ((x >= 0) & ~(x > 1)).to(torch.float64) * x,
    "positions": lambda x: x * torch.arange(8) - torch.arange(3)[:, None],
    "masked": lambda x: x.masked_fill(torch.arange(8) > torch.arange(3)[:, None] + 4, -2.0),
    "lookup": lambda x: F.embedding(torch.arange(3) % 2, x) + x,
    "gather": lambda x: torch.gather(x, 1, torch.arange(8).expand(3, 8) // 2),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_meaning(name, shared):
    function = FUNCTIONS[name]

    torch.testing.assert_close(value_of_term(function, X, shared=shared), function(X))


CUBES = {
    "group_norm": lambda x: F.group_norm(x, 3),
    "instance_norm": lambda x: F.group_norm(x, 6),
    "layer_norm over two": lambda x: F.layer_norm(x, (6, 4)),
    "split and summed": lambda x: x.view(2, 2, 3, 4).sum((1, 3)),
    "transposed": lambda x: F.softmax(x.transpose(1, 2).reshape(2, 8, 3), 1),
    "strided": lambda x: x[:, 1::2, ::3] * 2 + x[:, ::2, 1:3],
    "padded": lambda x: F.pad(x, (1, 2), value=0.5),
    "repeated": lambda x: x.repeat(1, 2, 1),
    "flattened": lambda x: x.flatten()[5:29].view(4, 6).t() + x[0, :, :],
}


@pytest.mark.parametrize("name", CUBES)
def test_indices_keep_their_meaning(name):
    function = CUBES[name]

    torch.testing.assert_close(value_of_term(function, CUBE), function(CUBE))


# What a random program may do with values of one shape; numbers stay near one.
STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - 0.5 * b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (1.5 + torch.tanh(b)),
    "scale": lambda a, b: -0.3 * a + 0.1,
    "tanh": lambda a, b: torch.tanh(a),
    "sigmoid": lambda a, b: a * torch.sigmoid(b),
    "exp": lambda a, b: torch.exp(torch.tanh(a) - b.tanh().amax(-1, keepdim=True)),
    "log": lambda a, b: torch.log(1.1 + torch.tanh(a)),
    "sqrt": lambda a, b: (a * a + 0.1).sqrt(),
    "rsqrt": lambda a, b: a * (b * b + 0.1).rsqrt(),
    "square": lambda a, b: torch.tanh(a).pow(2),
    "softmax": lambda a, b: F.softmax(a, -1),
    "log_softmax": lambda a, b: F.log_softmax(torch.tanh(a), -1),
    "norm": lambda a, b: F.layer_norm(a, (8,), eps=0.1),
    "rms": lambda a, b: F.rms_norm(a, (8,), None, 0.1),
    "mean": lambda a, b: a - b.mean(-1, keepdim=True),
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "halves": lambda a, b: torch.cat([-a[..., 4:], b[..., :4]], -1),
    "pairs": lambda a, b: torch.stack([-a[..., 1::2], b[..., ::2]], -1).flatten(-2),
    "fold": lambda a, b: a.view(3, 2, 4).transpose(1, 2).reshape(3, 8) + b,
    "rows": lambda a, b: a * b.amax(0, keepdim=True).tanh(),
}
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5), st.integers(0, 5)),
    min_size=1,
    max_size=7,
)


def run(program, x, y):
    values = [x, y]
    for step, a, b in program:
        values.append(STEPS[step](values[a % len(values)], values[b % len(values)]))
    return values[-1]


@given(program=PROGRAMS, shared=st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_programs_keep_their_meaning(program, shared):
    expected = run(program, X, Y)

    got = value_of_term(lambda x, y: run(program, x, y), X, Y, shared=shared)

    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
