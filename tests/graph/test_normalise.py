"""Normal form: which level a graph is traced at, and what holds of the graphs that result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from fuseopt.graph.clean import clean
from fuseopt.graph.form import Input, NormalisedGraph, check_form, count_kernels
from fuseopt.graph.locate import dotted_path, node_info, user_frame
from fuseopt.graph.normalise import normalise

aten = torch.ops.aten


class Normaliser:
    """A `torch.compile` backend that keeps the normalised graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[NormalisedGraph] = []

    def __call__(self, gm, example_inputs):
        def keep(graph: NormalisedGraph):
            self.graphs.append(graph)
            return lambda args: graph.gm.forward(*args)

        return normalise(gm, example_inputs, keep, lambda: len(self.graphs))

    @property
    def levels(self) -> list[str]:
        return [g.level for g in self.graphs]


def normal_form(function, *args, grad=False, **kwargs) -> tuple[Normaliser, object]:
    """Run a function under the backend and return its graphs and its result."""
    torch._dynamo.reset()
    backend = Normaliser()
    with torch.set_grad_enabled(grad):
        out = torch.compile(function, backend=backend, fullgraph=True, **kwargs)(*args)
    for graph in backend.graphs:
        check_form(graph)
    return backend, out


def only_graph(function, *args, **kwargs) -> NormalisedGraph:
    backend, _ = normal_form(function, *args, **kwargs)
    (graph,) = backend.graphs
    return graph


def targets(graph: NormalisedGraph) -> list[str]:
    return [str(n.target) for n in graph.gm.graph.nodes if n.op == "call_function"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return F.gelu(self.head(self.norm(x))) * self.scale


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


# ------------------------------------------------------------------------- level


def test_inference_keeps_composites_whole():
    class Attends(Model):
        def forward(self, x):
            q = F.rms_norm(super().forward(x), (8,))[None]
            return torch.softmax(F.scaled_dot_product_attention(q, q, q), -1)

    graph = only_graph(Attends().eval(), X)

    assert graph.level == "inference"
    assert targets(graph) == [
        "aten.layer_norm.default",
        "aten.linear.default",
        "aten.gelu.default",
        "aten.mul.Tensor",
        "aten.rms_norm.default",
        "aten.unsqueeze.default",
        "aten.scaled_dot_product_attention.default",
        "aten.softmax.int",
    ]


def test_training_makes_a_forward_and_a_backward_graph():
    backend, out = normal_form(Model(), X, grad=True)
    out.sum().backward()

    assert backend.levels == ["forward", "backward"]
    assert "aten.native_layer_norm.default" in targets(backend.graphs[0])


def test_inputs_that_need_no_gradients_make_inference_whatever_the_mode():
    assert only_graph(lambda x: F.gelu(x), X, grad=True).level == "inference"


def test_a_forward_under_no_grad_is_inference_and_returns_no_gradient():
    model = Model().eval()
    backend, out = normal_form(torch.no_grad()(model.forward), X, grad=True)

    assert backend.levels == ["inference"]
    assert "aten.layer_norm.default" in targets(backend.graphs[0])
    assert not out.requires_grad


@pytest.mark.parametrize("ambient", [True, False])
def test_autocast_is_written_into_the_graph(ambient):
    linear = nn.Linear(8, 8)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x)

    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        backend, out = normal_form(linear if ambient else inside, X)

    assert out.dtype is torch.bfloat16
    assert "aten._to_copy.default" in targets(backend.graphs[0])


def test_a_region_with_gradients_inside_no_grad_keeps_its_gradients():
    weight = torch.ones(8, requires_grad=True)

    def region(x):
        with torch.enable_grad():
            return (x * weight).sum()

    _, out = normal_form(region, X)
    out.backward()
    torch.testing.assert_close(weight.grad, X.sum(0))


def test_control_flow_operators_are_left_to_aot_autograd():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    _, out = normal_form(branch, X.abs())
    assert torch.equal(out, X.abs() + 1)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_transformed_functions_are_left_to_aot_autograd(transform):
    """Tracing one before dispatch fails half way, and would leave its level of vmap behind."""

    def transformed(x):
        return transform(lambda row: torch.tanh(row).sum())(x)

    backend, out = normal_form(transformed, X)
    torch.testing.assert_close(out, transformed(X))
    assert torch._C._functorch.get_interpreter_stack() is None
    assert backend.levels == ["inference"]


# ------------------------------------------------------------------------- inputs


def test_parameters_and_buffers_are_told_from_inputs():
    model = Model().eval()
    graph = only_graph(model, X)

    assert set(graph.inputs) == {
        Input("parameter", "norm.weight"),
        Input("parameter", "norm.bias"),
        Input("parameter", "head.0.weight"),
        Input("parameter", "head.0.bias"),
        Input("buffer", "scale"),
        Input("input"),
    }
    assert sum(i.is_static for i in graph.inputs) == 5


def test_a_backward_graph_tells_saved_tensors_from_tangents():
    backend, out = normal_form(Model(), X, grad=True)
    out.sum().backward()
    forward, backward = backend.graphs

    assert {i.kind for i in backward.inputs} == {"saved", "tangent"}
    assert [i.kind for i in backward.inputs].count("tangent") == 1
    assert Input("parameter", "norm.weight") in forward.inputs


def test_dynamic_sizes_are_symbolic_placeholders():
    graph = only_graph(lambda x: x.reshape(-1) * x.shape[0], X, dynamic=True)
    values = [n.meta["val"] for n in graph.gm.graph.nodes if n.op == "placeholder"]

    assert any(isinstance(v, torch.SymInt) for v in values)
    assert any(isinstance(v, torch.Tensor) and v.dim() == 2 for v in values)


# ------------------------------------------------------------------------- writes and aliases


def test_a_write_to_an_input_is_one_trailing_copy():
    cache, x = torch.zeros(4, 8), X.clone()

    def update(x, cache):
        cache[1:3] = x[:2]
        return (cache * 2).sum()

    backend, out = normal_form(update, x, cache)
    (graph,) = backend.graphs
    nodes = list(graph.gm.graph.nodes)

    assert nodes[-2].target is aten.copy_.default
    assert nodes[-2].args[0].op == "placeholder"
    assert sum("copy_" in t for t in targets(graph)) == 1
    assert torch.equal(cache[1:3], x[:2])
    assert out == (cache * 2).sum()


def test_copying_into_a_buffer_reads_the_source_once():
    graph = only_graph(lambda x, b: (b.copy_(x), x.sum())[1], X, torch.zeros(4, 8))
    assert targets(graph) == ["aten.sum.default", "aten.copy_.default"]


def test_swapped_inputs_are_both_written():
    a, b = X.clone(), X + 1

    def swap(a, b):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        return a + b

    normal_form(swap, a, b)
    assert torch.equal(a, X + 1)
    assert torch.equal(b, X)


def test_an_output_that_is_a_written_input_is_that_tensor():
    given = X.clone()
    _, out = normal_form(lambda x: (x.add_(1), x[1:])[1], given)

    assert out.data_ptr() == given[1:].data_ptr()
    assert torch.equal(given, X + 1)


def test_outputs_that_are_views_of_an_input_stay_views():
    given = X.clone()
    _, (flat, detached, tail) = normal_form(lambda x: (x.view(-1), x.detach(), x[1:]), given)
    given.zero_()

    assert not flat.any()
    assert not detached.any()
    assert not tail.any()


@pytest.mark.parametrize(
    "read",
    [
        lambda cache: F.linear(cache, cache),
        lambda cache: F.layer_norm(cache, (8,)),
        lambda cache: torch.einsum("ij,kj->ik", cache, cache),
    ],
)
def test_a_composite_that_reads_a_written_input_keeps_the_graph_functional(read):
    backend, _ = normal_form(lambda cache: read(cache.add_(1)), X.clone())
    assert "aten.copy_.default" in targets(backend.graphs[0])
    assert not any("native" in t or "mm" in t for t in targets(backend.graphs[0]))


def test_dynamic_sizes_do_not_stop_a_composite_from_being_tried():
    weight = torch.ones(8, 8)

    def update(cache, x):
        cache.add_(1)
        return F.cross_entropy(F.linear(x, weight), torch.zeros_like(x[:, 0], dtype=torch.long))

    graph = only_graph(update, torch.zeros(3), X, dynamic=True)
    assert "aten.cross_entropy_loss.default" in targets(graph)


def test_a_composite_that_returns_a_view_of_a_written_input_stays_a_view():
    def update(cache):
        return torch.einsum("ij->ji", cache.add_(1))

    given = X.clone()
    _, out = normal_form(update, given)
    given.zero_()
    assert not out.any()


def test_outputs_that_share_storage_with_each_other_still_do():
    def pair(x):
        y = x * 2
        view = y[0]
        y.add_(1)
        return y, view

    _, (whole, view) = normal_form(pair, X)
    assert torch.equal(whole, X * 2 + 1)
    whole.zero_()
    assert not view.any()


# ------------------------------------------------------------------------- cleaning


def test_evaluation_dropout_is_dropped_and_training_dropout_kept():
    model = Model()
    assert "aten.dropout.default" not in targets(only_graph(model.eval(), X))
    assert "aten.dropout.default" in targets(only_graph(model.train(), X))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "idle",
    [
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.dropout(x, p=0.5, training=False),
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout2d(x[None, None], 0.5, training=False)[0, 0],
        lambda x: F.alpha_dropout(x, 0.5),
        lambda x: torch.dropout(x, 0.5, train=False),
    ],
)
def test_a_write_to_idle_dropouts_result_reaches_its_input(idle, grad):
    given, weight = X.clone(), torch.ones(8, requires_grad=grad)
    backend, out = normal_form(lambda x, w: (idle(x).mul_(3) * w).tanh(), given, weight, grad=grad)

    torch.testing.assert_close(given, X * 3)
    torch.testing.assert_close(out, (X * 3).tanh())
    assert not any("dropout" in t or "clone" in t for t in targets(backend.graphs[0]))


def test_a_detach_nobody_can_see_is_dropped():
    graph = only_graph(lambda x: (x.detach() * 2, x.detach()), X)
    assert sorted(targets(graph)) == ["aten.detach.default", "aten.mul.Tensor"]
    assert graph.gm.graph.find_nodes(op="placeholder")[0].users.keys() == set(
        graph.gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        + graph.gm.graph.find_nodes(op="call_function", target=aten.detach.default)
    )


def test_a_constant_returned_to_the_caller_is_a_copy():
    backend, out = normal_form(lambda x: (torch.tensor([1.0, 2.0]), x + 1)[0], X)
    (constant,) = (
        n for n in backend.graphs[0].gm.graph.nodes if n.target is aten.lift_fresh_copy.default
    )
    out.zero_()
    again = backend.graphs[0].gm.forward(X)[0]

    assert constant.users
    assert again.tolist() == [1.0, 2.0]


def test_two_equal_random_draws_stay_two():
    graph = only_graph(lambda x: (torch.rand_like(x) - torch.rand_like(x)) * x, X)
    assert targets(graph).count("aten.rand_like.default") == 2


def test_cleaning_keeps_a_graph_in_form():
    graph = only_graph(Model().eval(), X)
    before = targets(graph)
    clean(graph.gm)

    check_form(graph)
    assert targets(graph) == before


# ------------------------------------------------------------------------- form


def test_kernels_are_counted_without_views_and_sizes():
    graph = only_graph(lambda x: F.gelu(x.t().reshape(2, -1)[0] + x.shape[0]).view(-1), X)

    assert targets(graph) == [
        "aten.t.default",
        "aten.clone.default",
        "aten._unsafe_view.default",
        "aten.select.int",
        "aten.add.Tensor",
        "aten.gelu.default",
        "aten.view.default",
    ]
    assert count_kernels(graph.gm) == 3


def test_a_graph_without_values_is_not_in_form():
    graph = only_graph(lambda x: x + 1, X)
    next(n for n in graph.gm.graph.nodes if n.op == "call_function").meta.pop("val")
    with pytest.raises(AssertionError, match="has no meta"):
        check_form(graph)


def test_a_graph_needs_one_input_for_each_placeholder():
    graph = only_graph(lambda x: x + 1, X)
    with pytest.raises(AssertionError, match="one Input"):
        check_form(NormalisedGraph(graph.gm, "inference", 0, ()))


# ------------------------------------------------------------------------- where a node comes from


@pytest.mark.parametrize("grad", [False, True])
def test_every_operation_knows_its_line(grad):
    backend, out = normal_form(Model().eval(), X, grad=grad)
    if grad:
        out.sum().backward()
    for graph in backend.graphs:
        for node in graph.gm.graph.nodes:
            if node.op == "call_function" and "getitem" not in node.name:
                info = node_info(node)
                assert info.location, (graph.level, node.format_node())


def test_a_node_is_described_in_the_users_terms():
    graph = only_graph(Model().eval(), X)
    gelu = next(n for n in graph.gm.graph.nodes if n.target is aten.gelu.default)
    linear = next(n for n in graph.gm.graph.nodes if n.target is aten.linear.default)
    info = node_info(gelu)

    assert info.op == "aten.gelu.default"
    assert info.location.startswith("test_normalise.py:")
    assert info.code == "return F.gelu(self.head(self.norm(x))) * self.scale"
    assert (info.shape, info.dtype) == (("4", "8"), "float32")
    assert node_info(linear).module == "head.0"


def test_a_regenerated_view_takes_the_line_of_its_operand():
    def view(x):
        y = x * 2
        tail = y[1:]
        y.add_(1)
        return tail

    graph = only_graph(view, X)
    assert all(
        node_info(n).location.startswith("test_normalise.py:")
        for n in graph.gm.graph.nodes
        if n.op == "call_function"
    )


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self'].encoder.layer[0].output", "encoder.layer.0.output"),
        ("L['self']._modules['encoder']._modules['layer']._modules['0']", "encoder.layer.0"),
        ("L['function'].__self__._modules['fc']._parameters['weight']", "fc.weight"),
        ("encoder.layer.0", "encoder.layer.0"),
        ("L['self']", ""),
    ],
)
def test_dynamos_names_become_the_users(source, path):
    assert dotted_path(source) == path


def test_the_innermost_frame_outside_torch_is_the_users():
    trace = (
        '  File "/home/me/model.py", line 12, in forward\n    return self.norm(x)\n'
        f'  File "{fx.__file__}", line 5, in forward\n    return F.layer_norm(x)\n'
    )
    frame = user_frame(trace)

    assert frame is not None
    assert (frame.location, frame.code) == ("model.py:12", "return self.norm(x)")
    assert user_frame("") is None
    assert user_frame(None) is None


@pytest.mark.parametrize("grad", [False, True])
def test_an_op_that_may_raise_leaves_no_token_in_a_graph(grad):
    """A composite such as `linalg.inv` checks for errors in order; whole, it needs nothing else."""
    count, x = torch.zeros(3), torch.eye(3) + 0.1

    def function(count, x):
        count.add_(1)
        return torch.linalg.inv(x * 2) + count

    backend, out = normal_form(function, count, x, grad=grad)

    assert backend.levels == ["inference"]
    assert [i.kind for i in backend.graphs[0].inputs] == ["input", "input"]
    assert "aten.linalg_inv.default" in targets(backend.graphs[0])
    torch.testing.assert_close(out, torch.linalg.inv(x * 2) + 1)
    assert torch.equal(count, torch.ones(3))
