"""Turning a kernel's text into the Python function that Triton compiles or interprets.

Triton and `inspect` read a function's source from its file, so the text is placed in the cache as
a Python file first. What is executed is the text in memory, never what the file holds.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fuseopt.codegen.source import KernelSource
from fuseopt.errors import KernelError
from fuseopt.runtime.cache import Store


def source_path(source: KernelSource, store: Store) -> Path:
    """Return the path of the Python file with the kernel's text; it is written when missing."""
    return store.place_text("source", _module_name(source) + ".py", source.text)


def load_function(source: KernelSource, store: Store) -> Any:
    """Return the `triton.jit` function that the text defines; see `load_placed`."""
    return load_placed(source, source_path(source, store))


def load_placed(source: KernelSource, path: Path) -> Any:
    """Return the `triton.jit` function of the text that was placed at the path.

    Each text is executed once a process. Raises `KernelError` when it does not run or does not
    define the function with the parameters that the source declares.
    """
    name = _module_name(source)
    module = sys.modules.get(name)
    # The same text may have been loaded from another cache directory, whose file may be gone.
    if module is None or module.__file__ != str(path):
        module = _execute(name, source, path)
        sys.modules[name] = module
    function = getattr(module, source.name, None)
    if function is None or not hasattr(function, "fn"):
        raise KernelError(
            f"kernel {source.name}: its text defines no @triton.jit function of that name; "
            f"see {path}"
        )
    declared = [p.name for p in source.params] + [name for name, _ in source.constexprs]
    if list(function.arg_names) != declared:
        raise KernelError(
            f"kernel {source.name} takes ({', '.join(function.arg_names)}) but its source declares "
            f"({', '.join(declared)}); see {path}"
        )
    return function


def first_line(error: BaseException) -> str:
    """Return the most telling line of an error of Triton's: its innermost message."""
    while getattr(error, "error_message", "") in ("", None) and error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error)
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _module_name(source: KernelSource) -> str:
    digest = hashlib.sha256(source.text.encode()).hexdigest()[:24]
    return f"{source.name}_{digest}"


def _execute(name: str, source: KernelSource, path: Path) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(source.text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise KernelError(
            f"kernel {source.name}: its text does not run "
            f"({type(error).__name__}: {first_line(error)}); see {path}"
        ) from error
    return module
