"""Level L0 in any framework: the layers below a model, by forward hooks and by the autograd nodes their calls made.

    forward pre-hook ──> inputs ──> children, APIs ──> forward hook ──> outputs, parameters ──> nodes hooked
    gradient of a parameter ──> entry "….parameters_grad.n" once all parameters of the layer have theirs

A layer is a torch module or a MindSpore cell: both take the same hooks. The frameworks' own backward hooks insert nodes
into the graph, which changes the order of accumulation and breaks in-place layers; these do not.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from windtunnel.probe.collect.call_writer import CallWriter, OpenCall
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.parameter_gradients import ParameterGradients
from windtunnel.probe.collect.scopes import Scopes

__all__ = ["LayerHooks"]


class LayerHooks:
    """Hooks on the layers of one model, installed while collecting."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self._handles: list[Any] = []  # of each layer the one before and the one after
        self._named: list[tuple[str, Any]] = []  # the layers that have hooks
        self._gradients = ParameterGradients(collector, writer)
        self._open = threading.local()

    # -- provided by a framework ---------------------------------------------------------------------------

    def named_layers(self, model: Any) -> list[tuple[str, Any]]:
        """The layers to watch, with their names in a dump."""
        raise NotImplementedError

    def unseen(self) -> AbstractContextManager:
        """A context in which our own calls are not recorded."""
        raise NotImplementedError

    def parameters_of(self, layer: Any) -> dict[str, Any]:
        """The layer's own parameters, by the names they have in a dump."""
        raise NotImplementedError

    def trained(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Those that gradients are accumulated into."""
        raise NotImplementedError

    # -- hooks ---------------------------------------------------------------------------------------------

    def install(self, model: Any) -> None:
        """Hook every layer; calling it again does nothing until `remove`."""
        if self._handles:
            return
        self._named = self.named_layers(model)
        for name, layer in self._named:
            self._watch(name, layer)

    def remove(self) -> None:
        """Remove the hooks of the layers. Hooks on the graph stay, because its backward may run later."""
        self._calls().clear()  # layers that are still running, or were interrupted
        handles, self._handles, self._named = self._handles, [], []
        for handle in handles:
            handle.remove()
        self._gradients.remove_finished()

    def end_step(self) -> None:
        """Remove the hooks of the parameters too."""
        self._gradients.remove_all()

    def _watch(self, name: str, layer: Any) -> None:
        def before(_: Any, args: tuple, kwargs: dict) -> None:
            self.before(name, layer, args, kwargs)

        def after(_: Any, args: tuple, kwargs: dict, output: Any) -> None:
            self.after(name, layer, output)

        self._handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
        # always_call: also after an exception, so that the stack of layers stays right
        self._handles.append(layer.register_forward_hook(after, with_kwargs=True, always_call=True))

    # -- one call ------------------------------------------------------------------------------------------

    def before(self, name: str, layer: Any, args: tuple, kwargs: dict) -> None:
        """A layer begins; called by its hook."""
        try:
            self._begin(name, layer, args, kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {name}", error)

    def _begin(self, name: str, layer: Any, args: tuple, kwargs: dict) -> None:
        step = self.collector.step
        if step is None or self.scopes.is_quiet:
            self._calls().append((layer, None, None))
            return
        number = step.number(name)
        scope = f"{name}.forward.{number}"
        call: OpenCall | None = None
        try:
            with self.unseen():
                backward = f"{name}.backward.{number}"
                call = self.writer.open(step, scope, backward, self.scopes.names(), args, kwargs)
        finally:  # calls inside it get their parent even if this failed
            self.scopes.stack.append(scope)
            self._calls().append((layer, scope, call))

    def after(self, name: str, layer: Any, output: Any) -> None:
        """A layer ends; called by its hook."""
        try:
            self._end(name, layer, output)
        except Exception as error:
            self.collector.guard(f"the outputs of {name}", error)

    def _end(self, name: str, layer: Any, output: Any) -> None:
        calls = self._calls()
        if not any(found is layer for found, _, _ in reversed(calls)):
            return
        found = None
        while found is not layer:  # after an exception the calls of the children are still on the stack
            found, scope, call = calls.pop()
            if scope is not None and scope in self.scopes.stack:
                del self.scopes.stack[self.scopes.stack.index(scope) :]
        if scope is not None:
            self.collector.selection.leave(scope, self.scopes.names())
        if call is None:
            return
        with self.unseen():
            parameters = self.parameters_of(layer)
            self.writer.close(call, output, parameters)
            if call.backward is not None and self.collector.selection.parameter_gradients:
                self._gradients.watch(call.step, name, self.trained(parameters))

    def _calls(self) -> list[tuple[Any, str | None, OpenCall | None]]:
        found = getattr(self._open, "calls", None)
        if found is None:
            found = self._open.calls = []
        return found
