"""What a command is pointed at: `file.py:factory`, `package.module:factory`, a `.pt2` or `hf:NAME`.

A factory takes no arguments, or those given by `--set`, and returns `(model, args, kwargs)`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from fuseopt.cli.options import FORMS, Options
from fuseopt.errors import UsageError
from fuseopt.graph.export import load_program
from fuseopt.pipeline import first_line

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A model with example inputs.

    about: what was chosen for it, for the report's heading. has_data: False where tensors have
    shapes and no values, which is enough to plan and check kernels. remake: makes it with values.
    """

    name: str
    model: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    has_data: bool = True
    remake: Callable[[], Target] | None = None

    def with_data(self) -> Target:
        """Return the target with values in its tensors."""
        return self if self.has_data or self.remake is None else self.remake()


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says about a target; None where it says nothing."""

    layers: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    batch: int | None = None
    seq: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    task: str | None = None
    with_data: bool = False


def load_target(text: str, choices: Choices) -> Target:
    """Make the target that a command names; `UsageError` says what is wrong with it."""
    if text.startswith("hf:"):
        # transformers takes seconds to import.
        from fuseopt.cli.architectures import load_architecture

        return load_architecture(text, choices)
    for name in ("layers", "batch", "seq", "task"):
        if getattr(choices, name) is not None:
            raise UsageError(f"--{name} is for hf:NAME targets; {text} decides that itself")
    if text.endswith(".pt2"):
        return _load_saved(text, choices)
    place, colon, factory = text.rpartition(":")
    if not colon or not factory or not place:
        raise UsageError(f"target {text!r} is not one of {FORMS}")
    module = _module_of_file(place) if place.endswith(".py") else _module_by_name(place)
    return _placed(_from_factory(text, module, factory, choices.settings), choices)


# --- choices -------------------------------------------------------------------------------------


def parse_choices(options: Options, *, with_data: bool = False) -> Choices:
    """Read the options of a target; `UsageError` for a value that is not one.

    with_data: whether tensors must have values; they do on a GPU, where the model is run.
    """
    for name in ("layers", "batch", "seq"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value} is not a positive number")
    return Choices(
        layers=options.layers,
        settings=dict(map(parse_setting, options.settings)),
        dtype=parse_dtype(options.dtype) if options.dtype else None,
        batch=options.batch,
        seq=options.seq,
        device=parse_device(options.device),
        task=options.task,
        with_data=with_data,
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """Read `key=value`; the value is a Python literal, or text where it is none."""
    key, equals, value = text.partition("=")
    if not equals or not all(part.isidentifier() for part in key.split(".")):
        raise UsageError(f"--set {text!r} is not of the form key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def parse_dtype(text: str) -> torch.dtype:
    """Read the name of a floating-point dtype."""
    if text not in DTYPES:
        raise UsageError(f"--dtype {text!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[text]


def parse_device(text: str | None) -> torch.device:
    """Read a device that exists here; the GPU where there is one and none is named."""
    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text!r} is not a device: cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {text}: fuseopt knows cpu and cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {text}: this machine has {torch.cuda.device_count()} GPUs")
    return device


# --- files and modules ---------------------------------------------------------------------------


def _load_saved(path: str, choices: Choices) -> Target:
    if choices.dtype is not None or choices.settings:
        raise UsageError(f"--dtype and --set do not apply to {path}, which is already captured")
    program = load_program(path)
    if any(t.device.type != choices.device.type for t in program.state_dict.values()):
        program = move_to_device_pass(program, choices.device)
    args, kwargs = program.example_inputs or ((), {})
    has_data = program.example_inputs is not None
    return Target(Path(path).name, program, args, kwargs, "saved program", has_data=has_data)


def _module_of_file(text: str) -> ModuleType:
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {text}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look modules up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{text} raised {describe_error(error)}") from error
    return module


def _module_by_name(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {name}; a file is written {FORMS}") from None
        raise UsageError(f"module {name} raised {describe_error(error)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name} raised {describe_error(error)}") from error


def _from_factory(text: str, module: ModuleType, name: str, settings: Mapping[str, Any]) -> Target:
    factory = getattr(module, name, None)
    if factory is None:
        raise UsageError(f"{text}: there is no {name} in {module.__name__}")
    if isinstance(factory, nn.Module) or not callable(factory):
        kind = type(factory).__name__
        raise UsageError(f"{text} is a {kind}, not a function that returns (model, args, kwargs)")
    try:
        made = factory(**settings)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{text} raised {describe_error(error)}") from error
    return _checked(text, made)


def _checked(text: str, made: Any) -> Target:
    wanted = f"{text} must return (model, args, kwargs)"
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        kind = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise UsageError(f"{wanted}, not {kind}")
    model, args, kwargs = (*made, {})[:3]
    if not (isinstance(model, (nn.Module, ExportedProgram)) or callable(model)):
        raise UsageError(f"{wanted}; its model is a {type(model).__name__}")
    if isinstance(model, type):
        raise UsageError(f"{wanted}; its model is the class {model.__name__}, not an instance")
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise UsageError(f"{wanted}; its model is TorchScript, which has no Python code to trace")
    if not isinstance(args, (tuple, list)):
        raise UsageError(f"{wanted}; its args are a {type(args).__name__}, not a tuple")
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"{wanted}; its kwargs are a {type(kwargs).__name__}, not a dict")
    for name in kwargs:
        if not isinstance(name, str):
            raise UsageError(f"{wanted}; its kwargs have the key {name!r}, which is not a name")
    return Target(text, model, tuple(args), dict(kwargs), _mode(model))


def _mode(model: Any) -> str:
    is_training = isinstance(model, nn.Module) and model.training
    return "in training mode (dropout is random; call .eval() for inference)" if is_training else ""


def _placed(target: Target, choices: Choices) -> Target:
    """Move a target's model and inputs to the device and dtype that were asked for."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = choices.dtype if value.is_floating_point() else None
        return value.to(choices.device, dtype)

    model = target.model
    try:
        if isinstance(model, nn.Module):
            model = model.to(choices.device, choices.dtype)
        args, kwargs = pytree.tree_map(move, (target.args, target.kwargs))
    except Exception as error:  # tensors on the meta device, or of a kind that does not move
        where = f"{choices.device}" + (f" as {choices.dtype}" if choices.dtype else "")
        raise UsageError(
            f"{target.name}: moving the model and its inputs to {where} raised {first_line(error)}"
        ) from error
    return replace(target, model=model, args=args, kwargs=kwargs)


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the place in the user's code that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}" + (f" (line {error.lineno})" if error.lineno else "")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    place = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
    return first_line(error) + place
