"""`optimize`: the one entry for modules, functions and exported programs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fuseopt.config import Config, read_environment
from fuseopt.errors import UsageError


def optimize(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    rules: Sequence[Any] | None = None,
    mode: str = "default",
    numerics: str = "fp32",
    verify: bool = True,
    strict: bool = False,
    dynamic: bool | None = None,
) -> Any:
    """Return `model` with its memory-bound chains fused; `model` itself is not changed.

    model: an `nn.Module` or a function of tensors; a `torch.export.ExportedProgram`, or the path
        of a saved one (`.pt2`).
    args, kwargs: example inputs. With them the model is compiled now, for their kind and for the
        gradient mode and `training` flags in force, and nothing is run: no output is computed and
        no buffer, random state or Python object changes. Without them (and for a model that does
        not become one graph) compilation happens at the first call. A new kind of input is
        compiled when it first comes.
    rules: rules used beside the registered ones.
    mode: "default" or "reduce-overhead".
    numerics: "fp32" or "eager".
    verify: check each distinct replacement against the operations it replaces.
    strict: raise where a graph cannot be captured, or a replacement fails its check, instead of
        running the original operations.
    dynamic: None makes a size dynamic once it varies, True from the start, False never.

    Returns an object called as `model` is. For a module it is an instance of the module's class
    that shares all state with it: the same parameters, buffers, submodules, hooks and attributes.
    It has `original`, `log`, `report` and `source()`, except where the model has an attribute of
    that name. Copies and loaded pickles compile again at their first call.

    Raises `UsageError` for an argument or FUSEOPT_ variable that is not accepted, `RuleError` for a
    rule that is not, and `CaptureError` where tracing is impossible here, or fails under `strict`.
    """
    config = Config.from_options(
        {
            "rules": rules,
            "mode": mode,
            "numerics": numerics,
            "verify": verify,
            "strict": strict,
            "dynamic": dynamic,
        }
    )
    read_environment()  # a mistake in it is told now, not at the first call
    examples = _check_examples(args, kwargs)
    # Dynamo takes two seconds to import and is not needed before this point.
    from fuseopt import assemble
    from fuseopt.match.registry import registry_with

    if config.rules:
        registry_with(config.rules)  # so is a mistake in a rule
    if isinstance(model, (str, os.PathLike, torch.export.ExportedProgram)):
        return assemble.optimize_program(model, config)
    model = assemble.unwrap(model)
    _check_model(model)
    if examples is not None:
        _check_signature(model, *examples)
    return assemble.optimize_callable(model, config, examples)


def _check_examples(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if args is None and kwargs is None:
        return None
    if isinstance(args, torch.Tensor):
        raise UsageError("args must be a tuple of the model's inputs: write (x,), not x")
    if not isinstance(args, (tuple, list, type(None))):
        raise UsageError(f"args must be a tuple or list of inputs, not {type(args).__name__}")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise UsageError(f"kwargs must be a dict of keyword inputs, not {type(kwargs).__name__}")
    for name in kwargs or ():
        if not isinstance(name, str):
            raise UsageError(f"kwargs must have names as keys, not {name!r}")
    return tuple(args or ()), dict(kwargs or {})


def _check_model(model: Any) -> None:
    if isinstance(model, type):
        raise UsageError(f"{model.__name__} is a class: pass an instance, {model.__name__}(...)")
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise UsageError(
            "a TorchScript model has no Python code to trace: pass the model it was made from"
        )
    if isinstance(model, nn.Module):
        if hasattr(model, "_orig_mod") and hasattr(model, "_torchdynamo_orig_callable"):
            raise UsageError(
                "the model was already compiled by torch.compile: pass model._orig_mod, or use "
                'torch.compile(..., backend="fuseopt") in the first place'
            )
        return
    if not callable(model):
        raise UsageError(
            f"model must be an nn.Module, a function, an ExportedProgram or the path of a .pt2 "
            f"file, not {type(model).__name__}"
        )


def _check_signature(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    function: Callable[..., Any] = model.forward if isinstance(model, nn.Module) else model
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"the example inputs do not fit the model: {error}") from None
