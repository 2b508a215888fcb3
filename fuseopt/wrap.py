"""What `optimize` returns: the model itself in all but its forward.

An optimised module is an instance of a subclass of the model's class, made for it, whose
`__dict__` is the model's own `__dict__`: parameters, buffers, submodules, hooks, `training` and
every other attribute are not copied but shared, `isinstance` and `super()` work, methods such as
`generate` call the compiled forward, and the model is left as it was. What fuseopt needs to
remember is kept in a slot beside that dictionary.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseopt.config import Config
from fuseopt.events import Log


@dataclass(slots=True)
class Optimized:
    """What belongs to an optimised object besides the model.

    config: the settings of the call. call: runs the compiled forward. source: returns the emitted
    code of the graphs so far.
    copied: optimises a copy of the original. reduced: how pickle makes the object again.
    forward and compiled_call: what was assigned to these names on the optimised object.
    own_forward: what was assigned to `forward` on the original before.
    """

    original: Any
    config: Config
    call: Callable[..., Any]
    log: Log
    source: Callable[[], str]
    copied: Callable[[Any], Any]
    reduced: Callable[[], tuple[Any, ...]]
    forward: Callable[..., Any] | None = None
    compiled_call: Callable[..., Any] | None = None
    own_forward: Callable[..., Any] | None = None

    def report(self) -> Any:
        """Return the report of what was done so far."""
        # The report's renderers are not needed to run a model, and take time to import.
        from fuseopt.report.build import build_report

        return build_report(self.log)


class OptimizedFunction:
    """A function optimised by `fuseopt.optimize`; called as the original is.

    original: the function given. log: the events recorded so far.
    """

    def __init__(self, details: Optimized) -> None:
        self.__qualname__ = type(self).__qualname__  # for a callable that has none
        functools.update_wrapper(self, details.original)
        self._fuseopt = details
        self._call = details.call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function."""
        return self._call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedFunction:
        # As for a plain function, a copy is the function itself.
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A decorated function is found again by its name, which the original no longer has.
        module, name = sys.modules.get(self.__module__), self.__qualname__
        if getattr(module, name, None) is self:
            return name
        return self._fuseopt.reduced()

    def __repr__(self) -> str:
        return f"<optimised {self._fuseopt.original!r}>"

    @property
    def original(self) -> Callable[..., Any]:
        """The function given to `optimize`."""
        return self._fuseopt.original

    @property
    def log(self) -> Log:
        """The events recorded so far."""
        return self._fuseopt.log

    @property
    def report(self) -> Any:
        """What was fused and what was not, with the reasons."""
        return self._fuseopt.report()

    def source(self) -> str:
        """Return the code of the graphs compiled so far."""
        return self._fuseopt.source()


class OptimizedModule:
    """Mixed into the class of an optimised module, ahead of the model's own class."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # The model's class may keep a register of its subclasses; this one is not for it.
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        details = _details(self)
        twin = details.copied(copy.deepcopy(details.original, memo))
        memo[id(self)] = twin
        return twin

    def __copy__(self) -> Any:
        details = _details(self)
        return details.copied(copy.copy(details.original))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _details(self).reduced()


def details_of(optimised: Any) -> Optimized | None:
    """Return what fuseopt keeps beside an optimised object, None for anything else."""
    if isinstance(optimised, OptimizedFunction):
        return optimised._fuseopt
    if not isinstance(optimised, OptimizedModule):
        return None
    try:
        return object.__getattribute__(optimised, "_fuseopt")
    except AttributeError:  # a bare instance, as nn.DataParallel makes for its replicas
        return None


def wrap_module(model: nn.Module, details: Optimized) -> Any:
    """Return the optimised module that shares all state with `model`."""
    base = type(model)
    namespace: dict[str, Any] = {
        "__slots__": ("_fuseopt",),
        "__module__": base.__module__,
        # Libraries record a model's class by __name__ (Hugging Face writes it to config.json).
        "__qualname__": f"Optimized{base.__name__}",
        "__doc__": base.__doc__,
        "forward": _Forward(),
        "_compiled_call_impl": _CompiledCall(),
    }
    if hasattr(base, "__del__"):
        namespace["__del__"] = _leave_alone  # what it would release belongs to the original
    # The model's own attribute goes first where it has one of these names.
    namespace |= {name: a for name, a in _ACCESSORS.items() if not hasattr(model, name)}
    namespace |= {name: _OfOriginal(name) for name in _slots(base)}
    make_class: Any = type(base)  # the model's class may have a metaclass
    cls = make_class(base.__name__, (OptimizedModule, base), namespace)
    optimised = object.__new__(cls)
    object.__setattr__(optimised, "__dict__", model.__dict__)
    object.__setattr__(optimised, "_fuseopt", details)
    details.own_forward = model.__dict__.get("forward")
    return optimised


class _Forward:
    """`forward` of an optimised module.

    A data descriptor, since a `forward` in the shared `__dict__` (libraries set one on the
    model) would hide a plain method. Where an enclosing model is traced, that capture takes in
    the original forward.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return super(OptimizedModule, owner).forward  # type: ignore[misc]
        if torch.compiler.is_compiling():
            return _original_forward(instance)
        details = details_of(instance)
        if details is None:
            return _original_forward(instance)
        own = instance.__dict__.get("forward")
        if own is not details.own_forward:  # assigned to the original since: runs as it is
            return details.forward or own or _original_forward(instance)
        return details.forward or details.call

    def __set__(self, instance: Any, value: Callable[..., Any]) -> None:
        _details(instance).forward = value

    def __delete__(self, instance: Any) -> None:
        _details(instance).forward = None


class _CompiledCall:
    """What `nn.Module.compile()` sets: on the optimised module, not on the original.

    A model compiled in place before it was optimised would otherwise run that code.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None or torch.compiler.is_compiling():
            return None
        details = details_of(instance)
        return details.compiled_call if details else None

    def __set__(self, instance: Any, value: Callable[..., Any] | None) -> None:
        _details(instance).compiled_call = value


class _OfOriginal:
    """An attribute that the model's class keeps in a slot, which no dictionary shares."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(_details(instance).original, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(_details(instance).original, self.name, value)


def _original_forward(instance: Any) -> Any:
    own = instance.__dict__.get("forward")
    return super(OptimizedModule, instance).forward if own is None else own


def _details(instance: Any) -> Optimized:
    details = details_of(instance)
    if details is None:
        raise AttributeError("this copy of an optimised module was made without its state")
    return details


def _slots(cls: type) -> list[str]:
    names: list[str] = []
    for parent in cls.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _leave_alone(self: Any) -> None:
    pass


_ACCESSORS: dict[str, Any] = {
    "original": property(
        lambda self: _details(self).original, doc="The model given to `optimize`."
    ),
    "log": property(lambda self: _details(self).log, doc="The events recorded so far."),
    "report": property(
        lambda self: _details(self).report(), doc="What was fused and what was not, with reasons."
    ),
    "source": lambda self: _details(self).source(),
}
