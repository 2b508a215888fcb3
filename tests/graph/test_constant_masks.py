"""Masks that depend on no input, before autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import fuseopt
from fuseopt.graph.constant_masks import without_constant_masks
from fuseopt.graph.masks import attention_arguments

HEADS, TOKENS = 2, 8


def captured(function, *args) -> list[fx.GraphModule]:
    """The graphs that Dynamo makes of a function."""
    graphs: list[fx.GraphModule] = []

    def keep(gm, _):
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=False)(*args)
    return graphs


def attention_of(gm: fx.GraphModule) -> dict[str, object]:
    (node,) = gm.graph.find_nodes(
        op="call_function", target=torch._C._nn.scaled_dot_product_attention
    )
    return attention_arguments(node)


def everything(x: torch.Tensor) -> torch.Tensor:
    mask = (torch.arange(x.shape[-2]) + 0)[None, None, :, None] >= 0
    mask = mask.expand(x.shape[0], -1, x.shape[-2], x.shape[-2])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def causal(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[-2])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=places[None, :] <= places[:, None])


def window(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[-2])
    near = (places[None, :] - places[:, None]).abs() < 3
    return F.scaled_dot_product_attention(x, x, x, attn_mask=near)


def written(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
    mask[:, 3:5] = False
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
    mask.view(-1).logical_and_(x.flatten()[: mask.numel()] > 0)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask | torch.eye(TOKENS).bool())


def given(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., 0, :1, None] < 100)


@pytest.mark.parametrize(("function", "is_causal"), [(everything, False), (causal, True)])
def test_a_mask_that_hides_nothing_or_the_future_is_not_passed_on(function, is_causal):
    x = torch.randn(3, HEADS, TOKENS, 16)
    (gm,) = captured(function, x)

    changed = without_constant_masks(gm)

    found = attention_of(changed)
    assert found["attn_mask"] is None
    assert found["is_causal"] is is_causal
    assert len(changed.graph.nodes) < len(gm.graph.nodes)
    assert attention_of(gm)["attn_mask"] is not None
    torch.testing.assert_close(changed(x)[0], function(x))


@pytest.mark.parametrize("function", [window, written, written_through_a_view, given])
def test_other_masks_stay(function):
    x = torch.randn(3, HEADS, TOKENS, 16)
    (gm,) = captured(function, x)

    changed = without_constant_masks(gm)

    assert attention_of(changed)["attn_mask"] is not None
    torch.testing.assert_close(changed(x)[0], function(x))


def test_a_mask_that_hides_nothing_goes_where_keys_are_fewer_than_queries():
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        places = torch.arange(TOKENS)
        mask = (places[None, :] <= places[:, None])[:, :1].expand(TOKENS, 1)
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask.logical_and(mask))

    q, k = torch.randn(2, HEADS, TOKENS, 16), torch.randn(2, HEADS, 1, 16)
    (gm,) = captured(attend, q, k)

    changed = without_constant_masks(gm)

    assert attention_of(changed)["attn_mask"] is None
    assert attention_of(changed)["is_causal"] is False
    torch.testing.assert_close(changed(q, k)[0], attend(q, k))


@pytest.mark.parametrize("function", [everything, causal, window, written])
def test_gradients_are_those_of_the_original(function):
    x = torch.randn(3, HEADS, TOKENS, 16, requires_grad=True)
    call = fuseopt.optimize(function)

    (found,) = torch.autograd.grad(call(x).square().sum(), x)
    (wanted,) = torch.autograd.grad(function(x).square().sum(), x)

    torch.testing.assert_close(found, wanted)
