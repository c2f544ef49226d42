"""All that MindSpore wrote about one rank, in the order in which it happened.

files below a folder ──> find_tracked ──> TrackedProgram ──> in_order(marks) ──> marks, births, deaths, operators
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.capture.tracker_files import (
    Block,
    Communication,
    Task,
    read_blocks,
    read_communication,
    read_tasks,
)
from windtunnel.capture.tracker_graph import TrackedOp, read_operators
from windtunnel.capture.tracker_marks import Mark

__all__ = ["Birth", "Death", "TrackedProgram", "find_tracked"]


@dataclass(frozen=True, slots=True)
class Birth:
    block: Block


@dataclass(frozen=True, slots=True)
class Death:
    block: Block


@dataclass(frozen=True)
class TrackedProgram:
    """Everything MindSpore wrote about one rank."""

    blocks: list[Block]
    operators: list[TrackedOp]
    tasks: dict[int, Task]
    communication: list[Communication]

    def in_order(self, marks: Iterable[Mark] = ()) -> Iterator[Mark | Birth | Death | tuple[int, TrackedOp]]:
        """In the order in which it happened; operators come with their number, after their own allocations.

        The clock goes on before a birth or a death takes its tick, and after a task took its own. So of one tick a
        birth or death comes first, then a mark, then a task.
        """
        entries: list[tuple[float, int, Mark | Birth | Death | tuple[int, TrackedOp]]] = []
        for block in self.blocks:
            entries.append((block.start - 0.5, len(entries), Birth(block)))
            if block.end is not None:
                entries.append((block.end - 0.5, len(entries), Death(block)))
        now = 0.0
        for number, operator in enumerate(self.operators):
            # The file's order is the order of execution, its ticks are not: events stand before their collective.
            now = max(now, operator.tick, *(block - 0.5 for block in operator.written))
            entries.append((now, len(entries), (number, operator)))
        for mark in marks:
            entries.append((mark.tick - 0.25, len(entries), mark))
        entries.sort(key=lambda entry: entry[:2])
        return (entry[-1] for entry in entries)

    def owners(self) -> dict[int, int]:
        """Tick of allocation -> the operator that made the block: the first to write it without having read it.

        The tracker itself books a block to the task it heard of last, which is another one for every operator that
        announces itself only after it has allocated.
        """
        found: dict[int, int] = {}
        for number, operator in enumerate(self.operators):
            for block in operator.written:
                if block not in operator.read:
                    found.setdefault(block, number)
        return found


def find_tracked(folder: Path) -> TrackedProgram | None:
    """Read the files below a folder, wherever in it MindSpore put them; None if there are none."""
    found = sorted(folder.rglob("memory_block.csv"))
    if not found:
        return None
    home = found[0].parent
    graph, tasks = home / "tracker_graph.ir", home / "task.csv"
    orders = sorted(folder.rglob("comm_execute_order.csv"))
    operators = list(read_operators(graph)) if graph.exists() else []
    return TrackedProgram(
        _with_kinds(list(read_blocks(found[0])), operators),
        operators,
        {task.tick: task for task in read_tasks(tasks)} if tasks.exists() else {},
        list(read_communication(orders[0])) if orders else [],
    )


def _with_kinds(blocks: list[Block], operators: list[TrackedOp]) -> list[Block]:
    """Of the first operator's blocks the tracker says nothing: what operators list them as says it."""
    if all(block.kind for block in blocks):
        return blocks
    written = {block for operator in operators for block in operator.written if block not in operator.read}
    read = {block for operator in operators for block in operator.read}
    kinds = dict.fromkeys(read, "PyNativeInput") | dict.fromkeys(written, "PyNativeOutput")
    return [block if block.kind else replace(block, kind=kinds.get(block.start, "")) for block in blocks]
