"""Calls with tensors that only PyTorch's own operations know how to work on.

Under `torch.func` transforms and in batched gradients tensors hold a batch of others, under
forward-mode differentiation a tangent, under `FakeTensorMode` no memory at all. Operations see to
all that when they are dispatched; a kernel launched on a tensor's memory would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

_get_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_BATCHED = torch._C._dispatch_key_parse("VmapMode")  # set in `grad(..., is_grads_batched=True)`


def tensors_stand_in() -> bool:
    """Whether tensors may be such now. Takes 0.2 us."""
    return (
        forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
        or _get_mode(_FAKE) is not None
        or _is_included(_BATCHED)
    )


@contextmanager
def apart_from_batches() -> Iterator[None]:
    """Let the body work on tensors of its own, also where gradients are batched around it."""
    batched = torch._C._dispatch_keyset_full() & torch._C.DispatchKeySet(_BATCHED)
    with torch._C._ExcludeDispatchKeyGuard(batched):
        yield
