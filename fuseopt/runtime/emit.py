"""Emitting a spliced graph as one straight Python function.

The function takes a list of inputs (and empties it), allocates, launches and frees. Calls go
through the cheapest entry that PyTorch offers: `torch.addmm` and not the OpOverload, tensor methods
for views, a direct launch for each kernel. A graph is never interpreted.
"""

from __future__ import annotations

import keyword
import linecache
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fuseopt.graph.clean import may_alias
from fuseopt.ir import dims
from fuseopt.ops.dropout import DRAW_SEEDS, draw_seeds
from fuseopt.runtime.call import RegionKernel, realign
from fuseopt.runtime.call import restride as restrided

aten = torch.ops.aten
_guards: Any = torch._C._dynamo.guards
# Allocation without the dispatcher. Only a CUDA build of PyTorch has the first.
_ALLOCATE = {
    "cuda": getattr(_guards, "_empty_strided_cuda", None),
    "cpu": _guards._empty_strided_cpu,
}

# Ops whose schema is a tensor method's signature.
_METHODS = {
    aten.view.default: "view",
    aten.reshape.default: "reshape",
    aten.permute.default: "permute",
    aten.transpose.int: "transpose",
    aten.t.default: "t",
    aten.expand.default: "expand",
    aten.unsqueeze.default: "unsqueeze",
    aten.squeeze.dim: "squeeze",
    aten.select.int: "select",
    aten.detach.default: "detach",
}
# Ops that `torch.<name>` or `torch._C._nn.<name>` takes with the same arguments.
_FUNCTIONS = {
    aten.linear.default: "torch._C._nn.linear",
    aten.scaled_dot_product_attention.default: "torch._C._nn.scaled_dot_product_attention",
    aten.mm.default: "torch.mm",
    aten.bmm.default: "torch.bmm",
    aten.addmm.default: "torch.addmm",
    aten.baddbmm.default: "torch.baddbmm",
    aten.matmul.default: "torch.matmul",
    aten.embedding.default: "torch.embedding",
    aten.conv2d.default: "torch.conv2d",
    aten.conv1d.default: "torch.conv1d",
    aten.convolution.default: "torch.convolution",
    aten.layer_norm.default: "torch.layer_norm",
    aten.softmax.int: "torch.softmax",
    aten.gelu.default: "torch._C._nn.gelu",
    aten.silu.default: "torch._C._nn.silu",
    aten.relu.default: "torch.relu",
    aten.tanh.default: "torch.tanh",
    aten.sigmoid.default: "torch.sigmoid",
    aten.add.Tensor: "torch.add",
    aten.sub.Tensor: "torch.sub",
    aten.mul.Tensor: "torch.mul",
    aten.div.Tensor: "torch.div",
    aten.cat.default: "torch.cat",
    aten.sum.dim_IntList: "torch.sum",
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """A compiled graph. `run` takes the list of inputs, returns a tuple; `text` is its source."""

    run: Callable[[list[Any]], tuple[Any, ...]]
    text: str


# Ops whose results are laid out as shape inference says, on every device, in new memory.
_TRUE_TO_META = frozenset(
    {
        aten.linear.default,
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten.embedding.default,
    }
)


def emit(gm: fx.GraphModule, name: str, device: torch.device, level: str) -> Emitted:
    """Return a graph as a function.

    device: where its kernels run. level: "inference", "forward" or "backward"; what a backward
    graph receives was laid out by the ops of the forward graph.
    """
    return _Emitting(gm, name, device, level).run()


@dataclass(slots=True)
class _Emitting:
    gm: fx.GraphModule
    name: str
    device: torch.device
    level: str
    lines: list[str] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    parts: dict[fx.Node, list[str]] = field(default_factory=dict)  # the outputs of a kernel
    taken: set[str] = field(default_factory=lambda: {"args", "stream"})
    globals: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Emitted:
        nodes = list(self.gm.graph.nodes)
        last_use = _last_uses(nodes)
        self.globals["torch"] = torch
        self._inputs([n for n in nodes if n.op == "placeholder"])
        if any(_is_kernel(n) for n in nodes):
            self._stream()
        for node in nodes:
            if node.op in ("placeholder", "output"):
                continue
            self._node(node)
            self._free(last_use.get(node, ()))
        output = self.gm.graph.output_node().args[0]
        self.lines.append(f"return {self._text(output)}")
        return self._compile()

    def _compile(self) -> Emitted:
        body = "\n".join(f"    {line}" for line in self.lines)
        text = f"def {self.name}(args):\n{body}\n"
        if self._needs_device_guard():
            # Kernels and allocations go to the current device, which may be another one.
            text += (
                f"\n\ndef {self.name}_on_device(args):\n"
                f"    if current_device() == {self._index()}:\n"
                f"        return {self.name}(args)\n"
                f"    with on_device({self._index()}):\n"
                f"        return {self.name}(args)\n"
            )
            self.globals["current_device"] = torch.cuda.current_device
            self.globals["on_device"] = torch.cuda.device
        file = f"<fuseopt {self.name} {id(self):x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace = dict(self.globals)
        exec(compile(text, file, "exec"), namespace)
        entry = f"{self.name}_on_device" if self._needs_device_guard() else self.name
        run = namespace[entry]
        run.source = text
        return Emitted(run, text)

    def _needs_device_guard(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.device_count() > 1

    def _stream(self) -> None:
        if self.device.type == "cuda":
            self.lines.append(f"stream = current_stream({self._index()})")
            self.globals["current_stream"] = torch._C._cuda_getCurrentRawStream
        else:
            self.lines.append("stream = 0")

    def _index(self) -> int:
        return self.device.index or 0

    # --- parts ---------------------------------------------------------------------------------

    def _inputs(self, placeholders: list[fx.Node]) -> None:
        for node in placeholders:
            self.names[node] = self._fresh(str(node.target))
        if placeholders:
            listed = ", ".join(self.names[n] for n in placeholders)
            self.lines.append(f"{listed}{',' if len(placeholders) == 1 else ''} = args")
        self.lines.append("args.clear()")

    def _node(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            name = self._fresh(str(node.target))
            self.globals[name] = _attribute(self.gm, str(node.target))
            self.names[node] = name
            return
        assert node.op == "call_function", f"{node.op} in a compiled graph"
        if isinstance(node.target, RegionKernel):
            self._kernel(node, node.target)
            return
        if node.target is operator.getitem:
            source, place = node.args
            if isinstance(source, fx.Node) and isinstance(place, int) and source in self.parts:
                self.names[node] = self.parts[source][place]
                return
        name = self._fresh(node.name)
        self.names[node] = name
        self.lines.append(f"{name} = {self._call(node)}")

    def _kernel(self, node: fx.Node, kernel: RegionKernel) -> None:
        tensors = [n for n in node.args if isinstance(n, fx.Node)]
        if kernel.symbols:
            name = self.names[node] = self._fresh("buf")
            bound = self._bind(kernel.name, kernel)
            self.lines.append(f"{name} = {bound}({', '.join(map(self._text, node.args))})")
            return
        given = [
            self._ready(tensor, _tuple(param.strides))
            for tensor, param in zip(tensors, kernel.kernel.inputs, strict=True)
        ]
        built = kernel.for_sizes(())
        launch = self._bind(kernel.name, built.launch)
        empty = self._bind("empty", _ALLOCATE[self.device.type])
        outputs = [self._fresh("buf") for _ in kernel.kernel.outputs]
        for output, param in zip(outputs, kernel.kernel.outputs, strict=True):
            shape, strides = _tuple(param.shape), _tuple(param.strides)
            self.lines.append(f"{output} = {empty}({shape}, {strides}, {param.dtype})")
        extra = []
        for scratch in built.candidate.scratch({}):
            extra.append(self._fresh("scratch"))
            make = "torch.zeros" if scratch.zeroed else "torch.empty"
            options = f"dtype={scratch.dtype}, device={self._text(self.device)}"
            self.lines.append(f"{extra[-1]} = {make}({scratch.count}, {options})")
        arguments = ", ".join([*given, *outputs, *extra])
        self.lines.append(f"{launch}({built.grid({})}, 1, 1, stream, {arguments})")
        done = extra + [g for g, t in zip(given, tensors, strict=True) if g != self.names[t]]
        if done:
            self.lines.append(f"del {', '.join(dict.fromkeys(done))}")
        if len(outputs) == 1:
            self.names[node] = outputs[0]
        else:
            self.parts[node] = outputs

    def _ready(self, tensor: fx.Node, strides: str) -> str:
        """Emit what brings a kernel's input to the layout it was built for; return its name."""
        name = self.names[tensor]
        steps = []
        if self._may_differ(tensor):
            restride = self._bind("restride", restrided)
            steps.append((f"{{0}}.stride() != {strides}", f"{restride}({{0}}, {strides})"))
        if _may_be_misaligned(tensor):
            steps.append(("{0}.data_ptr() & 15", f"{self._bind('realign', realign)}({{0}})"))
        if not steps:
            return name
        if _is_seen(tensor):  # the name must go on standing for the memory that others see
            name = self._fresh("ready")
            self.lines.append(f"{name} = {self.names[tensor]}")
        lines = [f"if {test}: {{0}} = {change}".format(name) for test, change in steps]
        self.lines.extend(line for line in lines if line not in self.lines)
        return name

    def _may_differ(self, node: fx.Node) -> bool:
        """Whether a tensor's strides may be others than its metadata says."""
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._may_differ(node.args[0])
        if node.op == "placeholder":
            return self.level == "backward"
        return node.op == "call_function" and not (_is_kernel(node) or node.target in _TRUE_TO_META)

    def _call(self, node: fx.Node) -> str:
        target = node.target
        args = [self._text(a) for a in node.args]
        named = [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
        if target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if target in _METHODS:
            return f"{args[0]}.{_METHODS[target]}({', '.join(args[1:] + named)})"
        if target in _FUNCTIONS:
            return f"{_FUNCTIONS[target]}({', '.join(args + named)})"
        if target is DRAW_SEEDS:
            function = self._bind("draw_seeds", draw_seeds)
        elif isinstance(target, OpOverload):
            function = self._bind(f"{target._opname}_{target._overloadname}", target)
        else:
            function = self._bind(getattr(target, "__name__", "function"), target)
        return f"{function}({', '.join(args + named)})"

    def _free(self, nodes: Iterable[fx.Node]) -> None:
        names = [self.names[n] for n in nodes if n.op != "get_attr" and n not in self.parts]
        if names:
            self.lines.append(f"del {', '.join(names)}")

    # --- text ----------------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, tuple):
            inner = ", ".join(map(self._text, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self._text, parts))})"
        if isinstance(value, float):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return self._bind(type(value).__name__.lower(), value)

    def _bind(self, hint: str, value: Any) -> str:
        for name, known in self.globals.items():
            if known is value:
                return name
        name = self._fresh(hint)
        self.globals[name] = value
        return name

    def _fresh(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint)
        if not base.isidentifier() or keyword.iskeyword(base):
            base = f"v_{base}"
        name, number = base, 0
        while name in self.taken or name in self.globals:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


def _is_kernel(node: fx.Node) -> bool:
    return isinstance(node.target, RegionKernel)


def _is_seen(node: fx.Node) -> bool:
    """Whether an op writes to a tensor, or its memory may leave the graph, itself or as a view."""
    for user in node.users:
        if user.op == "output":
            return True
        target = user.target
        if isinstance(target, OpOverload) and target._schema.is_mutable and user.args[0] is node:
            return True
        shares = target is operator.getitem or (not _is_kernel(user) and may_alias(user))
        if shares and _is_seen(user):
            return True
    return False


def _may_be_misaligned(node: fx.Node) -> bool:
    """Whether a tensor may start anywhere: it comes from outside, or an op decides.

    A view starts inside another tensor, and some copies keep the offset of what they copy.
    """
    if node.op == "placeholder":
        return True
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _may_be_misaligned(node.args[0])
    return isinstance(node.target, OpOverload) and node.target not in _TRUE_TO_META


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes that nothing after it uses."""
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            last[source] = node
    freed: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        if node.op in ("placeholder", "call_function"):
            user = last.get(node)
            if user is not None and user.op != "output":
                freed.setdefault(user, []).append(node)
    return freed


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _tuple(sizes: tuple[Any, ...]) -> str:
    inner = ", ".join(str(dims.hint(s, {})) for s in sizes)
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"
