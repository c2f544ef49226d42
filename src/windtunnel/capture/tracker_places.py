"""Where in the model, and in which phase of a step, an operator of a MindSpore program ran.

    marks (cells, backward, optimizer) ──┐
    scopes in names of graph operators ──┼──> Places ──> Where(phase, module)
    storages an operator reads ──────────┘

Three sources, the surest first: a dynamic graph's cells are marked by the script's process; a compiled graph has scopes in
its names; where both are silent (backward runs in C++, graphs made of closures lose their scopes) storages tell: an
operator belongs where the weight it reads belongs, or where the forward operator did whose data it reads.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.capture.backward_modules import BackwardModules
from windtunnel.capture.model_names import ModelNames
from windtunnel.capture.scope_names import place_of
from windtunnel.events.kinds import Phase, Role

__all__ = ["Places", "Where"]


class Where(NamedTuple):
    phase: Phase
    module: str | None  # None: outside all modules


class Places:
    """Follows a program from its first event to its last."""

    def __init__(self, names: ModelNames) -> None:
        self._names = names
        self._modules: list[str] = []
        self._is_optimizer = self._has_begun = False
        self._backward_depth: int | None = None  # how many modules were open when backward began
        self._backward = BackwardModules()
        self._named: dict[int, str] = {}  # storage of a weight -> its module
        self._states: set[int] = set()  # storages of the optimizer's own
        self._made: dict[int, Phase] = {}  # storage -> the phase of the graph operator that made it
        self._last_module: str | None = None  # of a compiled graph's forward

    # -- what happens --------------------------------------------------------------------------------------

    def enter(self, module: str) -> None:
        self._has_begun = True
        self._modules.append(module)

    def exit(self) -> str | None:
        return self._modules.pop() if self._modules else None

    def begin_backward(self) -> None:
        self._has_begun, self._backward_depth = True, len(self._modules)

    def end_backward(self) -> None:
        self._backward_depth = None

    def optimizer(self, is_running: bool) -> None:
        self._is_optimizer = is_running

    def new_step(self) -> None:
        self._backward.new_step()
        self._last_module = None

    def learn(self, storage: int, role: Role, name: str) -> None:
        """A storage is this weight, or state of the optimizer."""
        if role == Role.OPTIMIZER:
            self._states.add(storage)
        elif role == Role.WEIGHT:
            self._named[storage] = name.rpartition(".")[0]

    def release(self, storage: int) -> None:
        self._backward.release(storage)
        self._made.pop(storage, None)
        self._named.pop(storage, None)
        self._states.discard(storage)

    # -- where we are --------------------------------------------------------------------------------------

    def now(self) -> Where:
        """Of whatever is no operator."""
        return Where(self._phase(), self._modules[-1] if self._modules else None)

    def of_dynamic(self, read: tuple[int, ...], written: tuple[int, ...]) -> Where:
        """Of an operator that Python called, or backward of such."""
        phase = self._phase()
        depth = self._backward_depth
        if depth is not None and len(self._modules) <= depth:
            return Where(phase, self._backward.backward((*read, *written)))
        module = self._modules[-1] if self._modules else None
        if phase == Phase.FORWARD and module is not None:
            self._backward.forward(module, (*read, *written))
        return Where(phase, module)

    def of_compiled(self, name: str, read: tuple[int, ...], written: tuple[int, ...]) -> Where:
        """Of an operator of a compiled graph."""
        self._has_begun = True
        place = place_of(name)
        phase = max(
            [place.phase or Phase.FORWARD, *(self._made.get(storage, Phase.FORWARD) for storage in read)]
        )
        if self._is_optimizer or not self._states.isdisjoint(read):
            phase = Phase.OPTIMIZER
        for storage in written:
            if storage not in self._named and storage not in self._states:
                self._made[storage] = phase
        module = (
            self._names.in_model(place.module) if place.module else self._by_storages(phase, read, written)
        )
        if phase == Phase.FORWARD:
            self._last_module = module
            if module is not None:
                self._backward.forward(module, (*read, *written))
        return Where(phase, module)

    def _by_storages(self, phase: Phase, read: tuple[int, ...], written: tuple[int, ...]) -> str | None:
        of_weights = [self._named[storage] for storage in read if storage in self._named]
        if of_weights:
            return of_weights[-1]
        if phase == Phase.BACKWARD:
            return self._backward.backward((*read, *written))
        return self._last_module if phase == Phase.FORWARD else None

    def _phase(self) -> Phase:
        if self._is_optimizer:
            return Phase.OPTIMIZER
        if self._backward_depth is not None:
            return Phase.BACKWARD
        return Phase.FORWARD if self._has_begun else Phase.BUILD
