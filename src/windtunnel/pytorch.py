"""Precision data of PyTorch programs: what every module, API or kernel computed, forward and backward.

    from windtunnel.pytorch import PrecisionDebugger, seed_all

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in loader:
        debugger.start(model)
        ...                     # forward, backward, optimizer
        debugger.stop()
        debugger.step()

Files and names are those of msProbe; `windtunnel compare A B` finds where two runs part.
"""

from __future__ import annotations

from typing import Any

from windtunnel.errors import UsageError
from windtunnel.frameworks import load

# By name, so that a Python without torch is told so in a sentence.
Debugger = load("probe", "debugger", "torch").Debugger
ProbeCallback = load("probe", "callbacks", "torch").ProbeCallback
seed_all = load("probe", "seed", "torch").seed_all

__all__ = ["PrecisionDebugger", "ProbeCallback", "seed_all"]


class _Shared:
    """A method that can be called on the object or, from any file, on the class: then the current debugger is meant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = getattr(Debugger, name).__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        target = PrecisionDebugger.current if instance is None else instance
        if target is None:
            raise UsageError(
                f"PrecisionDebugger.{self.name} was called before there is a debugger",
                hint='make one first: PrecisionDebugger(config_path="config.json")',
            )
        return getattr(super(PrecisionDebugger, target), self.name)


class PrecisionDebugger(Debugger):
    """One per process: made again with the same arguments (or none) it is the same object."""

    current: PrecisionDebugger | None = None
    _arguments: tuple = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> PrecisionDebugger:
        old = PrecisionDebugger.current
        arguments = (args, tuple(sorted((key, repr(value)) for key, value in kwargs.items())))
        if old is not None and (arguments == ((), ()) or arguments == old._arguments):
            return old
        new = super().__new__(cls)
        new._arguments = arguments
        return new

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        old = PrecisionDebugger.current
        if old is self:
            return
        super().__init__(*args, **kwargs)
        if old is not None:
            old.close()
        PrecisionDebugger.current = self

    def __enter__(self) -> PrecisionDebugger:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    start = _Shared("start")
    stop = _Shared("stop")
    step = _Shared("step")
    save = _Shared("save")
    set_init_step = _Shared("set_init_step")
    watch = _Shared("watch")
    register_custom_api = _Shared("register_custom_api")
    restore_custom_api = _Shared("restore_custom_api")
