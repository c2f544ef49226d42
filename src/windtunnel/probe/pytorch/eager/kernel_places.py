"""Where a kernel runs: track the modules and APIs around it without recording them.

module hooks, API mode ──> names on the thread's stack of scopes ──> parents of kernels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.apis import ApiMode, OperatorNames
from windtunnel.probe.pytorch.eager.modules import ModuleHooks

__all__ = ["ApiPlaces", "ModulePlaces"]


_APIS = (
    "Functional.",
    "Tensor.",
    "Torch.",
    "VF.",
)  # others are called as torch.ops has them: kernels themselves


class _NoWriter:
    """Replaces the call writer: nothing is written, but the names of modules are on the stack."""

    def __init__(self, collector: Collector) -> None:
        self.selection = collector.selection

    def open(
        self, step: StepOutput, forward: str, backward: str, parents: Sequence[str], args: tuple, kwargs: dict
    ) -> None:
        if not self.selection.is_open:
            self.selection.wants(forward, parents)  # a scope may begin or end with it


class _NameWriter(_NoWriter):
    """Puts the name of an API onto the stack; the mode takes it off."""

    def __init__(self, collector: Collector, scopes: Scopes) -> None:
        super().__init__(collector)
        self.scopes = scopes

    def open(
        self, step: StepOutput, forward: str, backward: str, parents: Sequence[str], args: tuple, kwargs: dict
    ) -> None:
        if forward.startswith(_APIS):
            super().open(step, forward, backward, parents, args, kwargs)
            self.scopes.stack.append(forward)


class ModulePlaces(ModuleHooks):
    """Knows which module runs; without a model it knows none."""

    def __init__(self, collector: Collector, scopes: Scopes) -> None:
        super().__init__(collector, _NoWriter(collector), scopes)  # type: ignore[arg-type]

    def install(self, model: Any) -> None:
        if model is not None:
            super().install(model)


class ApiPlaces(ApiMode):
    """Knows which API runs."""

    def __init__(self, collector: Collector, scopes: Scopes, names: OperatorNames) -> None:
        super().__init__(collector, _NameWriter(collector, scopes), scopes, names)  # type: ignore[arg-type]

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        n = len(self.scopes.stack)
        try:
            return super().__torch_function__(function, types, args, kwargs)
        finally:
            while len(self.scopes.stack) > n:
                name = self.scopes.stack.pop()
                self.collector.selection.leave(name, self.scopes.stack)
