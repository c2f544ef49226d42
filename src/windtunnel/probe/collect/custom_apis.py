"""Record functions that the user names like the framework's own APIs: a fused operator, a kernel of another library.

    register(module, "fused_rope", "Custom") ──> module.fused_rope(x) ──> "Custom.fused_rope.0.forward"
    restore(module, "fused_rope")            ──> the original object again

A name stays registered until it is restored; calls are recorded only while collecting is on. APIs that the function
calls are not recorded; modules that it calls are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, NamedTuple

from windtunnel.errors import UsageError
from windtunnel.probe.collect.call_writer import CallWriter, OpenCall
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes

__all__ = ["CustomApis"]

_MISSING = object()


class CustomApis:
    """The registered functions of one process; `connect` says where their calls are recorded."""

    def __init__(self) -> None:
        self._registered: dict[tuple[int, str], _Registered] = {}
        self._target: _Target | None = None
        self._is_on = False

    def connect(self, collector: Collector, writer: CallWriter, scopes: Scopes) -> None:
        """Record into this collector from now on."""
        self._target = _Target(collector, writer, scopes)

    def is_inside(self) -> bool:
        """Whether a recorded API is running: what it calls is part of it."""
        raise NotImplementedError

    def hidden(self) -> AbstractContextManager:
        """A context in which no API is recorded: what a registered function calls is part of it."""
        raise NotImplementedError

    def unseen(self) -> AbstractContextManager:
        """A context in which our own work is not recorded."""
        raise NotImplementedError

    def install(self, model: Any = None) -> None:
        self._is_on = True

    def remove(self) -> None:
        self._is_on = False

    def end_step(self) -> None:
        """Names stay registered from step to step."""

    @property
    def places(self) -> Set[tuple[int, str]]:
        """What is registered: the id of a module and a name in it."""
        return self._registered.keys()

    def register(self, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record `module.api` as `{api_prefix}.{api}`; the prefix is the name of the module if none is given."""
        prefix = api_prefix or getattr(module, "__name__", "Custom")
        if not isinstance(prefix, str) or not isinstance(api, str):
            wrong = prefix if isinstance(api, str) else api
            raise UsageError(
                f"register_custom_api was given {wrong!r} as a name",
                hint="pass the API name and the prefix as strings",
            )
        if (id(module), api) in self._registered:
            return
        found = getattr(module, api, _MISSING)
        if found is _MISSING:
            raise UsageError(
                f"{_name(module)} has no attribute {api!r} to register",
                hint=f"dir({_name(module)}) lists its attributes",
            )
        if not callable(found) or isinstance(found, type):
            raise UsageError(
                f"{_name(module)}.{api} is a {type(found).__name__}, not a function",
                hint="register a function or a method; modules are collected at level L0 or mix",
            )
        self._registered[id(module), api] = _Registered(module, api, self._recorder(f"{prefix}.{api}"))

    def restore(self, module: Any, api: str) -> None:
        """Restore the original, unless the attribute was changed by someone else in the meantime."""
        if getattr(module, api, _MISSING) is _MISSING:
            raise UsageError(
                f"{_name(module)} has no attribute {api!r} to restore",
                hint="pass the name that was registered",
            )
        registered = self._registered.pop((id(module), api), None)
        if registered is not None:
            registered.restore()

    def restore_all(self) -> None:
        """Restore every original."""
        registered, self._registered = self._registered, {}
        for item in registered.values():
            item.restore()

    def _recorder(self, key: str) -> Callable[[Callable, tuple, dict], Any]:
        def record(original: Callable, args: tuple, kwargs: dict) -> Any:
            target = self._target
            if not self._is_on or target is None or target.scopes.is_quiet or self.is_inside():
                return original(*args, **kwargs)
            call = None
            try:
                call = self._open(target, key, args, kwargs)
            except Exception as error:
                target.collector.guard(f"the inputs of {key}", error)
            with self.hidden():
                result = original(*args, **kwargs)
            if call is not None:
                try:
                    with self.unseen():
                        target.writer.close(call, result)
                except Exception as error:
                    target.collector.guard(f"the outputs of {key}", error)
            return result

        return record

    def _open(self, target: _Target, key: str, args: tuple, kwargs: dict) -> OpenCall | None:
        step = target.collector.step
        if step is None:
            return None
        name = f"{key}.{step.number(key)}"
        with self.unseen():
            return target.writer.open(
                step, f"{name}.forward", f"{name}.backward", target.scopes.names(), args, kwargs
            )


class _Target(NamedTuple):
    """Where the calls are recorded."""

    collector: Collector
    writer: CallWriter
    scopes: Scopes


class _Registered:
    """One name of a module, class or object, with a recording function in its place."""

    def __init__(self, owner: Any, api: str, record: Callable[[Callable, tuple, dict], Any]) -> None:
        self.owner = owner
        self.api = api
        own = vars(owner) if hasattr(owner, "__dict__") else {}
        self.original = own.get(api, _MISSING)  # the raw attribute: a staticmethod object, not its function
        self.replacement = _replacement(owner, api, self.original, record)
        setattr(owner, api, self.replacement)

    def restore(self) -> None:
        if vars(self.owner).get(self.api) is not self.replacement:
            return
        if self.original is _MISSING:  # it was inherited
            delattr(self.owner, self.api)
        else:
            setattr(self.owner, self.api, self.original)


def _replacement(owner: Any, api: str, original: Any, record: Callable) -> Any:
    if isinstance(original, staticmethod):
        return staticmethod(_recording(original.__func__, record))
    if isinstance(original, classmethod):
        return classmethod(_recording(original.__func__, record))
    function = getattr(owner, api) if original is _MISSING else original
    if isinstance(function, FunctionType) or isinstance(owner, type):
        return _recording(function, record)
    return _RecordingCallable(function, record)


def _recording(function: Callable, record: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return record(function, args, kwargs)

    return call


class _RecordingCallable:
    """Wraps a callable that is more than a function (an operator with its overloads)."""

    def __init__(self, original: Callable, record: Callable) -> None:
        self._original = original
        self._record = record

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._record(self._original, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _name(module: Any) -> str:
    return getattr(module, "__name__", type(module).__name__)
