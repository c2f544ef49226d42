"""The two meanings of MindSpore's "with fragments".

    RecordedMemory ──> tape ──> MindSpore's pool on virtual memory ──> pages it mapped

Its dry run cannot map memory page by page, so it prints the span of the blocks it carved; a real run prints the pages it
mapped. Both use the same label.

    recording ──> tape ──> its last step again and again ──> what more steps would give

The span grows for a few steps, as blocks find other gaps than in the step before. A dry run of a few steps does not
show where it ends, so the last step is repeated: equal requests, and what was freed of the step before is freed of its
repetition.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from windtunnel.events.model import Kind
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import AllocationTape, TapeKind, play

__all__ = ["MANY_STEPS", "is_too_long_to_repeat", "peak_after_many_steps", "peak_in_pages"]

MANY_STEPS = 30
_MOST_REQUESTS = 1_000_000  # to repeat: a few seconds


def peak_in_pages(recorded: RecordedMemory, spec: str, conf: str, device: int = 0) -> int | None:
    """Return what a real device would print as "with fragments"; None if the allocator differs or counts pages already."""
    name, _, options = spec.partition(":")
    if name.strip() != "mindspore" or "enable_vmm" in options or "enable_vmm" in conf:
        return None
    if "block_size" in options or "task_sink" in options:
        return None  # these have no pages
    allocator = Allocator.from_spec("mindspore:enable_vmm=True", conf=conf)
    play(recorded.tape(device), allocator)
    return allocator.peak_reserved_bytes


def peak_after_many_steps(recorded: RecordedMemory, device: int = 0) -> int | None:
    """Return "with fragments" after MANY_STEPS steps; None if the last steps are not alike enough to tell."""
    tape = recorded.tape(device)
    steps = np.flatnonzero(recorded.recording.columns["kind"] == Kind.STEP)
    n_more = MANY_STEPS - len(steps)
    if len(steps) < 3 or n_more <= 0:
        return None
    places = np.searchsorted(tape.event, steps).tolist()
    if is_too_long_to_repeat(recorded, device):
        return None
    more = _repeated(tape, places, n_more)
    if more is None:
        return None
    allocator = recorded.make_allocator(None)
    play(_picked(tape, np.arange(places[-1])), allocator)
    play(more, allocator)
    return allocator.peak_reserved_bytes


def is_too_long_to_repeat(recorded: RecordedMemory, device: int = 0) -> bool:
    """Whether repeating the last step up to MANY_STEPS would take more requests than are played here."""
    steps = np.flatnonzero(recorded.recording.columns["kind"] == Kind.STEP)
    if len(steps) < 2:
        return False
    first, last = np.searchsorted(recorded.tape(device).event, steps[-2:]).tolist()
    return (last - first) * (MANY_STEPS - len(steps)) > _MOST_REQUESTS


def _repeated(tape: AllocationTape, ends: list[int], n_times: int) -> AllocationTape | None:
    """The requests of the last step that often, with new ids; `ends` is where each step ends.

    A step also frees what earlier steps allocated: its repetition frees the same place of a repetition as much earlier.
    """
    steps = [tape.id[a:b][tape.kind[a:b] == TapeKind.ALLOC] for a, b in pairwise(ends)]
    sizes = [tape.n_bytes[a:b][tape.kind[a:b] == TapeKind.ALLOC] for a, b in pairwise(ends)]
    if not np.array_equal(sizes[-1], sizes[-2]):
        return None
    place: dict[
        int, tuple[int, int]
    ] = {}  # id -> how many steps before the last it was allocated, and where in it
    for age, (allocated, size) in enumerate(zip(reversed(steps), reversed(sizes), strict=True)):
        if not np.array_equal(size, sizes[-1]):
            break
        place |= {id: (age, i) for i, id in enumerate(allocated.tolist())}
    freed = tape.id[ends[-2] : ends[-1]][tape.kind[ends[-2] : ends[-1]] == TapeKind.FREE]
    given_back = sum(int(sizes[-1][place[id][1]]) for id in freed.tolist() if id in place)
    if given_back != int(sizes[-1].sum()):
        return None  # it freed something from before the steps that are alike
    history = [allocated.tolist() for allocated in steps]
    rows, ids = [], []
    next_id = int(tape.id.max(initial=0)) + 1
    wanted = [(row, int(tape.id[row])) for row in range(ends[-2], ends[-1])]
    for _ in range(n_times):
        history.append(list(range(next_id, next_id + len(steps[-1]))))
        next_id += len(steps[-1])
        for row, id in wanted:
            if id >= 0 and id not in place:
                continue  # older than the steps that are alike: freed only once
            age, i = place.get(id, (0, 0))
            rows.append(row)
            ids.append(history[-1 - age][i] if id >= 0 else id)
    repeated = _picked(tape, np.array(rows, np.int64))
    return replace(repeated, id=np.array(ids, np.int64))


def _picked(tape: AllocationTape, rows: np.ndarray) -> AllocationTape:
    return AllocationTape(
        tape.kind[rows],
        tape.id[rows],
        tape.n_bytes[rows],
        tape.stream[rows],
        tape.persistent[rows],
        tape.event[rows],
    )
