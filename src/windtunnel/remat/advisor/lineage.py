"""The inputs and results of every call: the graph used for recomputation.

    Program ──> trace_lineage ──> Result (one content of one storage) <──> Unit (the call that made it)

A storage that is written in place holds one result after the other. So the graph has no cycles, and a result that
was overwritten can still be recomputed, into new memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.events.model import CallFlag
from windtunnel.remat.advisor.account import Costs
from windtunnel.remat.rerunnable import HIDDEN_WRITES, is_blank, is_fill, is_rerunnable
from windtunnel.remat.simulated.program import Alloc, Call, Free, Load, Program, Return, Save, Unsave

__all__ = ["NEVER", "Lineage", "Result", "Unit", "trace_lineage"]

NEVER = 1 << 62  # an action that does not come


@dataclass(slots=True)
class Result:
    """What a storage held from one write to the next."""

    storage: int
    n_bytes: int
    unit: int  # that made it; -1: nothing that could run again
    born: int  # action
    gone: int = NEVER  # the action by which the program frees or overwrites it
    is_overwritten: bool = False
    handles: list[int] = field(default_factory=list)
    first_load: int = NEVER
    end: int = -1  # the action by which autograd is done with it


@dataclass(slots=True)
class Unit:
    """A call, and what running it again takes."""

    at: int  # action
    row: int
    name: str
    seconds: float
    reads: tuple[int, ...]  # results
    replaces: int = -1  # the result it overwrites: running it again takes that one's memory
    makes: list[int] = field(default_factory=list)  # results
    extra_bytes: int = 0  # in use while it runs, over what it makes


@dataclass(frozen=True)
class Lineage:
    units: list[Unit]
    results: list[Result]
    of_handle: dict[int, int]  # handle -> result


def trace_lineage(program: Program, costs: Costs, is_cuda: bool = False) -> Lineage:
    """Follow every storage through the program."""
    tracer = _Tracer(costs, is_cuda)
    for at, action in enumerate(program.actions):
        tracer.see(at, action)
    tracer.note_backward_of_unsaved()
    return Lineage(tracer.units, tracer.results, tracer.of_handle)


class _Tracer:
    def __init__(self, costs: Costs, is_cuda: bool) -> None:
        self.costs = costs
        self.is_cuda = is_cuda
        self.units: list[Unit] = []
        self.results: list[Result] = []
        self.of_handle: dict[int, int] = {}
        self._now: dict[int, int] = {}  # storage -> the result in it
        self._copies: dict[int, int] = {}  # storage made for a load -> result
        self._loads: list[int] = []  # actions
        self._call: Call | None = None
        self._call_at = 0
        self._read: list[int] = []
        self._born: list[int] = []
        self._blank: set[int] = set()  # results without content
        self._in_use = self._most = 0  # bytes, within the call

    def see(self, at: int, action: object) -> None:
        match action:
            case Call():
                self._call, self._call_at = action, at
                self._read = self._reads(action)
                self._born, self._in_use, self._most = [], 0, 0
            case Return():
                if self._call is not None:
                    self._end_call(at, self._call)
                self._call = None
            case Alloc():
                self._now[action.storage] = len(self.results)
                self.results.append(Result(action.storage, action.n_bytes, -1, at))
                self._born.append(action.storage)
                self._in_use += action.n_bytes
                self._most = max(self._most, self._in_use)
            case Free():
                self._free(at, action.storage)
            case Save():
                self._save(action)
            case Load():
                self._load(at, action)
            case Unsave() if action.handle in self.of_handle:
                result = self.results[self.of_handle[action.handle]]
                result.end = max(result.end, at)

    def _reads(self, call: Call) -> list[int]:
        base = call.name.replace("::", ".").split(".")[1] if "." in call.name else call.name
        hidden = HIDDEN_WRITES.get(base, ())
        return [
            self._now[storage]
            for i, storage in enumerate(call.inputs)
            if storage in self._now and i not in hidden
        ]

    def _free(self, at: int, storage: int) -> None:
        if storage in self._copies:
            result = self.results[self._copies.pop(storage)]
            result.end = max(result.end, at)
        elif storage in self._now:
            result = self.results[self._now.pop(storage)]
            result.gone = at
            self._in_use -= result.n_bytes

    def _save(self, action: Save) -> None:
        found = self._copies.get(action.storage, self._now.get(action.storage))
        if found is not None:
            self.of_handle[action.handle] = found
            self.results[found].handles.append(action.handle)

    def _load(self, at: int, action: Load) -> None:
        self._loads.append(at)
        found = self.of_handle.get(action.handle)
        if found is not None:
            result = self.results[found]
            result.first_load = min(result.first_load, at)
            if action.is_new:
                self._copies[action.storage] = found

    def _end_call(self, at: int, call: Call) -> None:
        made = [storage for storage in call.outputs if storage in self._born and storage in self._now]
        made = list(dict.fromkeys(made))
        written = list(dict.fromkeys(storage for storage in call.written if storage in self._now))
        if is_blank(call.name):
            self._blank.update(self._now[storage] for storage in made)
            return
        old = self._now[written[0]] if len(written) == 1 else -1
        if not made and not written:
            return
        seconds = self.costs.call(call)
        unit = Unit(self._call_at, call.row, call.name, seconds, ())
        index = len(self.units) if self._can_run_again(call, old) else -1
        reads = self._read
        if old >= 0 and (self._fills(call) or old in self._blank):
            reads = [result for result in reads if result != old]
        elif old >= 0:
            unit.replaces = old
        unit.reads = tuple(dict.fromkeys(reads))
        for storage in made:
            self.results[self._now[storage]].unit = index
            unit.makes.append(self._now[storage])
        for storage in written:
            if storage not in made:
                unit.makes.append(self._overwrite(at, storage, index))
        unit.extra_bytes = max(
            self._most - sum(self.results[self._now[storage]].n_bytes for storage in made), 0
        )
        if index >= 0:
            self.units.append(unit)

    def _overwrite(self, at: int, storage: int, unit: int) -> int:
        old = self.results[self._now[storage]]
        old.gone, old.is_overwritten = at, True
        self._now[storage] = len(self.results)
        self.results.append(Result(storage, old.n_bytes, unit, at))
        return self._now[storage]

    def _can_run_again(self, call: Call, old: int) -> bool:
        flags = CallFlag(call.flags)
        if CallFlag.GRAD not in flags or CallFlag.ODD in flags or not is_rerunnable(call.name, self.is_cuda):
            return False
        if not call.written:
            return True
        return old >= 0 and (self._fills(call) or (self.results[old].unit >= 0 and old not in self._blank))

    def _fills(self, call: Call) -> bool:
        return is_fill(call.name) and CallFlag.COVERS in CallFlag(call.flags)

    def note_backward_of_unsaved(self) -> None:
        """What is not saved has no load of its own: note when backward first wants anything after it was born."""
        position = len(self._loads) - 1
        for result in reversed(self.results):
            while position > 0 and self._loads[position - 1] > result.born:
                position -= 1
            if not result.handles and self._loads and self._loads[position] > result.born:
                result.first_load = self._loads[position]
