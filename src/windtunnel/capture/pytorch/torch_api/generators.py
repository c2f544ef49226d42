"""The random number generators of the simulated device: `torch.cuda.default_generators` and its states.

    default_generators[i].get_state() <──> torch.cuda.get_rng_state(i): both access the same state

Megatron's RNG trackers read a state with one of them and write it back with the other.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["install_generators"]


class DeviceGenerator(torch.Generator):
    """A generator of one simulated device; its state is the device's."""

    module: Any
    index: int

    def get_state(self) -> torch.Tensor:
        return self.module.get_rng_state(self.index)

    def set_state(self, new_state: Any) -> DeviceGenerator:
        self.module.set_rng_state(_state_of(new_state), self.index)
        return self

    def clone_state(self) -> DeviceGenerator:
        """A second generator, as graph capture needs it: it keeps the state it was cloned with."""
        clone = _new(self.module, self.index)
        clone.kept = self.get_state()  # type: ignore[attr-defined]
        return clone

    graphsafe_get_state = clone_state
    graphsafe_set_state = set_state  # type: ignore[assignment]  # takes a state too, which the stubs do not say


def install_generators(device_type: str) -> None:
    """Give torch.cuda or torch.npu generators that share its states."""
    if device_type == "cpu":
        return
    module = getattr(torch, device_type)
    module.default_generators = tuple(_new(module, i) for i in range(module.device_count()))


def _new(module: Any, index: int) -> DeviceGenerator:
    generator = DeviceGenerator()
    generator.module, generator.index = module, index
    return generator


def _state_of(state: Any) -> Any:
    return getattr(state, "kept", None) if isinstance(state, torch.Generator) else state
