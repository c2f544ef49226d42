"""Every run of compiled code: where it begins and ends, with the probe hidden from the compiler.

    torch.compile'd call ──> our modes off ──> guards, compiled code ──> our modes on ──> entry "Jit.{name}.{n}"
    its backward         ──> our modes off ──> compiled backward     ──> our modes on

torch.compile runs compiled code in a wrapper function, and calls hooks of its context around it: ours is added to
them. How code is compiled meanwhile is in `tracing`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.compiled.hidden import (
    hidden_modes,
    hide_global_hooks,
    hide_modes,
    hide_module_hooks,
    show_modes,
)
from windtunnel.probe.pytorch.compiled.note_ops import define_ops
from windtunnel.probe.pytorch.compiled.tracing import Tracing
from windtunnel.probe.pytorch.eager.attribute_swap import HooksAndOurs, Instead, Swaps, has_hooks_of_others
from windtunnel.probe.pytorch.eager.call_writer import CallWriter, OpenCall

__all__ = ["CompiledRegions"]

_HOOKS = "enter_exit_hooks"
_CACHE = "_isolate_recompiles_id"
_WRAPPER = "compile_wrapper"  # the function that runs compiled code


class CompiledRegions:
    """Observes compiled calls while collecting. `modules`: the hooks that put notes into graphs, if any."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        modules: Any = None,
        has_jit: bool = True,
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.tracing = Tracing(scopes, modules)
        self.has_jit = has_jit
        self.on_enter: list[Callable[[str, Any], None]] = []  # told the name and the context of each region
        self.on_exit: list[Callable[[str, Any], None]] = []
        self._thread = threading.local()
        self._swaps = Swaps()
        self._quiet: dict[Callable, Callable] = {}

    def install(self, model: Any = None) -> None:
        """Observe compiled calls from now on."""
        if self._swaps:
            return
        from torch._dynamo import eval_frame

        self.tracing.modules = _modules_of(model)
        context = eval_frame._TorchDynamoContext
        self._swaps.replace(context, _HOOKS, Instead(_HOOKS, self._hooks))
        if self.tracing.hooks is not None:
            define_ops()
        if self.tracing.hooks is not None and hasattr(eval_frame, "set_eval_frame_isolate_recompiles_id"):
            self._swaps.replace(context, _CACHE, Instead(_CACHE, self._cache))
        stance = self.tracing.callback_from_stance(eval_frame._callback_from_stance)
        self._swaps.replace(eval_frame, "_callback_from_stance", stance)
        self._swaps.replace(eval_frame, "_maybe_set_eval_frame", self._left(eval_frame._maybe_set_eval_frame))
        self._swaps.replace(nn.modules.module, "_has_any_global_hook", has_hooks_of_others)
        node = torch.autograd.function.BackwardCFunction
        for name in ("apply", "apply_boxed"):
            if name in vars(node):
                original = vars(node)[name]
                # The same in every step: other parts remember the functions they have seen.
                quiet = self._quiet.setdefault(original, _quiet(original, self.scopes))
                self._swaps.replace(node, name, quiet)

    def remove(self) -> None:
        self._swaps.restore()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _hooks(self, context: Any, hooks: list) -> Any:
        return HooksAndOurs(hooks, lambda: self.enter(context))

    def enter(self, context: Any) -> Callable[[], None]:
        """Called by torch before compiled code is looked up and run; returns what to call afterwards."""
        try:
            region = _Region(context, _wrapper_frame())
        except Exception as error:
            self.collector.guard("a compiled region", error)
            region = _Region(context, None)
        hidden = hide_modes()
        show_hooks = self._hide_hooks()
        self._thread.is_entering = self.tracing.wants_notes()
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        if depth == 0:
            self._safely(region, lambda: self._begin(region))

        def leave() -> None:
            self._thread.depth = depth
            if depth == 0:
                self._safely(region, lambda: self._end(region))
            region.frame = None
            show_hooks()
            self._thread.hidden = hidden  # torch puts its dispatch keys back after this: see _left

        return leave

    def _left(self, original: Callable) -> Callable:
        """The last thing torch does after a compiled call; it is called at the beginning too."""

        def set_eval_frame(callback: Any) -> Any:
            result = original(callback)
            hidden, self._thread.hidden = getattr(self._thread, "hidden", None), None
            if hidden is not None:
                show_modes(hidden)
            return result

        return set_eval_frame

    def _safely(self, region: _Region, work: Callable[[], None]) -> None:
        with torch._C.DisableTorchFunction():
            self.collector.safely(f"the compiled region {region.name}", work)

    def _begin(self, region: _Region) -> None:
        for listener in self.on_enter:
            listener(region.name, region.context)
        step = self.collector.step
        if not self.has_jit or step is None or self.scopes.is_quiet:
            return
        key = f"Jit.{region.name}"
        number = step.number(key)
        names = f"{key}.{number}.forward", f"{key}.{number}.backward"
        args, kwargs = region.arguments()
        region.call = self.writer.open(step, *names, self.scopes.names(), args, kwargs)

    def _end(self, region: _Region) -> None:
        self.writer.elements.meter.forget()  # compiled code writes to its inputs without raising their versions
        for listener in self.on_exit:
            listener(region.name, region.context)
        has_result, result = region.result()
        if region.call is not None and has_result:
            # As a module without parameters of its own: its backward lists the gradients of what was given to it.
            self.writer.close(region.call, result, {})

    def _cache(self, context: Any, number: int) -> int:
        """Which cache of compiled code a call uses; asked by torch right after the hooks of entering ran."""
        if not getattr(self._thread, "is_entering", False):
            return number
        self._thread.is_entering = False
        return self.tracing.cache_number(number)

    def _hide_hooks(self) -> Callable[[], None]:
        """What the guards of compiled code look at must be as it was when it was compiled."""
        show = [hide_global_hooks()]
        if not torch._dynamo.config.skip_nnmodule_hook_guards:
            show.append(hide_module_hooks(self.tracing.modules))

        def undo() -> None:
            for put_back in show:
                put_back()

        return undo


class _Region:
    """One run of something compiled, read from the frame of the wrapper that torch.compile made."""

    def __init__(self, context: Any, frame: FrameType | None) -> None:
        self.context = context
        self.frame = frame
        self.call: OpenCall | None = None
        self.name = "region" if frame is None else _name_of(frame.f_locals.get("fn"))

    def arguments(self) -> tuple[tuple, dict]:
        if self.frame is None:
            return (), {}
        found = self.frame.f_locals
        return found.get("args", ()), found.get("kwargs", {})

    def result(self) -> tuple[bool, Any]:
        """Whether it ended without an exception, and with what."""
        found = {} if self.frame is None else self.frame.f_locals
        return bool(found.get("call_succeeded", "result" in found)), found.get("result")


def _wrapper_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is None or frame.f_code.co_name == _WRAPPER:
            return frame
        frame = frame.f_back
    return None


def _name_of(function: Any) -> str:
    """The class of a module, the name of a function."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, nn.Module):
        function = getattr(function, "__wrapped__", function)
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return type(owner).__name__
    return getattr(function, "__name__", type(function).__name__).strip("<>")


def _quiet(original: Callable, scopes: Scopes) -> Callable:
    """`apply` of autograd's Python nodes; the probe is hidden from those that run or compile code."""

    def apply(self: Any, *args: Any) -> Any:
        if not hasattr(getattr(self, "_forward_cls", None), "_aot_id"):
            return original(self, *args)
        was_quiet, scopes.is_quiet = scopes.is_quiet, True
        try:
            with hidden_modes():
                return original(self, *args)
        finally:
            scopes.is_quiet = was_quiet

    return apply


def _modules_of(model: Any) -> list[nn.Module]:
    models = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
    return [module for root in models for module in root.modules()]
