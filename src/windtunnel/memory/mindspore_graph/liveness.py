"""Who is alive when: from the operators of a static graph to the requests its allocator would see.

    GraphProgram (+ order of execution) ──> allocated before its operator, freed after its last reader ──> AllocationTape

Parameters come first and stay, inputs come next and go when the step ends. An operator's results are asked for,
it runs, and what nothing reads any more goes back. What a collective reads stays until its result is first
read: it runs on a stream of its own, and only then does the main stream wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.memory.mindspore_graph.program import GraphProgram, Step
from windtunnel.memory.tape import AllocationTape, Request, TapeKind, make_tape

__all__ = ["tape_of_program"]


def tape_of_program(
    program: GraphProgram, steps: Sequence[Step], notes: tuple[str, ...] = ()
) -> AllocationTape:
    """The requests of one training step. An event of the tape is a line of the file."""
    requests: list[Request] = []
    for wanted in (True, False):
        for id, storage in enumerate(program.storages):
            if (storage.is_kept and wanted) or (storage.is_input and not wanted):
                requests.append((TapeKind.ALLOC, id, storage.n_bytes, 0, True, storage.line))
    goes_after = _deaths(program, steps)
    for position, step in enumerate(steps):
        for id in step.makes:
            requests.append((TapeKind.ALLOC, id, program.storages[id].n_bytes, 0, False, step.line))
        for id in goes_after.get(position, ()):
            requests.append((TapeKind.FREE, id, 0, 0, False, step.line))
    return make_tape(requests, notes)


def _deaths(program: GraphProgram, steps: Sequence[Step]) -> dict[int, list[int]]:
    """Position of a step -> the storages that go back after it."""
    first_read: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for position, step in enumerate(steps):
        for id in step.reads:
            first_read.setdefault(id, position)
            last_read[id] = position
        for id in step.makes:
            last_read[id] = position  # until somebody reads it
    waits: dict[str, int] = {}  # group -> where the main stream next waits for it, seen from the end
    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        if step.group is not None:
            reads = [first_read[id] for id in step.makes if id in first_read]
            waits[step.group] = min([*reads, waits.get(step.group, len(steps))])
            for id in (*step.reads, *step.makes):
                last_read[id] = max(last_read[id], waits[step.group] - 1)
    deaths: dict[int, list[int]] = {}
    for id, position in sorted(last_read.items()):
        storage = program.storages[id]
        if not (storage.is_kept or storage.is_input or id in program.results):
            deaths.setdefault(position, []).append(id)
    return deaths
