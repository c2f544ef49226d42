"""Level L0: the modules below the model, by forward hooks and by the autograd nodes their calls made.

    forward pre-hook ──> inputs ──> children, APIs ──> forward hook ──> outputs, parameters ──> nodes hooked
    gradient of a parameter ──> entry "Module.….parameters_grad.n" once all parameters of the module have theirs

torch's own full backward hooks put identity nodes into the graph, which changes the order of accumulation and breaks
modules that work in place; these do not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collector import Collector
from windtunnel.probe.parameter_gradients import ParameterGradients
from windtunnel.probe.scopes import Scopes
from windtunnel.probe.torch_calls import CallWriter, OpenCall

__all__ = ["ModuleHooks", "leaves", "named_modules", "scripted_note"]


def named_modules(model: Any) -> list[tuple[str, nn.Module]]:
    """The modules to watch with their names in a dump: every submodule, not the given module itself.

    A scripted module takes no hooks; what is inside it is C++.
    """
    if isinstance(model, nn.Module):
        roots: Iterable[tuple[str, nn.Module]] = [("Module.", model)]
    else:
        roots = [(f"Module.{index}.", root) for index, root in enumerate(model)]
    found: dict[int, tuple[str, nn.Module]] = {}
    for prefix, root in roots:
        for path, module in root.named_modules():
            if path and id(module) not in found and not isinstance(module, torch.jit.ScriptModule):
                # a shared module keeps its first name
                found[id(module)] = (f"{prefix}{path}.{type(module).__name__}", module)
    return list(found.values())


def leaves(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters that gradients are accumulated into."""
    return {key: value for key, value in parameters.items() if value.requires_grad and value.is_leaf}


def scripted_note(model: Any) -> str | None:
    """What to tell of a model that has scripted modules in it."""
    roots = [model] if isinstance(model, nn.Module) else model or ()
    named = (pair for root in roots for pair in root.named_modules())
    found = [path for path, module in named if path and isinstance(module, torch.jit.ScriptModule)]
    if not found:
        return None
    return (
        f"{len(found)} modules are scripted and take no hooks, so they are not collected (the first: {found[0]}); "
        "collect the model before torch.jit.script"
    )


class ModuleHooks:
    """Hooks on the modules of one model; installed while collecting, gone afterwards."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self._handles: list[Any] = []
        self._gradients = ParameterGradients(collector, writer)
        self._open = threading.local()

    def install(self, model: Any) -> None:
        """Hook every submodule; calling it again does nothing until `remove`."""
        if self._handles:
            return
        for name, module in named_modules(model):
            self._watch(name, module)

    def remove(self) -> None:
        """Take the hooks off the modules. Hooks on the graph stay, for its backward may come later."""
        self._calls().clear()  # of modules that are still running, or that an interrupt has ended
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._gradients.remove_finished()

    def end_step(self) -> None:
        """Take the hooks off the parameters too."""
        self._gradients.remove_all()

    def _watch(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            self._before(name, module, args, kwargs)

        def after(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self._after(name, module, output)

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        # always_call: also after an exception, so that the stack of modules stays right
        self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def _before(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        try:
            self._begin(name, module, args, kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {name}", error)

    def _begin(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        step = self.collector.step
        if step is None or self.scopes.is_quiet:
            self._calls().append((module, None, None))
            return
        number = step.number(name)
        scope = f"{name}.forward.{number}"
        call: OpenCall | None = None
        try:
            with torch._C.DisableTorchFunction():
                backward = f"{name}.backward.{number}"
                call = self.writer.open(step, scope, backward, self.scopes.names(), args, kwargs)
        finally:  # what runs inside has its parent all the same
            self.scopes.stack.append(scope)
            self._calls().append((module, scope, call))

    def _after(self, name: str, module: nn.Module, output: Any) -> None:
        try:
            self._end(name, module, output)
        except Exception as error:
            self.collector.guard(f"the outputs of {name}", error)

    def _end(self, name: str, module: nn.Module, output: Any) -> None:
        calls = self._calls()
        if not any(found is module for found, _, _ in reversed(calls)):
            return
        found = None
        while found is not module:  # an exception inside leaves the calls of the children behind
            found, scope, call = calls.pop()
            if scope is not None and scope in self.scopes.stack:
                del self.scopes.stack[self.scopes.stack.index(scope) :]
        if scope is not None:
            self.collector.selection.leave(scope, self.scopes.names())
        if call is None:
            return
        with torch._C.DisableTorchFunction():
            parameters = {key: value for key, value in module._parameters.items() if value is not None}
            self.writer.close(call, output, parameters)
            if call.backward is not None and self.collector.selection.parameter_gradients:
                self._gradients.watch(call.step, name, leaves(parameters))

    def _calls(self) -> list[tuple[nn.Module, str | None, OpenCall | None]]:
        found = getattr(self._open, "calls", None)
        if found is None:
            found = self._open.calls = []
        return found
