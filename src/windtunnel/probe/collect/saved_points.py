"""Level debug: values the user saves by hand, and the gradients of their tensors.

save(value, "hidden") ──> "hidden.0.debug": {...}      backward ──> "hidden_grad.0.debug": {...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.elements import Elements
from windtunnel.probe.files.notices import tell

__all__ = ["PointWriter"]

_KINDS = (dict, list, tuple, int, float, str)


class PointWriter:
    """Saves single values for one debugger; a framework provides their gradients."""

    def __init__(self, collector: Collector, elements: Elements) -> None:
        self.collector = collector
        self.elements = elements
        self._waiting: list[_PointGradients] = []

    def save(self, variable: Any, name: str, save_backward: bool) -> None:
        """Write the value now, and its gradients once backward has computed them."""
        if not isinstance(variable, (*_KINDS, self.elements.tensor_type)):
            tell(
                f'save("{name}") was given a {type(variable).__name__}, which cannot be saved; '
                "pass a tensor, a number, a string, or a dict, list or tuple of them"
            )
            return
        step = self.collector.step
        if step is None:
            return
        number = step.number(name)
        entry = f"{name}.{number}.debug"
        pieces: list = []
        store = step.store if self.collector.config.task == "tensor" else None
        self.encode(pieces, variable, entry, store)
        self.collector.put(step, entry, pieces)
        if save_backward and self.is_recording():
            gradients = _PointGradients(self, step, f"{name}_grad.{number}.debug", variable)
            if gradients.waiting:
                self._waiting.append(gradients)

    def current_pass(self) -> int:
        """The number of the running backward."""
        raise NotImplementedError

    def is_recording(self) -> bool:
        """Whether autograd records what is computed now."""
        raise NotImplementedError

    def has_gradient(self, tensor: Any) -> bool:
        """Whether this tensor may get a gradient."""
        raise NotImplementedError

    def kept(self, gradient: Any) -> Any:
        """A copy of a gradient: it may be accumulated into later."""
        raise NotImplementedError

    def encode(self, pieces: list, variable: Any, entry: str, store: Any) -> None:
        """Append the text of a value without being recorded."""
        if isinstance(variable, self.elements.tensor_type):
            self.elements.tensor(pieces, variable, entry, store)
        else:
            self.elements.encode(pieces, variable, entry, store)

    def end_step(self) -> None:
        """Write the gradients that have arrived, and remove the hooks of the tensors."""
        waiting, self._waiting = self._waiting, []
        for gradients in waiting:
            gradients.write()
            gradients.remove()


class _PointGradients:
    def __init__(self, owner: PointWriter, step: StepOutput, entry: str, variable: Any) -> None:
        self.owner = owner
        self.step = step
        self.entry = entry
        self.shape = variable
        self.waiting: set[int] = set()
        self.found: dict[int, Any] = {}
        self.current_pass = -1
        self.handles: list[Any] = []
        self.shape = self._watch(variable)

    def _watch(self, value: Any) -> Any:
        """The value with every tensor replaced by its number, so that no tensor is kept alive."""
        if isinstance(value, self.owner.elements.tensor_type):
            if not self.owner.has_gradient(value):
                return None
            number = len(self.handles)
            self.waiting.add(number)
            tensor: Any = value
            self.handles.append(tensor.register_hook(lambda gradient: self._take(number, gradient)))
            return _Number(number)
        if isinstance(value, Mapping):
            return {key: self._watch(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._watch(item) for item in value]
        return None

    def _take(self, number: int, gradient: Any) -> None:
        try:
            running = self.owner.current_pass()
            if running != self.current_pass or number in self.found:
                self.write()  # a second backward: the first one is complete
            self.current_pass = running
            self.found[number] = self.owner.kept(gradient)
            if len(self.found) == len(self.waiting):
                self.write()
        except Exception as error:
            self.owner.collector.guard(f"the gradients of {self.entry}", error)

    def write(self) -> None:
        found, self.found = self.found, {}
        if not found:
            return
        pieces: list = []
        store = self.step.store if self.owner.collector.config.task == "tensor" else None
        entry = self.step.next_pass(self.entry)
        self.owner.encode(pieces, _filled(self.shape, found), entry, store)
        self.owner.collector.put(self.step, entry, pieces)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


class _Number(int):
    """Where the gradient of tensor number n goes."""


def _filled(shape: Any, found: dict[int, Any]) -> Any:
    if isinstance(shape, _Number):
        return found.get(shape)
    if isinstance(shape, dict):
        return {key: _filled(item, found) for key, item in shape.items()}
    if isinstance(shape, list):
        return [_filled(item, found) for item in shape]
    return None
