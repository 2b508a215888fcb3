"""Putting a compiled kernel on a device and starting it at the least cost to the host."""

from __future__ import annotations

import subprocess
from typing import Any

import torch

from fuseopt.errors import KernelError, UnsupportedError
from fuseopt.runtime.arguments import check_arguments
from fuseopt.runtime.binary import Binary
from fuseopt.runtime.launch_direct import bind_direct, is_known
from fuseopt.runtime.launch_whole import bind_whole
from fuseopt.runtime.module import first_line


class Launcher:
    """One kernel loaded on one CUDA device.

    launch: `launch(grid_x, grid_y, grid_z, stream, *args)` starts the kernel and returns at once.
        It is the steady call for emitted code: it checks nothing but the number of arguments,
        allocates and synchronises nothing, and may be captured in a CUDA graph. `stream` is a raw
        handle; args are tensors (or addresses) and numbers in the order of the source's
        parameters; the device must be the current one. An empty grid starts nothing. Triton's
        launch hooks are not called by a direct launch.
    direct: whether `launch` is a single call into Triton's C launcher. Where this version's is not
        one we have read, `launch` goes through Triton's own kernel object, 3 us slower.

    Calling the launcher itself checks the arguments first (device, dtype, range, alignment), about
    1 us each: for verification, tuning and tests.

    Raises `KernelError` when the kernel does not fit the device or was made for another, and
    `UnsupportedError` where there is no device that Triton serves.
    """

    __slots__ = ("binary", "device", "direct", "launch")

    def __init__(self, binary: Binary, device: torch.device | int) -> None:
        active = _active_driver()
        index = device if isinstance(device, int) else device.index
        previous = active.get_current_device()
        index = previous if index is None else index
        self.binary = binary
        self.device = torch.device("cuda", index)
        # A module is loaded into the context of the current device.
        active.set_current_device(index)
        try:
            self._check_target(active, index)
            bound = None
            launcher: Any = getattr(active, "launcher_cls", None)
            if is_known(launcher):
                bound = bind_direct(binary, launcher, self._load(active, index))
            self.direct = bound is not None
            self.launch = bound or bind_whole(binary, self.device)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise KernelError(
                f"kernel {binary.source.name} cannot be loaded on {self.device} "
                f"({first_line(error)}); see {binary.path}"
            ) from error
        finally:
            active.set_current_device(previous)

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        """Check the arguments, then launch."""
        check_arguments(self.binary.source, args, self.device)
        self.launch(grid_x, grid_y, grid_z, stream, *args)

    def _check_target(self, active: Any, index: int) -> None:
        binary = self.binary
        major, minor = active.get_device_capability(index)
        if binary.target.arch != major * 10 + minor:
            raise KernelError(
                f"kernel {binary.source.name} was compiled for {binary.target}, but {self.device} "
                f"is sm_{major * 10 + minor}; compile it for Target.of(device)"
            )

    def _load(self, active: Any, index: int) -> int:
        binary, name = self.binary, self.binary.source.name
        limit = active.utils.get_device_properties(index)["max_shared_mem"]
        if binary.shared_bytes > limit:
            raise KernelError(
                f"kernel {name} needs {binary.shared_bytes} bytes of shared memory, but "
                f"{self.device} has {limit}; use smaller blocks"
            )
        _, function, _, _, most_threads = active.utils.load_binary(
            binary.symbol, binary.cubin, binary.shared_bytes, index
        )
        threads = binary.metadata["num_warps"] * binary.target.warp_size
        if threads > most_threads:
            raise KernelError(
                f"kernel {name} runs {threads} threads a program, but its registers allow "
                f"{most_threads} on {self.device}; use fewer warps"
            )
        return int(function)


def _active_driver() -> Any:
    from triton.runtime import driver

    try:
        return driver.active
    except (RuntimeError, OSError, AssertionError, subprocess.CalledProcessError) as error:
        raise UnsupportedError(
            f"no device that Triton can launch on ({first_line(error)}); kernels run on CUDA "
            "devices, or on CPU tensors with FUSEOPT_INTERPRET=1"
        ) from error
