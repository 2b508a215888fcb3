"""What each node is to the fuser: free, fusable, or left to PyTorch, and then why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import fx

from fuseopt.events import Reason
from fuseopt.graph.lift import lift, target_name, tensors_of
from fuseopt.graph.reinplace import partial_updates
from fuseopt.ops import OPS, NotExpressible
from fuseopt.ops.declare import SUPPORTED_DTYPES
from fuseopt.ops.dropout import DRAW_SEEDS
from fuseopt.ops.linear_loss import LINEAR_CROSS_ENTROPY

# Ops that a vendor library does better than anything generated here.
HEAVY = frozenset(
    "aten." + name
    for name in (
        "mm bmm addmm baddbmm addmv mv dot matmul linear einsum bilinear outer addbmm tensordot "
        "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d "
        "convolution_backward _convolution cudnn_convolution mkldnn_convolution "
        "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_transformer_encoder_layer_fwd _native_multi_head_attention _grouped_mm _scaled_mm "
        "lstm gru rnn_tanh rnn_relu"
    ).split()
)
# Ops that write, or add up, at places that indices name.
SCATTERING = frozenset(
    "aten." + name
    for name in (
        "embedding_dense_backward index_put _unsafe_index_put index_add index_copy index_fill "
        "scatter scatter_add scatter_reduce masked_scatter"
    ).split()
)
# Ops that give their argument back when nothing has to change: no kernel runs then.
MAYBE_ALIAS = frozenset(
    "aten." + name
    for name in (
        "to.dtype to.dtype_layout to.device to.other type_as.default contiguous.default "
        "dropout.default feature_dropout.default expand_as.default"
    ).split()
)
WIDENING = frozenset(
    "aten._to_copy.default aten.to.dtype aten.to.dtype_layout aten.to.other aten.type_as.default "
    "prims.convert_element_type.default".split()
)
CONCATENATIONS = ("aten.cat.default", "aten.concat.default")


class Role(Enum):
    """What a node is to the fuser."""

    FREE = "free"  # a view or a constant: costs nothing inside a region
    FUSABLE = "fusable"  # one kernel in PyTorch, could be part of one of ours
    OPAQUE = "opaque"  # PyTorch runs it


@dataclass(frozen=True, slots=True)
class Verdict:
    """A node's role, and the reason where PyTorch keeps it."""

    role: Role
    code: Reason | None = None
    reason: str = ""


def classify(graph: fx.Graph, device: torch.device) -> dict[fx.Node, Verdict]:
    """Return the verdict on every node of a graph. Regions run on `device`."""
    verdicts = {node: _verdict(node, device) for node in graph.nodes}
    for node in partial_updates(graph):
        text = f"{target_name(node)} writes a part of an input, in place"
        verdicts[node] = Verdict(Role.OPAQUE, Reason.MUTATION, text)
    return verdicts


def is_widening(node: fx.Node) -> bool:
    """Whether a node only makes its input's dtype wider, which a region does while reading."""
    if target_name(node) not in WIDENING:
        return False
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    floats = before.dtype.is_floating_point and after.dtype.is_floating_point
    return floats and before.itemsize < after.itemsize and before.device == after.device


def is_alias(node: fx.Node) -> bool:
    """Whether an op that may return its argument does so here."""
    name = target_name(node)
    if name not in MAYBE_ALIAS:
        return False
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if name == "aten.dropout.default" and _draws(node):
        return False
    return bool(
        before.dtype == after.dtype
        and before.device == after.device
        and tuple(before.shape) == tuple(after.shape)
        and before.stride() == after.stride()
    )


def _draws(node: fx.Node) -> bool:
    p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0)
    train = node.args[2] if len(node.args) > 2 else node.kwargs.get("train", False)
    return bool(train and p != 0)


def _verdict(node: fx.Node, device: torch.device) -> Verdict:
    if node.op != "call_function":
        return Verdict(Role.OPAQUE)
    name = target_name(node)
    if name == "getitem":
        return Verdict(Role.FREE)
    declared = OPS.get(name)
    if declared is None:
        return _undeclared(node, name)
    misfit = _misfit(node, device)
    if misfit is not None:
        return misfit if declared.form != "view" else Verdict(Role.OPAQUE)
    if declared.form == "view" or is_alias(node):
        return Verdict(Role.FREE)
    if declared.form == "create":
        return Verdict(Role.FREE)
    try:
        lift([node])
    except NotExpressible as reason:
        code = Reason.RANDOM if "random" in str(reason) else Reason.NO_DEFINITION
        return Verdict(Role.OPAQUE, code, f"{name}: {reason}")
    return Verdict(Role.FUSABLE)


def _undeclared(node: fx.Node, name: str) -> Verdict:
    if name.rpartition(".")[0] in HEAVY:
        return Verdict(Role.OPAQUE, Reason.HEAVY, f"{name} stays with the vendor's kernel")
    if name.rpartition(".")[0] in SCATTERING:
        text = f"{name} writes at places known only at run time"
        return Verdict(Role.OPAQUE, Reason.DATA_DEPENDENT, text)
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        return Verdict(Role.OPAQUE, Reason.MUTATION, f"{name} writes to an input")
    if node.target in (DRAW_SEEDS, LINEAR_CROSS_ENTROPY):  # of ours: no operation of the model
        return Verdict(Role.OPAQUE)
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return Verdict(Role.OPAQUE, Reason.RANDOM, f"{name} draws random numbers")
    if not tensors_of(node):
        return Verdict(Role.OPAQUE)
    return Verdict(Role.OPAQUE, Reason.NO_DEFINITION, f"{name} has no definition in fuseopt.ops")


def _misfit(node: fx.Node, device: torch.device) -> Verdict | None:
    """What about a node's tensors keeps it out of a kernel."""
    tensors = list(tensors_of(node))
    for source in node.all_input_nodes:
        tensors.extend(tensors_of(source))
        value = source.meta.get("val")
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return Verdict(Role.OPAQUE, Reason.DATA_DEPENDENT, "a number known only at run time")
    for tensor in tensors:
        if tensor.dtype not in SUPPORTED_DTYPES:
            return Verdict(Role.OPAQUE, Reason.DTYPE, f"{_short(tensor.dtype)} tensors")
        if tensor.device != device:
            return Verdict(
                Role.OPAQUE, Reason.DEVICE, f"a tensor on {tensor.device}, kernels on {device}"
            )
        if tensor.layout != torch.strided:
            return Verdict(Role.OPAQUE, Reason.LAYOUT, f"{tensor.layout} tensors")
        if tensor.is_neg():
            return Verdict(Role.OPAQUE, Reason.LAYOUT, "a tensor that is negated when it is read")
        if _has_unbacked_size(tensor):
            return Verdict(Role.OPAQUE, Reason.DATA_DEPENDENT, "a size known only at run time")
    # What is empty adds nothing to what it is put beside.
    full = tensors_of(node) if target_name(node) in CONCATENATIONS else tensors
    if any(isinstance(s, int) and s == 0 for tensor in full for s in tensor.shape):
        return Verdict(Role.OPAQUE, Reason.NO_GAIN, "an empty tensor")
    return None


def _has_unbacked_size(tensor: torch.Tensor) -> bool:
    sizes = (*tensor.shape, *tensor.stride())
    return any(isinstance(s, torch.SymInt) and not s.node.has_hint() for s in sizes)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
