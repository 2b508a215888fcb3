"""`torch.compile(model, backend="fuseopt")`: Dynamo finds this function by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from fuseopt.config import Config, read_environment
from fuseopt.errors import UsageError
from fuseopt.events import Log
from fuseopt.pipeline import Session, compile_captured


def fuseopt_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph for `torch.compile`.

    options: keyword arguments of `fuseopt.optimize` ("numerics", "verify", "strict", "rules",
    "mode"); "dynamic" belongs to `torch.compile` itself. "log" takes a `fuseopt.Log`, in which what
    happens is recorded: `fuseopt.Report.from_log(log)` explains it. mode: as in `fuseopt.optimize`.
    Raises `UsageError` for an unknown option, mode or FUSEOPT_ variable.
    """
    settings = dict(options or {})
    log = settings.pop("log", None) or Log()
    if not isinstance(log, Log):
        raise UsageError(f"option log takes a fuseopt.Log, not {type(log).__name__}")
    if "dynamic" in settings:
        raise UsageError("dynamic is an argument of torch.compile, not an option of the backend")
    if mode is not None:
        settings["mode"] = mode
    session = Session(Config.from_options(settings), log)
    return compile_captured(gm, example_inputs, session, read_environment())
