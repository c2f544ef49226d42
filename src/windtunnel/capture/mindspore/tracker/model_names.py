"""Translate MindSpore's names of parameters and scopes to those of the user's model.

"optimizer.adam_m.layers.0.up.weight" ──> optimizer state of "layers.0.up.weight"
"net.layers.0.up" (a scope) ──> "layers.0.up"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel.events.kinds import Role

__all__ = ["ModelNames"]


@dataclass(frozen=True)
class ModelNames:
    """Found in the script's process, where the cells are."""

    parameters: Mapping[str, str] = field(default_factory=dict)  # a parameter's name -> its path in the model
    states: Mapping[str, str] = field(default_factory=dict)  # optimizer state -> its parameter
    prefixes: tuple[str, ...] = ()  # of scopes, from the wrappers that training puts around the model

    def role_and_name(self, parameter: str) -> tuple[Role, str]:
        role = Role.OPTIMIZER if parameter in self.states else Role.WEIGHT
        weight = self.states.get(parameter) or parameter
        return role, self.parameters.get(weight, weight)

    def in_model(self, module: str) -> str:
        for prefix in self.prefixes:
            if module == prefix or module.startswith(prefix + "."):
                return module[len(prefix) + 1 :]
        return module
