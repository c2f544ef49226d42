"""torch.utils.checkpoint around blocks, simulated on a recording.

    Program, blocks ──> CheckpointPlan ──> account.play ──> time and peak

This follows torch's non-reentrant checkpoint: tensors saved inside a block are not kept, the block's inputs are. When
backward first needs a tensor of a block, its forward runs again up to its last save (torch stops early), and each saved
tensor is held until backward is done with it. Tensors saved by custom autograd functions, which the recording does not
show as saved, are dropped and recomputed in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from windtunnel.events.model import Phase
from windtunnel.remat.advisor.account import Account, Costs, Key, Plan
from windtunnel.remat.advisor.blocks import Block
from windtunnel.remat.simulated.program import Alloc, Call, Free, Op, Program, Return, Save, Unsave

__all__ = ["CheckpointPlan"]


class CheckpointPlan(Plan):
    def __init__(self, program: Program, costs: Costs, blocks: Sequence[Block]) -> None:
        self._program = program
        self._costs = costs
        self._blocks = sorted(blocks, key=lambda block: block.first)
        self._facts = [_BlockFacts() for _ in self._blocks]
        self._block_of_handle: dict[int, int] = {}
        self._begins = {block.first: i for i, block in enumerate(self._blocks)}
        self._ends = {block.end: i for i, block in enumerate(self._blocks)}
        self._find_facts()

    def begin(self, account: Account) -> None:
        self.account = account
        self.seconds = 0.0
        self._open = [set(facts.handles) for facts in self._facts]
        self._is_again = [False for _ in self._facts]
        self._hidden: dict[Key, int] = {}  # storage -> its block, until it is recomputed

    def before(self, at: int) -> None:
        ended = self._ends.get(at)
        if ended is not None:
            for storage in self._facts[ended].hidden:
                self.account.release(storage)
                self._hidden[storage] = ended
        begun = self._begins.get(at)
        if begun is not None and self._open[begun]:
            for storage in self._facts[begun].inputs:
                self.account.hold(storage)

    def save(self, handle: int, key: Key) -> None:
        if handle not in self._block_of_handle:
            self.account.hold(key)

    def load(self, handle: int, key: Key) -> Key:
        block = self._block_of_handle.get(handle)
        if block is None:
            return key
        if not self._is_again[block]:
            self._is_again[block] = True
            self._run_again(block)
        return self._key(block, key)

    def unsave(self, handle: int, key: Key) -> None:
        block = self._block_of_handle.get(handle)
        if block is None:
            self.account.release(key)
            return
        if self._is_again[block]:
            self.account.release(self._key(block, key))
        self._open[block].discard(handle)
        if not self._open[block]:
            for storage in self._facts[block].inputs:
                self.account.release(storage)

    def free(self, key: Key) -> None:
        block = self._hidden.pop(key, None)
        self.account.release(key if block is None else ("again", block, key))

    def _run_again(self, block: int) -> None:
        facts, account = self._facts[block], self.account
        here: set[int] = set()
        is_in_call = False
        actions: tuple[Any, ...] = self._program.actions  # dispatched on `kind`
        for action in actions[self._blocks[block].first : facts.stop]:
            kind = type(action)
            if kind is Call:
                self.seconds += self._costs.call(action)
                is_in_call = True
            elif kind is Return:
                is_in_call = False
            elif kind is Op and not is_in_call:
                self.seconds += self._costs.op(action.signature)
            elif kind is Alloc:
                account.hold(("again", block, action.storage), action.n_bytes)
                here.add(action.storage)
            elif kind is Free and action.storage in here:
                account.release(("again", block, action.storage))
                here.remove(action.storage)
            elif kind is Save and action.handle in self._open[block]:
                account.hold(self._key(block, action.storage))
        for storage in here - facts.hidden:
            account.release(("again", block, storage))

    def _key(self, block: int, key: Key) -> Key:
        return ("again", block, key) if key in self._facts[block].made else key

    # -- what each block reads, makes and saves --------------------------------------------------------------

    def _find_facts(self) -> None:
        firsts = [block.first for block in self._blocks]
        made_in: dict[int, int] = {}
        alive: set[int] = set()
        phases = self._program.recording.columns["phase"]
        actions: tuple[Any, ...] = self._program.actions  # dispatched on `kind`
        for at, action in enumerate(actions):
            place = bisect_left(firsts, at + 1) - 1
            block = place if place >= 0 and at < self._blocks[place].end else -1
            kind = type(action)
            if kind is Alloc:
                alive.add(action.storage)
                if block >= 0:
                    made_in[action.storage] = block
                    self._facts[block].made.add(action.storage)
                    self._facts[block].hidden.add(action.storage)
            elif kind is Call:
                self._note_call(block, action, made_in, alive)
            elif kind is Save and block >= 0:
                self._facts[block].handles.append(action.handle)
                self._facts[block].stop = at + 1
                self._block_of_handle[action.handle] = block
            elif kind is Unsave and block >= 0 and self._block_of_handle.get(action.handle) == block:
                self._facts[block].handles.remove(action.handle)  # its graph did not outlive the block
                del self._block_of_handle[action.handle]
            elif kind is Free:
                alive.discard(action.storage)
                maker = made_in.get(action.storage, -1)
                if maker >= 0 and phases[action.row] != Phase.BACKWARD:
                    self._facts[maker].hidden.discard(action.storage)
        for each, facts in zip(self._blocks, self._facts, strict=True):
            facts.hidden -= alive  # the program holds it to the end
            if facts.hidden:
                facts.stop = each.end
            if not facts.handles:
                facts.hidden.clear()

    def _note_call(self, block: int, call: Call, made_in: dict[int, int], alive: set[int]) -> None:
        for storage in call.inputs:
            maker = made_in.get(storage, -1)
            if maker != block:
                if maker >= 0:
                    self._facts[maker].hidden.discard(storage)
                if block >= 0 and storage in alive and storage not in self._facts[block].inputs:
                    self._facts[block].inputs.append(storage)


class _BlockFacts:
    def __init__(self) -> None:
        self.made: set[int] = set()
        self.inputs: list[int] = []  # storages from outside that it reads
        self.handles: list[int] = []
        self.hidden: set[int] = set()  # storages that only autograd can be holding until backward
        self.stop = 0  # the action before which torch stops running it again
