"""Which module an operator of the backward pass belongs to, when no hook can say.

    forward operators (module, storages) ──┐
    backward operator (storages) ──────────┴──> the forward operator it undoes ──> its module

Backward runs forward's operators in reverse and reads what they saved. So a backward operator belongs to the forward
operator it shares most storages with; among equals to the last one that is not after the one undone before. One that
shares none (a reshape of a gradient) belongs where its neighbour did.
"""

from __future__ import annotations

__all__ = ["BackwardModules"]


class BackwardModules:
    """Follows a program; forward operators first, then those of backward."""

    def __init__(self) -> None:
        self._modules: list[str] = []  # of each forward operator since the last step
        self._users: dict[int, list[int]] = {}  # storage -> forward operators that read or wrote it
        self._at: int | None = None  # the forward operator undone last

    def forward(self, module: str, storages: tuple[int, ...]) -> None:
        self._at = None
        number = len(self._modules)
        self._modules.append(module)
        for storage in dict.fromkeys(storages):
            self._users.setdefault(storage, []).append(number)

    def backward(self, storages: tuple[int, ...]) -> str | None:
        """The module; None if nothing is known."""
        shared: dict[int, int] = {}
        for storage in dict.fromkeys(storages):
            for number in self._users.get(storage, ()):
                shared[number] = shared.get(number, 0) + 1
        if shared:
            limit = len(self._modules) if self._at is None else self._at
            self._at = max(shared, key=lambda number: (number <= limit, shared[number], number))
        return self._modules[self._at] if self._at is not None else None

    def release(self, storage: int) -> None:
        self._users.pop(storage, None)

    def new_step(self) -> None:
        """Weights are read by every step: only this step's readers count."""
        self._modules.clear()
        self._users.clear()
        self._at = None
