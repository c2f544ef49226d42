"""Level L1: every torch API that the program calls, observed by a torch function mode. Nothing in torch is replaced.

    F.relu(x) ──> mode ──> name, selection ──> inputs ──> the call itself ──> outputs, stack, backward hooks

While an API runs the mode is off, so what it calls inside is not recorded: one entry per call of the user. The only
thing installed while collecting is a thin method for each Python operator (`x + y`), because torch reports `x + y` and
`x.add(y)` under the same name, and msProbe's dumps use `Tensor.__add__`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from windtunnel.probe.collect.callsite import CallSites
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.api_names import OPERATORS, ApiName, exposes_memory, name_of
from windtunnel.probe.pytorch.eager.call_writer import CallWriter, OpenCall

__all__ = ["ApiMode", "OperatorNames"]

_SKIP, _EXPOSES = 0, 1


class _Open:
    """A function that is not recorded itself, but what it calls is: `body` is it without its own question for modes."""

    __slots__ = ("body",)

    def __init__(self, function: Callable) -> None:
        self.body = (
            _backward if function is torch.Tensor.backward else getattr(function, "__wrapped__", function)
        )


def _backward(
    self, gradient=None, retain_graph=None, create_graph=False, inputs=None
):  # as torch.Tensor.backward
    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


class ApiMode(TorchFunctionMode):
    """Records the APIs called in the threads it is entered in."""

    def __init__(
        self, collector: Collector, writer: CallWriter, scopes: Scopes, names: OperatorNames
    ) -> None:
        super().__init__()
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.names = names
        self.sites = CallSites()
        self._known: dict[Any, Any] = {}  # function -> _SKIP, _EXPOSES, _Open or its ApiName
        self._wanted: dict[ApiName, bool] = {}

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = self._known.get(function)
        if known is None:
            known = self._learn(function)
        if known is _SKIP or self.collector.step is None or self.scopes.is_quiet:
            return function(*args, **kwargs)
        if known is _EXPOSES:
            self.writer.exposed_in = self.collector.step
            return function(*args, **kwargs)
        if type(known) is _Open:
            with self:
                return known.body(*args, **kwargs)
        call = None
        try:
            name = known
            operator = self.names.take()
            if operator is not None and known.prefix == "Tensor":
                name = _OPERATOR_NAMES[operator]
            call = self._open(name, args, kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {known.key}", error)
        result = function(*args, **kwargs)
        if call is not None:
            try:
                self.writer.close(
                    call, args[0] if result is None and _is_in_place(known.api) and args else result
                )
            except Exception as error:
                self.collector.guard(f"the outputs of {known.key}", error)
        return result

    def _learn(self, function: Callable) -> Any:
        try:
            name = name_of(function)
        except Exception as error:
            self.collector.guard(f"the name of {function!r}", error)
            name = None
        if name is None:
            known: Any = _EXPOSES if exposes_memory(function) else _SKIP
        elif name.is_open:
            known = _Open(function)
        else:
            known = name
        self._known[function] = known
        return known

    def _open(self, name: ApiName, args: tuple, kwargs: dict) -> OpenCall | None:
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = self._wanted[name] = self.collector.selection.wants_api(name.prefix, name.api)
        step = self.collector.step
        if not wanted:
            left_out = self.collector.left_out
            left_out[name.key] = left_out.get(name.key, 0) + 1
            return None
        if step is None:
            return None
        if name.python is not None:
            args, kwargs = self.sites.as_written(name.python, sys._getframe(2), args, kwargs)
        call = f"{name.key}.{step.number(name.key)}."
        return self.writer.open(step, f"{call}forward", f"{call}backward", self.scopes.names(), args, kwargs)


def _is_in_place(api: str) -> bool:
    """Calls that return nothing and change their first argument: `x[0] = y`, torch._foreach_add_."""
    return api == "__setitem__" or (api.endswith("_") and not api.endswith("__"))


_OPERATOR_NAMES = {operator: ApiName("Tensor", operator) for operator in OPERATORS}


class OperatorNames:
    """Installs thin methods that record which Python operator led to a call."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._methods: dict[str, Callable] = {}  # made once: a mode knows functions by identity
        self._is_installed = False

    def take(self) -> str | None:
        """The operator that was used for the call being made now, once."""
        name = getattr(self._local, "name", None)
        self._local.name = None
        return name

    def install(self, model: Any = None) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        resolve_name(torch.add)  # torch lists its functions on first use: let it see its own, not these
        for operator in OPERATORS:
            original = getattr(torch.Tensor, operator, None)
            if original is not None and operator not in vars(torch.Tensor):
                if operator not in self._methods:
                    self._methods[operator] = _named(original, operator, self._local)
                setattr(torch.Tensor, operator, self._methods[operator])

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def remove(self) -> None:
        if not self._is_installed:
            return
        self._is_installed = False
        for operator in OPERATORS:
            method = vars(torch.Tensor).get(operator)
            if getattr(method, "_is_windtunnel", False):
                delattr(torch.Tensor, operator)


def _named(original: Callable, operator: str, local: threading.local) -> Callable:
    if operator in ("__neg__", "__pos__", "__abs__", "__invert__"):

        def method(self: torch.Tensor) -> Any:
            local.name = operator
            try:
                return original(self)
            finally:
                local.name = None  # not taken: made inside an API, where nothing is recorded

    else:

        def method(self: torch.Tensor, other: Any) -> Any:  # type: ignore[misc]
            local.name = operator
            try:
                return original(self, other)
            finally:
                local.name = None

    method.__name__ = operator
    method.__qualname__ = f"Tensor.{operator}"
    method._is_windtunnel = True  # type: ignore[attr-defined]
    return method
