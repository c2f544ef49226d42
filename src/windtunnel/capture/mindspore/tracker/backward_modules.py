"""Find the module that an operator of the backward pass belongs to, where no hook knows it.

    forward operators (module, name, storages) ──┐
    backward operator (name, storages) ──────────┴──> the forward operator it undoes ──> its module

Backward runs forward's operators in reverse and reads what they saved. So a backward operator belongs to the forward
operator that it shares most storages with, restricted to those that its name refers to (ReluGrad undoes ReLU), if any;
of several, to the last one that is not after the one undone before. One that shares none (BiasAddGrad only reads
gradients) belongs to the nearest operator of that name that is not undone yet. Any other (a reshape of a gradient)
belongs where its neighbour does, which is a guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from typing import NamedTuple

__all__ = ["BackwardModules", "Undone", "stem_of", "undone_by"]

_VERSION = re.compile(r"(V\d+|Ext|View)+$")
_GRADIENT = re.compile(r"^(.+?)(Grad|Backward)$")
_MOST_USERS = (
    256  # of one storage: a weight's readers in a program that never takes a step would be all its readers
)


class Undone(NamedTuple):
    module: str | None  # None: nothing is known
    is_sure: bool  # False: its neighbour's, or that of an operator that its name does not refer to


class BackwardModules:
    """Follows a program; forward operators first, then those of backward."""

    def __init__(self) -> None:
        self._modules: list[str] = []  # of each forward operator since the last step
        self._stems: list[str] = []
        self._users: dict[int, deque[int]] = {}  # storage -> forward operators that read or wrote it
        self._waiting: dict[str, list[int]] = {}  # stem -> forward operators that none of its name has undone
        self._at: int | None = None  # the forward operator undone last

    def forward(self, module: str, operator: str, storages: tuple[int, ...]) -> None:
        self._at = None
        number, stem = len(self._modules), stem_of(operator)
        self._modules.append(module)
        self._stems.append(stem)
        self._waiting.setdefault(stem, []).append(number)
        for storage in dict.fromkeys(storages):
            self._users.setdefault(storage, deque(maxlen=_MOST_USERS)).append(number)

    def backward(self, undone: str, storages: tuple[int, ...], is_part: bool = False) -> Undone:
        """Where an operator belongs; `undone` is the stem of the forward operator its name refers to, or "".

        A part is one of several operators that undo it together, such as a reshape: it does not count as its gradient.
        """
        shared: dict[int, int] = {}
        for storage in dict.fromkeys(storages):
            for number in self._users.get(storage, ()):
                shared[number] = shared.get(number, 0) + 1
        if undone:
            shared = {number: n for number, n in shared.items() if self._stems[number] == undone} or shared
        if shared:
            limit = len(self._modules) if self._at is None else self._at
            self._at = max(shared, key=lambda number: (number <= limit, shared[number], number))
            is_undone = self._stems[self._at] == undone
            if is_undone:
                self._no_longer_waits(self._at)
            return Undone(self._modules[self._at], is_undone or not undone)
        if not is_part and (nearest := self._nearest(undone)) is not None:
            self._at = nearest
            self._no_longer_waits(nearest)
            return Undone(self._modules[nearest], True)
        return Undone(self._modules[self._at] if self._at is not None else None, False)

    def release(self, storage: int) -> None:
        self._users.pop(storage, None)

    def new_step(self) -> None:
        """Weights are read by every step: only this step's readers count."""
        self._modules.clear()
        self._stems.clear()
        self._users.clear()
        self._waiting.clear()
        self._at = None

    def _nearest(self, undone: str) -> int | None:
        waiting = self._waiting.get(undone)
        if not undone or not waiting:
            return None
        here = len(self._modules) if self._at is None else self._at
        at = bisect_left(waiting, here)
        # Of two equally near, the later one: backward reaches it first.
        return min(waiting[max(at - 1, 0) : at + 1], key=lambda number: (abs(number - here), -number))

    def _no_longer_waits(self, number: int) -> None:
        waiting = self._waiting.get(self._stems[number], [])
        at = bisect_left(waiting, number)
        if at < len(waiting) and waiting[at] == number:
            del waiting[at]


def stem_of(operator: str) -> str:
    """ "MatMulExt" -> "matmul": forms of one operator have one stem."""
    return _VERSION.sub("", operator).lower()


def undone_by(operator: str) -> str:
    """ "LayerNormGradV3" -> "layernorm"; "" for an operator whose name refers to none."""
    found = _GRADIENT.match(_VERSION.sub("", operator))
    return stem_of(found[1]) if found else ""
