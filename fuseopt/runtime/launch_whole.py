"""Launching through all of Triton: its compiled kernel object loads itself and starts itself.

The way for a launcher that `launch_direct` does not know, and for kernels that need scratch memory:
nothing of how Triton calls its launcher is assumed, so it is as right as `kernel[grid](...)` is,
without that one's guess of types from values. A launch takes about 3 us more than a direct one; the
first of a process asks Triton's own compile cache, which costs 0.3 to 0.5 s once.
"""

from __future__ import annotations

from typing import Any

from fuseopt.errors import KernelError
from fuseopt.runtime.binary import Binary
from fuseopt.runtime.compile import compile_by_triton
from fuseopt.runtime.launch_direct import Launch
from fuseopt.runtime.module import first_line


def bind_whole(binary: Binary, device: Any) -> Launch:
    """Return the kernel's launch function on the current device, which `device` names.

    Raises `KernelError` when the kernel cannot be loaded.
    """
    source = binary.source
    kernel = compile_by_triton(source, binary.target, binary.path)
    try:
        kernel[1, 1, 1]  # loads the kernel and starts nothing
    except Exception as error:  # Triton's, the driver's or the C compiler's
        raise KernelError(
            f"kernel {source.name} cannot be loaded on {device} ({first_line(error)}); "
            f"see {binary.path}"
        ) from error
    count = len(source.params)
    constants = tuple(value for _, value in source.constexprs)

    def launch(grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        if len(args) != count:
            raise TypeError(f"the kernel takes {count} arguments, not {len(args)}")
        if grid_x and grid_y and grid_z:
            kernel[grid_x, grid_y, grid_z](*args, *constants, stream=stream)

    return launch
