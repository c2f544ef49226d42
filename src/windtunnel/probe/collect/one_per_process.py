"""One debugger per process, reachable from every file of a program through its class.

    PrecisionDebugger(config) ──> called again with the same arguments, or none: returns the same object
    PrecisionDebugger.start() ──> the method of the current debugger

A framework's PrecisionDebugger is `class PrecisionDebugger(OnePerProcess, Debugger)` with `current = None`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from windtunnel.errors import UsageError
from windtunnel.probe.collect.debugger import Debugger

__all__ = ["OnePerProcess"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self", bound="OnePerProcess")


class _Shared(Generic[_Arguments, _Result]):
    """A method that can be called on an object or on its class; on the class it means the current debugger."""

    def __init__(self, method: Callable[Concatenate[Any, _Arguments], _Result]) -> None:
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Callable[_Arguments, _Result]:
        target = owner.current if instance is None else instance
        if target is None:
            raise UsageError(
                f"PrecisionDebugger.{self.name}() was called before a PrecisionDebugger was created",
                hint='create one first: PrecisionDebugger(config_path="config.json")',
            )
        return getattr(super(self.owner, target), self.name)


class OnePerProcess(Debugger):
    """The first base of a PrecisionDebugger; the second is the framework's own Debugger."""

    current: Any  # the debugger of this process; None until there is one
    _arguments: tuple = ()

    start = _Shared(Debugger.start)
    stop = _Shared(Debugger.stop)
    step = _Shared(Debugger.step)
    save = _Shared(Debugger.save)
    set_init_step = _Shared(Debugger.set_init_step)
    watch = _Shared(Debugger.watch)
    register_custom_api = _Shared(Debugger.register_custom_api)
    restore_custom_api = _Shared(Debugger.restore_custom_api)

    def __new__(cls: type[_Self], *args: Any, **kwargs: Any) -> _Self:
        old = cls.current
        arguments = (args, tuple(sorted((key, repr(value)) for key, value in kwargs.items())))
        if old is not None and (arguments == ((), ()) or arguments == old._arguments):
            return old
        new = super().__new__(cls)
        new._arguments = arguments
        return new

    def __init__(
        self,
        config_path: str | os.PathLike | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike | None = None,
        level: str | None = None,
        step: Sequence | None = None,
    ) -> None:
        door: Any = next(one for one in type(self).__mro__ if "current" in vars(one))
        old = door.current
        if old is self:
            return
        super().__init__(config_path, task, dump_path, level, step)
        if old is not None:
            old.close()
        door.current = self

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
