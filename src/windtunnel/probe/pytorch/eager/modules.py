"""Level L0: torch's modules below the model, and their parameters.

model ──> named_modules ──> LayerHooks ──> entries "Module.path.Class.forward.n", "….backward.n", "….parameters_grad.n"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from windtunnel.probe.collect.layer_hooks import LayerHooks

__all__ = ["WRAPPED", "ModuleHooks", "has_compiled", "is_wrapper", "leaves", "named_modules", "scripted_note"]

WRAPPED = "_orig_mod"  # where torch.compile(module) keeps the module


def named_modules(model: Any) -> list[tuple[str, nn.Module]]:
    """The modules to watch with their names in a dump: every submodule, not the given module itself.

    A scripted module accepts no hooks; what is inside it is C++.
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


def leaves(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters that gradients are accumulated into."""
    return {key: value for key, value in parameters.items() if value.requires_grad and value.is_leaf}


def scripted_note(model: Any) -> str | None:
    """What to tell the user about a model with scripted modules."""
    roots = [model] if isinstance(model, nn.Module) else model or ()
    named = (pair for root in roots for pair in root.named_modules())
    found = [path for path, module in named if path and isinstance(module, torch.jit.ScriptModule)]
    if not found:
        return None
    return (
        f"{len(found)} modules are scripted and accept no hooks, so they are not collected (the first: {found[0]}); "
        "collect the model before calling torch.jit.script"
    )


def is_wrapper(module: nn.Module) -> bool:
    """Whether this is what torch.compile(module) returned; asked without loading Dynamo."""
    return type(module).__name__ == "OptimizedModule" and WRAPPED in module._modules


def has_compiled(model: Any) -> bool:
    """Whether a model is compiled, or a module in it."""
    models = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
    return any(
        is_wrapper(module) or module._compiled_call_impl is not None
        for root in models
        for module in root.modules()
    )


class Traceable(Protocol):
    """Hooks that a compiler can trace; they call those of `ModuleHooks` in eager code."""

    def install(self, model: Any) -> list[Any]: ...

    def replace(self, named: list[tuple[str, nn.Module]], handles: list[Any]) -> None: ...

    def end_step(self) -> None: ...


class ModuleHooks(LayerHooks):
    """Hooks on the modules of one model. `traceable`: instead of these, once the program compiles something."""

    traceable: Traceable | None = None

    def install(self, model: Any) -> None:
        if self.traceable is None:
            super().install(model)
        elif not self._handles:
            self._handles = self.traceable.install(model)

    def make_traceable(self, traceable: Traceable) -> None:
        """From now on hooks that a compiler can trace. Modules that are running stay open: both have one state."""
        self.traceable = traceable
        if self._handles:
            traceable.replace(self._named, self._handles)

    def end_step(self) -> None:
        super().end_step()
        if self.traceable is not None:
            self.traceable.end_step()

    def named_layers(self, model: Any) -> list[tuple[str, nn.Module]]:
        return named_modules(model)

    def unseen(self) -> AbstractContextManager:
        return torch._C.DisableTorchFunction()

    def parameters_of(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        return {key: value for key, value in layer._parameters.items() if value is not None}

    def trained(self, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return leaves(parameters)
