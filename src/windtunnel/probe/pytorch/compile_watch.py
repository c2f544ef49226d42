"""Whether the program compiles anything: until it does, modules have eager hooks and nothing of `compiled` is imported.

    start(model) ──> something was compiled before ────────────────────────────> `compiled` is loaded and installed
                └──> not yet: wait for torch.compile, or a call of compiled code ──┘

Once loaded it stays: compiled code is bound to the hooks that it was traced with.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.attribute_swap import HooksAndOurs, Instead, Swaps, has_hooks_of_others
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.modules import ModuleHooks, has_compiled

if TYPE_CHECKING:
    from windtunnel.probe.pytorch.compiled.compiled_parts import CompiledCode

__all__ = ["CompileWatch"]

_EVAL_FRAME = "torch._dynamo.eval_frame"
_HOOKS = "enter_exit_hooks"


class CompileWatch:
    """A part of the debugger, installed before the others: it decides which hooks the modules get."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        version: str,
        modules: ModuleHooks | None = None,
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.version = version
        self.modules = modules
        self.code: CompiledCode | None = None  # once something was compiled
        self._area: str | None = "" if collector.config.level == "debug" else None
        self._model: Any = None
        self._swaps = Swaps()
        self._lock = threading.RLock()

    def area_for(self, model: Any) -> str:
        """The folder of eager code below dump_path; the same in all steps of a run, so decided at the first."""
        if self._area is None:
            self._area = "pynative" if has_compiled(model) else ""
        return self._area

    def install(self, model: Any = None) -> None:
        self._model = model
        if self.code is None and (has_compiled(model) or _has_compiled_before()):
            self._load()
        if self.code is not None:
            self.code.install(model)
        elif not self._swaps:
            self._wait()

    def remove(self) -> None:
        self._swaps.restore()
        if self.code is not None:
            self.code.remove()

    def end_step(self) -> None:
        if self.code is not None:
            self.code.end_step()

    def _wait(self) -> None:
        """Be told when the program compiles something. Dynamo is loaded only if the program uses it."""
        self._swaps.replace(nn.modules.module, "_has_any_global_hook", has_hooks_of_others)
        if _EVAL_FRAME in sys.modules:
            context = sys.modules[_EVAL_FRAME]._TorchDynamoContext
            self._swaps.replace(context, _HOOKS, Instead(_HOOKS, self._hooks))
        else:
            self._swaps.replace(torch, "compile", self._compile_later(torch.compile))

    def _compile_later(self, original: Callable) -> Callable:
        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self.collector.safely("the first torch.compile", self._switch)
            return original(*args, **kwargs)

        return compile_

    def _hooks(self, context: Any, hooks: list) -> Any:
        is_compiled = callable(context.callback)  # else compiling is disabled in this context
        return HooksAndOurs(hooks, lambda: self._enter(context)) if is_compiled else hooks

    def _enter(self, context: Any) -> Callable[[], None]:
        """Called by torch before the first compiled code runs; returns what to call afterwards."""
        self.collector.safely("the first compiled call", self._switch)
        return self.code.enter(context) if self.code is not None else lambda: None

    def _switch(self) -> None:
        """While the program runs, from waiting to observing compiled code."""
        with self._lock:
            if not self._swaps:
                return  # stopped, or another thread was first
            self._swaps.restore()
            was_quiet, self.scopes.is_quiet = self.scopes.is_quiet, True
            try:
                self._load().install(self._model)
            finally:
                self.scopes.is_quiet = was_quiet

    def _load(self) -> CompiledCode:
        from windtunnel.probe.pytorch.compiled.compiled_parts import CompiledCode

        self.code = CompiledCode(self.collector, self.writer, self.scopes, self.version, self.modules)
        return self.code


def _has_compiled_before() -> bool:
    """Whether anything in this process was passed to torch.compile; where torch does not say, assume so.

    Dynamo alone says nothing: torch's optimizers load it.
    """
    dynamo = sys.modules.get(_EVAL_FRAME)
    if dynamo is None:
        return False
    found = getattr(getattr(dynamo, "always_optimize_code_objects", None), "values", None)
    return bool(found) if isinstance(found, dict) else True
