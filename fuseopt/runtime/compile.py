"""Compiling a kernel's text to machine code, through the cache, one kernel or many at a time.

A finished binary is one entry of our own store, so a warm process neither executes the kernel's
text nor asks Triton: a hit costs 0.15 ms. (`triton.compile` on a hit costs 1.1 ms, after 0.3 to
0.5 s once a process to hash the compiler itself.) Triton keeps its own cache besides, where the
user's settings put it: pointing it elsewhere would change a setting of the whole process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuseopt.codegen.source import KernelSource
from fuseopt.errors import KernelError
from fuseopt.runtime.binary import Binary, Target
from fuseopt.runtime.cache import Store
from fuseopt.runtime.language import compiling
from fuseopt.runtime.module import first_line, load_function, load_placed, source_path

__all__ = ["Binary", "Target", "compile_kernel", "compile_many", "load_function"]

# Variables that change what Triton makes and that its own list of them leaves out.
_TOOLS = (
    "DISABLE_PTXAS_OPT",
    "PTXAS_OPTIONS",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_FPSAN_HOMOMORPHIC_CASTS",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
)


def compile_kernel(source: KernelSource, target: Target, store: Store) -> Binary:
    """Return the kernel compiled for the target, from the store when it is there.

    No device is needed. Raises `KernelError` when Triton or ptxas refuses the kernel.
    """
    return _find(source, target, store) or _make(source, target, store)


def compile_many(
    sources: Sequence[KernelSource], target: Target, store: Store, jobs: int = 1
) -> list[Binary | KernelError]:
    """Compile several kernels, up to `jobs` at a time; one result per source, in order.

    Sources with the same name and digest are compiled once and share their result. A kernel that
    does not compile gives its `KernelError` instead of raising it.
    """
    results: dict[tuple[str, str], Binary | KernelError] = {}
    missing: dict[tuple[str, str], KernelSource] = {}
    for source in sources:
        identity = (source.name, source.digest)
        if identity in results or identity in missing:
            continue
        found = _find(source, target, store)
        if found is None:
            missing[identity] = source
        else:
            results[identity] = found

    def attempt(source: KernelSource) -> Binary | KernelError:
        try:
            return _make(source, target, store)
        except KernelError as error:
            return error

    # Threads, by measurement (Triton 3.6.0 and 3.7.1): while kernels took up to 1 s to compile, a
    # counting thread was held up for 53 ms at the worst; MLIR, LLVM and ptxas run without the
    # interpreter lock and only the 20 ms of walking the Python AST hold it. Twelve kernels on two
    # busy cores took 1.37 s in 4 threads, 1.38 s in 2 forked processes (which are unsafe once CUDA
    # is up) and 2.45 s in 2 spawned ones.
    workers = max(1, min(jobs, len(missing)))
    with ThreadPoolExecutor(workers, thread_name_prefix="fuseopt-compile") as pool:
        made = list(pool.map(attempt, missing.values()))
    results.update(zip(missing, made, strict=True))
    return [results[s.name, s.digest] for s in sources]


def compile_by_triton(source: KernelSource, target: Target, path: Path) -> Any:
    """Return Triton's `CompiledKernel`, on no device yet, of the text that was placed at the path.

    Triton's own cache may answer, ours is not asked. Raises `KernelError`.
    """
    import triton
    from triton.compiler import ASTSource

    with compiling():
        function = load_placed(source, path)
        if not isinstance(function, triton.JITFunction):
            raise KernelError(
                f"kernel {source.name} cannot be compiled while TRITON_INTERPRET is set; unset it"
            )
        signature = {p.name: p.signature for p in source.params}
        signature |= {name: "constexpr" for name, _ in source.constexprs}
        aligned = [i for i, p in enumerate(source.params) if p.aligned]
        attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
        try:
            return triton.compile(
                ASTSource(function, signature, dict(source.constexprs), attributes),
                target=target.as_triton(),
                options=options_of(source),
            )
        except Exception as error:  # Triton raises a dozen kinds, RuntimeError among them
            raise KernelError(
                f"kernel {source.name} does not compile for {target} "
                f"({type(error).__name__}: {first_line(error)}); see {path}"
            ) from error


def options_of(source: KernelSource) -> dict[str, Any]:
    """Return the options that Triton compiles the kernel with."""
    return {
        "num_warps": source.num_warps,
        "num_stages": source.num_stages,
        "debug": source.debug,
        "maxnreg": source.registers or None,
        # Overflow checks come with `debug` otherwise, and wrapping is what PyTorch does.
        "sanitize_overflow": False,
        "enable_fp_fusion": _contracts(),
    }


def _contracts() -> bool:
    """Whether `a * b + c` rounds once: yes, unless the user's setting says otherwise.

    Said to Triton because its default changes: yes up to 3.8, yes with a warning in 3.9, no after.
    """
    from triton import knobs

    unset = os.environ.get("TRITON_DEFAULT_FP_FUSION") is None
    return unset or bool(knobs.language.default_fp_fusion)


def _find(source: KernelSource, target: Target, store: Store) -> Binary | None:
    from triton import knobs

    # Someone who dumps or overrides Triton's stages wants them to run.
    if knobs.compilation.always_compile or knobs.compilation.override or knobs.compilation.dump_ir:
        return None
    data = store.read("binary", _key(source, target))
    if data is None:
        return None
    return Binary.from_bytes(data, source, target, source_path(source, store))


def _make(source: KernelSource, target: Target, store: Store) -> Binary:
    path = source_path(source, store)
    made = compile_by_triton(source, target, path)
    binary = Binary(
        source, target, path, made.asm["ptx"], made.asm["cubin"], _plain(made.metadata._asdict())
    )
    store.write("binary", _key(source, target), binary.to_bytes())
    return binary


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(metadata, default=vars))


def _key(source: KernelSource, target: Target) -> str:
    from triton._C.libtriton import get_cache_invalidating_env_vars

    tools = [(name, os.environ.get(name)) for name in _TOOLS]
    environment = sorted(get_cache_invalidating_env_vars().items())
    parts = (source.name, source.digest, target, options_of(source), tools, environment)
    return f"{source.name}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
