"""Everything that MindSpore wrote about one rank, in the order in which it happened.

files below a folder ──> find_tracked ──> TrackedProgram ──> in_order(marks) ──> marks, allocations, frees, operators
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.capture.mindspore.tracker.files import (
    Block,
    Communication,
    Task,
    read_blocks,
    read_communication,
    read_tasks,
)
from windtunnel.capture.mindspore.tracker.graph import TrackedOp, read_operators
from windtunnel.capture.mindspore.tracker.marks import Mark

__all__ = ["SNAPSHOT", "Allocated", "Freed", "TrackedProgram", "find_tracked"]

SNAPSHOT = "snapshot"  # folder of files that were written while the program ran


@dataclass(frozen=True, slots=True)
class Allocated:
    block: Block


@dataclass(frozen=True, slots=True)
class Freed:
    block: Block


@dataclass(frozen=True)
class TrackedProgram:
    """Everything MindSpore wrote about one rank."""

    blocks: list[Block]
    operators: list[TrackedOp]
    tasks: dict[int, Task]
    communication: list[Communication]

    def in_order(
        self, marks: Iterable[Mark] = ()
    ) -> Iterator[Mark | Allocated | Freed | tuple[int, TrackedOp]]:
        """All events in the order in which they happened; operators have a number, and follow their own allocations.

        The clock advances before an allocation or a free takes its tick, and after a task took its own. So at the same
        tick, an allocation or free comes first, then a mark, then a task.
        """
        entries: list[tuple[float, int, Mark | Allocated | Freed | tuple[int, TrackedOp]]] = []
        for block in self.blocks:
            entries.append((block.start - 0.5, len(entries), Allocated(block)))
            if block.end is not None:
                entries.append((block.end - 0.5, len(entries), Freed(block)))
        now = 0.0
        for number, operator in enumerate(self.operators):
            # The file is in the order of execution, its ticks are not: events precede their collective.
            now = max(now, operator.tick, *(block - 0.5 for block in operator.written))
            entries.append((now, len(entries), (number, operator)))
        for mark in marks:
            entries.append((mark.tick - 0.25, len(entries), mark))
        entries.sort(key=lambda entry: entry[:2])
        return (entry[-1] for entry in entries)

    def owners(self) -> dict[int, int]:
        """Tick of allocation -> the operator that made the block: the first to write it without having read it.

        The tracker itself attributes a block to the last task it knows, which is the wrong one for every operator that
        registers only after it has allocated.
        """
        found: dict[int, int] = {}
        for number, operator in enumerate(self.operators):
            for block in operator.written:
                if block not in operator.read:
                    found.setdefault(block, number)
        return found


def find_tracked(folder: Path) -> TrackedProgram | None:
    """Read the files below a folder, wherever in it MindSpore put them; None if there are none.

    Files without the graph of operators are not those of a program's end: then the last snapshot is complete, and a
    newer one may not be.
    """
    found = sorted(path.parent for path in folder.rglob("memory_block.csv"))
    if not found:
        return None
    home = min(found, key=lambda path: (not (path / "tracker_graph.ir").exists(), path.name != SNAPSHOT))
    graph, tasks = home / "tracker_graph.ir", home / "task.csv"
    orders = sorted(folder.rglob("comm_execute_order.csv"))
    operators = list(read_operators(graph)) if graph.exists() else []
    return TrackedProgram(
        _with_kinds(list(read_blocks(home / "memory_block.csv")), operators),
        operators,
        {task.tick: task for task in read_tasks(tasks)} if tasks.exists() else {},
        list(read_communication(orders[0])) if orders else [],
    )


def _with_kinds(blocks: list[Block], operators: list[TrackedOp]) -> list[Block]:
    """The tracker has no kinds for the first operator's blocks: infer them from how operators use them."""
    if all(block.kind for block in blocks):
        return blocks
    written = {block for operator in operators for block in operator.written if block not in operator.read}
    read = {block for operator in operators for block in operator.read}
    kinds = dict.fromkeys(read, "PyNativeInput") | dict.fromkeys(written, "PyNativeOutput")
    return [block if block.kind else replace(block, kind=kinds.get(block.start, "")) for block in blocks]
