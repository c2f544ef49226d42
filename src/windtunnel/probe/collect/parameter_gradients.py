"""The gradients of parameters, one entry per module and backward.

    gradient reaches a parameter ──> "Module.fc.Linear.parameters_grad.0": {"bias": [...], "weight": [...]}

The entry is written once all parameters of the module have theirs, or when a second backward begins, or at the end of
the step. A parameter is whatever has `register_hook(hook)` with a handle that can be removed.
"""

from __future__ import annotations

from typing import Any

from windtunnel.probe.collect.call_writer import CallWriter
from windtunnel.probe.collect.collector import Collector, StepOutput

__all__ = ["ParameterGradients"]


class ParameterGradients:
    """Collects the gradient of each parameter when it is accumulated, one entry per module and backward."""

    def __init__(self, collector: Collector, writer: CallWriter) -> None:
        self.collector = collector
        self.writer = writer
        self._modules: dict[str, _ModuleGradients] = {}

    def watch(self, step: StepOutput, name: str, parameters: dict[str, Any]) -> None:
        """Expect gradients of these parameters of a module."""
        if name in self._modules or self.writer.has_structure_only or self.writer.finder is not None:
            return
        if parameters:
            self._modules[name] = _ModuleGradients(self, step, name, parameters)

    def remove_finished(self) -> None:
        """After `stop`: modules whose gradients have all arrived need no hooks any more."""
        for name, module in list(self._modules.items()):
            if module.n_written and not module.gradients:
                self._modules.pop(name).remove()

    def remove_all(self) -> None:
        modules, self._modules = self._modules, {}
        for module in modules.values():
            module.write()
            module.remove()


class _ModuleGradients:
    def __init__(
        self, owner: ParameterGradients, step: StepOutput, name: str, wanted: dict[str, Any]
    ) -> None:
        self.owner = owner
        self.step = step
        self.name = name
        self.wanted = set(wanted)
        self.gradients: dict[str, list] = {}  # parameter -> pieces of its element
        self.entry = ""
        self.n_written = 0
        self.current_pass = -1
        self.handles = [value.register_hook(self._hook(key)) for key, value in wanted.items()]

    def _hook(self, key: str) -> Any:
        def take(gradient: Any) -> None:
            try:
                self._take(key, gradient)
            except Exception as error:
                self.owner.collector.guard(f"the gradient of {self.name}.{key}", error)

        return take

    def _take(self, key: str, gradient: Any) -> None:
        if not self.step.is_open:
            return
        running = self.owner.writer.current_pass()
        if running != self.current_pass or key in self.gradients:
            self.write()  # another backward has begun, although some parameters got no gradient in the last one
        self.current_pass = running
        if not self.gradients:
            entry = f"{self.name}.parameters_grad"
            self.entry = f"{entry}.{self.step.number(entry)}"
        self.gradients[key] = self.owner.writer.gradient(self.step, self.entry, key, gradient)
        if len(self.gradients) == len(self.wanted):
            self.write()

    def write(self) -> None:
        """Write the entry with the gradients that have arrived."""
        gradients, self.gradients = self.gradients, {}
        if not gradients:
            return
        pieces: list = ["{"]
        for index, (key, value) in enumerate(gradients.items()):
            pieces += [f'{", " if index else ""}"{key}": ', *value]
        pieces.append("}")
        self.n_written += 1
        if not self.owner.collector.selection.wants(self.entry):
            return
        self.owner.collector.put(self.step, self.entry, pieces)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
