"""Find the repeated blocks of a model from the names of its modules: what people checkpoint one by one.

    module paths, what autograd saves ──> families of numbered siblings ──> those that leave least to hold ──> Block

`layers.0`, `layers.1` are siblings, so are `layer1`, `layer2`. A family is all numbered siblings of one name whose
parents differ in numbers only. Which families to checkpoint follows from bytes: with a family checkpointed, backward
holds the inputs of its blocks, everything saved elsewhere, and the inside of one block at a time. A block
whose input is overwritten (an in-place ReLU by itself) cannot run again from it, and is left out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from windtunnel.events.model import Kind, Phase
from windtunnel.remat.advisor.account import last_step
from windtunnel.remat.simulated.program import Alloc, Call, Program, Save

__all__ = ["Block", "find_blocks", "in_every_step", "name_blocks"]

_NUMBER = re.compile(r"\d+")
_WORTH_A_FAMILY = 0.05  # of everything saved: what it must spare to be checkpointed as well
_LAST_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True, slots=True)
class Block:
    """One run of a module's forward, as actions of the program."""

    path: str
    first: int
    end: int  # the action after its last


def find_blocks(program: Program) -> tuple[Block, ...]:
    """The blocks of the last step worth checkpointing, in order; none if nothing repeats."""
    facts = _Facts(program)
    families = _families(program, facts)
    chosen: dict[str, list[Block]] = {}
    least = everything = facts.footprint([])
    while True:
        options = [name for name in families if not any(_overlap(name, other) for other in chosen)]
        taken = [block for blocks in chosen.values() for block in blocks]
        found = [(facts.footprint(taken + families[name]), name) for name in options]
        if not found or min(found)[0] > least - everything * _WORTH_A_FAMILY:
            return tuple(sorted(taken, key=lambda block: block.first))
        least, name = min(found)
        chosen[name] = families[name]


def in_every_step(program: Program, blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The same modules in all steps, in order."""
    paths = {block.path for block in blocks}
    return tuple(block for block in _spans(program, from_the_start=True) if block.path in paths)


def name_blocks(blocks: tuple[Block, ...]) -> str:
    """How many of which: `12 blocks, layers.0 to layers.11`."""
    paths = list(dict.fromkeys(block.path for block in blocks))
    if not paths:
        return "no repeated blocks"
    names = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
    return f"{len(paths)} {'block' if len(paths) == 1 else 'blocks'}, {names}"


def _families(program: Program, facts: _Facts) -> dict[str, list[Block]]:
    """Pattern of the path, `layers.#`, -> its blocks; a family has two members or more."""
    found: dict[str, list[Block]] = {}
    for block in _spans(program):
        if _LAST_NUMBER.search(block.path) and not facts.loses_input(block):
            found.setdefault(_NUMBER.sub("#", block.path), []).append(block)
    return {name: blocks for name, blocks in found.items() if len({b.path for b in blocks}) > 1}


def _spans(program: Program, *, from_the_start: bool = False) -> list[Block]:
    """Every run of every module in the forward of the last step, or of all."""
    columns = program.recording.columns
    kinds, phases, subjects = columns["kind"], columns["phase"], columns["subject"]
    first, end = last_step(program)
    first = 0 if from_the_start else first
    rows = [action.row for action in program.actions]
    if first >= end:
        return []
    is_border = (kinds == Kind.MODULE_ENTER) | (kinds == Kind.MODULE_EXIT)
    spans, entered = [], []
    for row in (is_border & (phases == Phase.FORWARD)).nonzero()[0].tolist():
        if row > rows[end - 1]:
            break
        if kinds[row] == Kind.MODULE_ENTER:
            entered.append((int(subjects[row]), row))
        elif entered and entered[-1][0] == subjects[row]:
            module, begin = entered.pop()
            block = Block(program.recording.name(module), bisect_left(rows, begin), bisect_left(rows, row))
            if block.first >= first and block.first < block.end:
                spans.append(block)
    return sorted(spans, key=lambda block: block.first)


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


class _Facts:
    """Where storages are allocated, read and saved in the last step."""

    def __init__(self, program: Program) -> None:
        first, end = last_step(program)
        self.n_bytes: dict[int, int] = {}
        self.born: dict[int, int] = {}
        self.saves: list[tuple[int, int]] = []  # action, storage
        self.reads: list[tuple[int, int]] = []
        self.last_write: dict[int, int] = {}
        for at, action in enumerate(program.actions[first:end], first):
            if type(action) is Alloc:
                self.born[action.storage], self.n_bytes[action.storage] = at, action.n_bytes
            elif type(action) is Save and action.storage in self.born:
                self.saves.append((at, action.storage))
            elif type(action) is Call:
                self.reads += [(at, storage) for storage in action.inputs if storage in self.born]
                self.last_write.update((s, at) for s in action.written if s in self.born)

    def loses_input(self, block: Block) -> bool:
        """Whether what it reads is overwritten, by itself or later: it could not run again from it.

        Of what was made in this step; counters and running statistics are older.
        """
        reads = self.reads[
            bisect_left(self.reads, (block.first, -1)) : bisect_left(self.reads, (block.end, -1))
        ]
        inputs = {storage for _, storage in reads if self.born[storage] < block.first}
        return any(self.last_write.get(storage, -1) >= block.first for storage in inputs)

    def footprint(self, blocks: list[Block]) -> int:
        """About what activations take at most with these blocks checkpointed."""
        ordered = sorted(blocks, key=lambda block: block.first)
        firsts = [block.first for block in ordered]

        def block_at(action: int) -> int:
            position = bisect_left(firsts, action + 1) - 1
            return position if position >= 0 and action < ordered[position].end else -1

        inside: list[set[int]] = [set() for _ in ordered]
        held: set[int] = set()
        for at, storage in self.saves:
            block = block_at(at)
            if block >= 0 and block_at(self.born[storage]) == block:
                inside[block].add(storage)
            else:
                held.add(storage)
        held |= {s for at, s in self.reads if block_at(at) >= 0 and block_at(self.born[s]) != block_at(at)}
        largest = max((self._total(storages - held) for storages in inside), default=0)
        return self._total(held) + largest

    def _total(self, storages: set[int]) -> int:
        return sum(self.n_bytes[storage] for storage in storages)
