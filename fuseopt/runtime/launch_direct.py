"""The shortest way to Triton's C launcher: one call with all that is constant bound beforehand.

For a kernel (x, y, n), with Triton 3.7 to 3.9, the function made here is

    def launch(grid_x, grid_y, grid_z, stream, a0, a1, a2):
        call(grid_x, grid_y, grid_z, stream, function, ..., (a0.data_ptr(), a1.data_ptr(), a2))

It does what Triton's `CudaLauncher.__call__` does and nothing else: 0.9 us where that takes 1.7,
the driver's own time not counted. Since it depends on how that method is written, it is used only
where the class is, letter for letter, one that this file was written from.

Tensors are passed as addresses: that saves a driver query for each, which would only tell that a
tensor is on the CPU. `Launcher.__call__` checks that.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fuseopt.codegen.source import Param
from fuseopt.runtime.binary import Binary

Launch = Callable[..., None]


def is_known(launcher_class: Any) -> bool:
    """Whether Triton's launcher is one that this file was written from."""
    return fingerprint(launcher_class) in _BINDERS


def bind_direct(binary: Binary, launcher_class: Callable[..., Any], function: int) -> Launch | None:
    """Return the kernel's launch function, or None where Triton's own code must launch it.

    function: the handle that the driver gave for the loaded kernel.
    """
    # Scratch memory is allocated for each launch, by Triton's own code.
    if binary.scratch_bytes or not all(_is_plain(p) for p in binary.source.params):
        return None
    bind = _BINDERS.get(fingerprint(launcher_class))
    return None if bind is None else bind(binary, launcher_class, function)


@functools.cache  # reading a class's source takes Python some ms
def fingerprint(launcher_class: Any) -> str:
    """Hash the Python source that decides how a launch is called; "" when it is not to be had."""
    try:
        text = inspect.getsource(launcher_class)
        make_launcher = getattr(inspect.getmodule(launcher_class), "make_launcher", None)
        if make_launcher is not None:
            text += inspect.getsource(make_launcher)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _bind_3_7(binary: Binary, launcher_class: Callable[..., Any], function: int) -> Launch | None:
    """One C function serves every kernel; it reads arguments by the signature it is given.

    Its C text is the same in Triton 3.7, 3.8 and 3.9. The classes differ in what they add to the
    arguments of kernels built for Triton's memory sanitizer, which are left to them.
    """
    types = [p.signature for p in binary.source.params]
    launcher = _make_launcher(binary, launcher_class, types)
    if getattr(launcher, "gsan_enabled", False):
        return None
    call = (
        "call(grid_x, grid_y, grid_z, stream, function, cooperative, dependent, packed, "
        "None, None, None, None, None, annotations, signature, ({args}))"
    )
    bound = _bound(binary, launcher, function)
    bound |= {"annotations": launcher.arg_annotations, "signature": launcher.kernel_signature}
    return _define(binary.source.params, call, bound)


def _bind_3_6(binary: Binary, launcher_class: Callable[..., Any], function: int) -> Launch:
    """Triton 3.6 compiles a C function for each signature, 0.15 s a time; one is made to serve all.

    The driver reads as many parameters as the kernel has, each from its own 8 bytes: addresses and
    whole numbers are the same to it (low bytes first on every host that CUDA runs on), and what
    follows the last is not read. So a launcher of 8, 16, 32... 64-bit numbers starts any kernel
    with no more of them; unused ones are zero, as are the two scratch pointers that end a kernel's
    own parameters. Kernels with float parameters get a launcher of their own.
    """
    params = binary.source.params
    types = [p.dtype if p.kind == "float" else "i64" for p in params]
    if "float" not in {p.kind for p in params}:
        width = max(8, 1 << (len(types) - 1).bit_length()) if types else 8
        types = ["i64"] * width
    launcher = _make_launcher(binary, launcher_class, types)
    call = (
        "call(grid_x, grid_y, grid_z, stream, function, cooperative, dependent, "
        "None, None, packed, None, None, None, {args}" + "0, " * (len(types) - len(params)) + ")"
    )
    return _define(params, call, _bound(binary, launcher, function))


# By the hash of the source of CudaLauncher (and of make_launcher, where it exists).
_BINDERS: dict[str, Callable[[Binary, Callable[..., Any], int], Launch | None]] = {
    "1d45ab13ddbf7ec2ef266343ff9196935f93e52f492e2fe89508051e4e14964c": _bind_3_6,  # 3.6.0
    "79152836761e10352159067133d3f27e1f4f011020635ac6193649247638ac52": _bind_3_7,  # 3.7.0, 3.7.1
    "aadaa528837de897661c13549f66d16635932de1600aef6bbc96c4316c7b4c70": _bind_3_7,  # 3.8.0
    "8fb2df4de18e46e42868a75a5bdaf56cc3c7f768a485511752d2ea4fc4006635": _bind_3_7,  # 3.9.0
}


def _is_plain(param: Param) -> bool:
    return param.kind == "pointer" or param.dtype in (
        "i1",
        "i8",
        "i16",
        "i32",
        "i64",
        "fp32",
        "fp64",
    )


def _make_launcher(binary: Binary, launcher_class: Callable[..., Any], types: Sequence[str]) -> Any:
    source = SimpleNamespace(signature=dict(enumerate(types)), constants={})
    return launcher_class(source, binary.triton_metadata())


def _bound(binary: Binary, launcher: Any, function: int) -> dict[str, Any]:
    from triton.compiler.compiler import make_backend

    metadata = binary.triton_metadata()
    return {
        "call": launcher.launch,
        "function": function,
        "packed": make_backend(metadata.target).pack_metadata(metadata),
        "cooperative": launcher.launch_cooperative_grid,
        "dependent": launcher.launch_pdl,
        "address": _address,
    }


def _define(params: Sequence[Param], call: str, bound: dict[str, Any]) -> Launch:
    names = [f"a{i}" for i in range(len(params))]
    pointers = [p.kind == "pointer" for p in params]
    tensors = [f"{n}.data_ptr()" if p else n for n, p in zip(names, pointers, strict=True)]
    either = [f"address({n})" if p else n for n, p in zip(names, pointers, strict=True)]
    text = f"""
def bind({", ".join(bound)}):
    def launch({", ".join(["grid_x", "grid_y", "grid_z", "stream", *names])}):
        try:
            {call.format(args="".join(f"{t}, " for t in tensors))}
        except AttributeError:
            {call.format(args="".join(f"{t}, " for t in either))}
    return launch
"""
    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope["bind"](**bound)


def _address(pointer: Any) -> int:
    return pointer if isinstance(pointer, int) else pointer.data_ptr()
