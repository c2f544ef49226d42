"""Find the module, and the phase of a step, in which an operator of a MindSpore program ran.

    marks (cells, backward, optimizer) ──┐
    scopes in names of graph operators ──┼──> Places ──> Where(phase, module)
    storages an operator reads ──────────┘

The script's process marks the cells of a dynamic graph; a compiled graph has scopes in its names. Where both are missing
(backward runs in C++, graphs made of closures lose their scopes), storages decide: an operator belongs where the weight
it reads belongs, or where the forward operator belongs whose data it reads. Between layers of the same kind, storages
take precedence over scopes: MindSpore compiles a function, and the gradient of a primitive, once, and every use has the
scope of the first.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import NamedTuple

from windtunnel.capture.mindspore.tracker.backward_modules import BackwardModules, stem_of, undone_by
from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.scope_names import Place, place_of
from windtunnel.events.kinds import Phase, Role

__all__ = ["Places", "Where"]

_NUMBERS = re.compile(r"[0-9]{1,9}")


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
        self._states: set[int] = set()  # storages of optimizer state
        self._constants: set[int] = set()  # read by operators that have nothing to do with each other
        self._made: dict[int, Phase] = {}  # storage -> the phase of the graph operator that made it
        self._module_of: dict[int, str] = {}  # storage -> where a compiled graph's forward made it
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
        """A storage is this weight, state of the optimizer, or (temporary) a constant."""
        if role == Role.OPTIMIZER:
            self._states.add(storage)
        elif role == Role.TEMPORARY:
            self._constants.add(storage)
        elif role == Role.WEIGHT:
            self._named[storage] = name.rpartition(".")[0]

    def release(self, storage: int) -> None:
        self._backward.release(storage)
        self._made.pop(storage, None)
        self._module_of.pop(storage, None)
        self._named.pop(storage, None)
        self._states.discard(storage)
        self._constants.discard(storage)

    # -- where we are --------------------------------------------------------------------------------------

    def now(self) -> Where:
        """Of anything that is not an operator."""
        return Where(self._phase(), self._modules[-1] if self._modules else None)

    def of_dynamic(self, operator: str, read: tuple[int, ...], written: tuple[int, ...]) -> Where:
        """Of an operator that Python called, or backward of such."""
        phase = self._phase()
        depth = self._backward_depth
        storages = self._telling(read, written)
        if depth is not None and len(self._modules) <= depth:
            return Where(phase, self._backward.backward(undone_by(operator), storages).module)
        module = self._modules[-1] if self._modules else None
        # In backward this is a recomputation: its results are undone next.
        if phase in (Phase.FORWARD, Phase.BACKWARD) and module is not None:
            self._backward.forward(module, operator, storages)
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
        if phase == Phase.BACKWARD:
            return Where(phase, self._of_backward(place, read, written))
        if phase != Phase.FORWARD:
            return Where(phase, self._names.in_model(place.module) if place.module else None)
        module = self._last_module = self._of_forward(place, read)
        if module is not None:
            self._module_of.update(dict.fromkeys(written, module))
            self._backward.forward(module, place.operator, self._telling(read, written))
        return Where(phase, module)

    def _of_forward(self, place: Place, read: tuple[int, ...]) -> str | None:
        by_weight = self._by_weight(read)
        if not place.module:
            return by_weight if by_weight is not None else self._last_module
        by_scope = self._names.in_model(place.module)
        if by_weight is not None and _kind(by_weight) == _kind(by_scope):
            return by_weight
        # A function that several layers call is compiled once, with the scope of the first: if it reads what a later
        # layer made, it is that layer's.
        makers = [self._module_of[storage] for storage in read if storage in self._module_of]
        return max([by_scope, *(_in_layer_of(maker, by_scope) for maker in makers)], key=_layer)

    def _of_backward(self, place: Place, read: tuple[int, ...], written: tuple[int, ...]) -> str | None:
        by_name = undone_by(place.operator)
        found = self._backward.backward(
            stem_of(place.undoes) or by_name, self._telling(read, written), is_part=not by_name
        )
        by_weight = self._by_weight(read)
        if by_weight is not None:
            return by_weight
        by_scope = self._names.in_model(place.module) if place.module else None
        if found.is_sure or by_scope is None:
            return found.module
        # A neighbour's module is a guess, and so is a scope: of two similar layers, the neighbour's is more likely.
        return by_scope if found.module is None else _in_layer_of(found.module, by_scope)

    def _by_weight(self, read: tuple[int, ...]) -> str | None:
        of_weights = [self._named[storage] for storage in read if storage in self._named]
        return of_weights[-1] if of_weights else None

    def _telling(self, read: tuple[int, ...], written: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(storage for storage in (*read, *written) if storage not in self._constants)

    def _phase(self) -> Phase:
        if self._is_optimizer:
            return Phase.OPTIMIZER
        if self._backward_depth is not None:
            return Phase.BACKWARD
        return Phase.FORWARD if self._has_begun else Phase.BUILD


def _in_layer_of(neighbour: str, module: str) -> str:
    """ "blocks.3.mlp", "blocks.0.attention.q" -> "blocks.3.attention.q": the same place in the neighbour's layer."""
    pairs = zip(neighbour.split("."), module.split("."), strict=False)
    alike = [theirs for theirs, ours in takewhile(lambda pair: _kind(pair[0]) == _kind(pair[1]), pairs)]
    return ".".join([*alike, *module.split(".")[len(alike) :]])


def _kind(module: str) -> str:
    return _NUMBERS.sub("#", module)


def _layer(module: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBERS.findall(module))
