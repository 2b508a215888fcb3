"""Running a generated kernel on CPU tensors through Triton's interpreter, inside this process.

Triton's own switch, TRITON_INTERPRET, is read when kernels and Triton's standard library are
imported, and rules out compiling afterwards. Here the interpreter is put on for the length of one
call instead, and everything it replaces in Triton is put back at the end, also after an error: the
same kernel still compiles. Works with the switch set, too.

What differs from Triton's interpreter, where that departs from the device:

- casts to bfloat16 and to 8-bit floats round to nearest even, and bfloat16 arithmetic is right;
- `tl.maximum`, `tl.max` and their like drop NaN as the device does, unless told to propagate it;
- `tl.reduce` with any combine function takes log2(n) calls of it on arrays, not n on numbers;
- a loop over `range(...)` with runtime bounds counts in a tensor of the bounds' type;
- number arguments have the declared type, whatever their value;
- `tl.device_assert` counts when the source says `debug`;
- a load or store outside the storage of the tensor that its pointer came from is an error.

Not covered: libdevice functions, inline assembly, `tl.dot` on bfloat16. A float to integer cast of
a value out of range gives what numpy gives. The cost is per program and operation, about 50 us
each, whatever the block size: test with few, wide programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fuseopt.codegen.source import KernelSource
from fuseopt.errors import KernelError
from fuseopt.runtime.arguments import check_arguments
from fuseopt.runtime.cache import Store
from fuseopt.runtime.language import interpreting
from fuseopt.runtime.module import first_line, load_function, source_path


def interpret(source: KernelSource, grid: Sequence[int], args: Sequence[Any], store: Store) -> None:
    """Run the kernel for every program of the grid, one after another, writing tensors in place.

    grid: one to three numbers of programs.
    args: CPU tensors and numbers for the source's parameters, in order.
    Raises `KernelError` when an argument does not fit, an access is out of bounds, a device assert
    fails or the kernel cannot be interpreted. One interpretation runs at a time in a process.
    """
    check_arguments(source, args, torch.device("cpu"))
    function = load_function(source, store).fn
    sizes = (*grid, 1, 1)[:3]
    with interpreting(), _interpreter(source, args) as (interpreter, rewritten):
        values = [interpreter.argument(p, a) for p, a in zip(source.params, args, strict=True)]
        constants = dict(source.constexprs)
        interpreter.set_grid_dim(*sizes)
        run = rewritten(function)
        program = (0, 0, 0)
        try:
            for program in np.ndindex(*sizes):
                interpreter.set_grid_idx(*program)
                run(*values, **constants)
        except Exception as error:  # whatever the kernel's text does wrong
            raise KernelError(
                f"kernel {source.name} fails in program {program} under the interpreter "
                f"({type(error).__name__}: {first_line(error)}); see {source_path(source, store)}"
            ) from error


@contextmanager
def _interpreter(source: KernelSource, args: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Put our interpreter in Triton's place for the body, and everything back at the end."""
    import triton.language as tl
    from triton.runtime import interpreter as stock
    from triton.runtime.jit import JITFunction

    from fuseopt.runtime.interpreter_builder import Builder, Memory
    from fuseopt.runtime.interpreter_reduce import reduce
    from fuseopt.runtime.interpreter_rewrite import rewritten

    def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
        return rewritten(function.fn)(*arguments, **keywords)

    tensors = {
        p.name: a for p, a in zip(source.params, args, strict=True) if isinstance(a, torch.Tensor)
    }
    builder = Builder(Memory(tensors), debug=source.debug)
    touched = (
        tl,
        tl.core,
        tl.math,
        tl.tensor,
        tl.dtype,
        tl.core.tensor_descriptor_base,
        stock,
        JITFunction,
        stock.InterpretedFunction,
    )
    with _restored(touched), np.errstate(all="ignore"):
        stock.interpreter_builder = builder
        stock.interpreter_semantic = stock.TritonSemantic(builder)
        stock._patch_lang(_Names(tl, tl.core))
        for module in (tl, tl.core):
            module.reduce = reduce
        tl.tensor.__index__ = lambda tensor: int(tensor.handle.data.item())
        # Methods like `x.sum()` are jitted functions, which do not bind to a tensor by themselves.
        for name, member in list(vars(tl.tensor).items()):
            if isinstance(member, JITFunction):
                setattr(tl.tensor, name, _method(call, member))
        JITFunction.__call__ = call
        stock.InterpretedFunction.__call__ = call
        yield builder, rewritten


def _method(call: Callable[..., Any], function: Any) -> Callable[..., Any]:
    return lambda tensor, *args, **keywords: call(function, tensor, *args, **keywords)


class _Names:
    """Stands for a function whose globals are the modules that the interpreter is to replace."""

    def __init__(self, *modules: Any) -> None:
        self.__globals__ = {m.__name__: m for m in modules}


@contextmanager
def _restored(owners: Sequence[Any]) -> Iterator[None]:
    """Give modules and classes their present attributes back at the end."""
    before = [(owner, dict(vars(owner))) for owner in owners]
    try:
        yield
    finally:
        for owner, names in before:
            for name in [n for n in vars(owner) if n not in names]:
                delattr(owner, name)
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
