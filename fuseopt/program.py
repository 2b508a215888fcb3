"""Call the compiled graph of an exported program as the program's module is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fuseopt.events import FellBack, Log, Reason
from fuseopt.graph.export import ProgramGraph
from fuseopt.graph.overlap import SHARED


class ProgramCall:
    """The forward of an optimised program.

    Runs the compiled graph where it stands for the program: no gradients needed, no autocast,
    inputs of the kind that was exported. Any other call goes to the program's own module, which
    also raises for inputs that the program does not take.
    """

    def __init__(
        self,
        exported: ProgramGraph,
        program: ExportedProgram,
        module: nn.Module,
        run: Callable[[list[Any]], Sequence[Any]],
        log: Log,
    ) -> None:
        spec = program.call_spec
        assert spec.in_spec is not None
        assert spec.out_spec is not None
        self._exported = exported
        self._in_spec = spec.in_spec
        self._out_spec = spec.out_spec
        self._module = module
        self._own = [_holder(module, path) for path in exported.owned]
        self._run = run
        self._log = log

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on inputs passed as they were when it was exported."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        owned = [holder[name] for holder, name in self._own]
        why = self._why_not(flat, spec, owned)
        if why:
            event = FellBack(self._exported.graph.number, Reason.CAPTURE, why)
            if event not in self._log.events:
                self._log.record(event)
            return type(self._module).forward(self._module, *args, **kwargs)
        outputs = self._run(self._inputs(owned, flat))
        return pytree.tree_unflatten(outputs, self._out_spec)

    def _why_not(self, flat: list[Any], spec: pytree.TreeSpec, owned: list[Any]) -> str:
        if torch.is_grad_enabled() and any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in (*owned, *flat)
        ):
            return "gradients are needed, and an exported program is compiled for inference"
        if torch._C._is_any_autocast_enabled():
            return "autocast is on, and the program was compiled without it"
        if spec != self._in_spec:
            return "the inputs are passed in another form than the exported one"
        if not self._exported.expected.fits([flat[i] for i in self._exported.taken]):
            return "the inputs have other dtypes, layouts or sizes than the exported ones"
        overlaps = self._exported.overlaps
        if overlaps and not overlaps(self._inputs(owned, flat)):
            return SHARED
        return ""

    def _inputs(self, owned: list[Any], flat: list[Any]) -> list[Any]:
        return owned + [flat[i] for i in self._exported.taken]


def _holder(module: nn.Module, path: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a parameter, buffer or constant now, and its name there.

    Looked up at each call, since loading weights or moving the module can replace a tensor.
    """
    parent, _, name = path.rpartition(".")
    owner = module.get_submodule(parent)
    for holder in (owner._parameters, owner._buffers):
        if name in holder:
            return holder, name
    return owner.__dict__, name
