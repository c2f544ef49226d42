"""The user's own autograd functions as units: one entry for the forward, one for the backward they define.

    MyFunction.apply(x) ──> inputs ──> its forward, APIs inside not recorded ──> "Function.MyFunction.0.forward"
    loss.backward()     ──> its backward, APIs inside not recorded          ──> "Function.MyFunction.0.backward"

`apply` is often bound to a name when a file is imported, so its code is replaced and not the attribute: by `code_swap`
where torch implements it in Python, by `method_swap` where it is C. Functions that only wrap other code (checkpoints,
those of torch itself) stay open: what runs inside is recorded as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from windtunnel.probe.collect.code_swap import CodeSwaps
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.call_writer import CallWriter, OpenCall
from windtunnel.probe.pytorch.eager.mode_stack import hidden, is_on

try:
    from windtunnel.probe.pytorch.eager import method_swap
except ImportError:  # not built: a name bound to a C `apply` before `start` is not recorded
    method_swap = None  # type: ignore[assignment]

__all__ = ["FunctionUnits"]

_PREFIX = "Function"


class FunctionUnits:
    """Records subclasses of torch.autograd.Function; `modes` record APIs and are hidden inside of them."""

    def __init__(
        self, collector: Collector, writer: CallWriter, scopes: Scopes, modes: Sequence[Any]
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.modes = tuple(modes)
        self._swaps = CodeSwaps()
        self._restore_apply: Callable[[], None] = _nothing

    def install(self, model: Any = None) -> None:
        self._swap_apply()
        for name in ("apply", "apply_boxed"):
            if name in vars(BackwardCFunction):
                self._swaps.swap(vars(BackwardCFunction)[name], self._run_backward)

    def remove(self) -> None:
        self._swaps.restore()
        restore, self._restore_apply = self._restore_apply, _nothing
        restore()

    def _swap_apply(self) -> None:
        apply = torch.autograd.Function.apply
        if hasattr(apply, "__func__"):  # a function of Python
            self._swaps.swap(apply.__func__, self._apply)
            return
        is_swapped = False if method_swap is None else method_swap.swap(apply, self._apply)
        if is_swapped:
            self._restore_apply = method_swap.restore
        elif is_swapped is False:
            self._replace_apply()

    def _replace_apply(self) -> None:
        plain = vars(torch.autograd.Function)["apply"]

        def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
            return self._apply(
                lambda kind, *a, **k: plain.__get__(None, kind)(*a, **k), (kind, *args), kwargs
            )

        def restore() -> None:
            if vars(torch.autograd.Function)["apply"] is ours:
                function.apply = plain

        function: Any = torch.autograd.Function
        ours: Any = classmethod(apply)
        function.apply = ours
        self._restore_apply = restore

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _apply(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        kind = args[0]
        # The modes are off inside an API or another function: what runs there is part of it.
        if (
            self.collector.step is None
            or self.scopes.is_quiet
            or _is_open(kind)
            or not any(map(is_on, self.modes))
        ):
            return original(*args, **kwargs)
        call = None
        try:
            call = self._open(kind, args[1:], kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {kind.__name__}", error)
        with hidden(*self.modes):
            result = original(*args, **kwargs)
        if call is not None:
            try:
                with torch._C.DisableTorchFunction():
                    self.writer.close(call, result)
            except Exception as error:
                self.collector.guard(f"the outputs of {kind.__name__}", error)
        return result

    def _open(self, kind: type, args: tuple, kwargs: dict) -> OpenCall | None:
        step = self.collector.step
        if step is None or not self.collector.selection.wants_api(_PREFIX, kind.__name__):
            return None
        key = f"{_PREFIX}.{kind.__name__}"
        name = f"{key}.{step.number(key)}"
        with torch._C.DisableTorchFunction():
            return self.writer.open(
                step, f"{name}.forward", f"{name}.backward", self.scopes.names(), args, kwargs
            )

    def _run_backward(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        if _is_open(getattr(args[0], "_forward_cls", None)):
            return original(*args, **kwargs)
        with hidden(*self.modes):
            return original(*args, **kwargs)


def _nothing() -> None:
    """What is to be undone if nothing was done."""


def _is_open(kind: type | None) -> bool:
    if kind is None:
        return True
    return kind.__module__.partition(".")[0] == "torch" or "checkpoint" in kind.__name__.lower()
