"""The lifetime of each storage, the operator that made it, and its role.

    recording (ALLOC, FREE, MARK, OP rows) ──> Lifetimes: one element per allocation, in order

A storage number can be allocated more than once (`storage.resize_` frees and allocates again); each allocation is an
element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Role
from windtunnel.events.recomputation import is_on_recomputed_stack
from windtunnel.memory.inferred_roles import NEVER, infer_roles

__all__ = ["ALIVE", "Lifetimes", "lifetimes_of", "steps_of"]

_CLONES = ("aten.clone.default", "aten._to_copy.default", "aten.copy_.default")
_WEIGHTS = (int(Role.WEIGHT), int(Role.FROZEN))
ALIVE = -1  # `death` (the row of the free) of a storage that was never freed


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Parallel arrays, one element per allocation, ordered by `birth`."""

    storage: np.ndarray
    n_bytes: np.ndarray  # as requested; rounding belongs to the allocator
    birth: np.ndarray  # row of its allocation in the recording
    death: np.ndarray  # row of its free, or ALIVE
    role: np.ndarray  # Role, never UNKNOWN
    name: np.ndarray  # what a MARK called it: an index into `Recording.names`, or -1
    module: np.ndarray  # an index into `Recording.names`, or -1
    phase: np.ndarray  # at allocation
    op: np.ndarray  # id of the operator that requested it, or -1
    signature: np.ndarray  # of that operator: an index into `Recording.signatures`, or -1
    op_row: np.ndarray  # row of that operator, or -1
    device: np.ndarray
    stream: np.ndarray
    frame: np.ndarray
    step: np.ndarray  # the step of its allocation, from 1

    def __len__(self) -> int:
        return len(self.storage)


def lifetimes_of(recording: Recording) -> Lifetimes:
    """Pair every allocation with its free and determine its role.

    Marks override the role given at allocation, and the last mark wins. `infer_roles` settles what is still unknown.
    """
    columns = recording.columns
    kind, subject = columns["kind"], columns["subject"]
    birth = np.flatnonzero(kind == Kind.ALLOC)
    storage = subject[birth]
    death, next_birth = _deaths(kind, subject, birth)
    marked, name = _marks(columns, storage, next_birth)
    role = np.where(marked != Role.UNKNOWN, marked, columns["role"][birth])
    op = columns["extra"][birth]
    is_op = kind == Kind.OP
    if (
        recording.header.get("framework") == "mindspore"
    ):  # there a collective allocates its own result, and has its own id
        is_op |= kind == Kind.COLLECTIVE
    op_row = _op_rows(is_op, subject, op)
    signature = np.where(op_row >= 0, columns["value"][op_row], -1)
    phase = columns["phase"][birth].copy()
    frame = columns["frame"][birth]
    phase[is_on_recomputed_stack(recording.frames, frame) & (phase == Phase.BACKWARD)] = Phase.FORWARD
    settled = infer_roles(role, phase, birth, death, columns)
    settled[_copies_of_weights(recording, storage, settled, role, birth, death, op_row)] = Role.COPY
    role = settled
    return Lifetimes(
        storage, columns["value"][birth], birth, np.where(death == NEVER, ALIVE, death), role, name,
        columns["module"][birth], phase, op, signature, op_row, columns["device"][birth],
        columns["stream"][birth], frame, steps_of(recording, birth),
    )  # fmt: skip


def steps_of(recording: Recording, rows: np.ndarray) -> np.ndarray:
    """The step each row belongs to: a STEP row closes its step, and what follows is the next one.

    What the program does after its last step (clearing gradients, printing the loss) still belongs to that
    step, unless it enters a module or goes backward again: then another step has begun.
    """
    kind, phase = recording.columns["kind"], recording.columns["phase"]
    ends = np.flatnonzero(kind == Kind.STEP)
    if len(ends) == 0:
        return np.ones(len(rows), np.int64)
    after = slice(int(ends[-1]), None)
    begins_again = (kind[after] == Kind.MODULE_ENTER) | (
        (kind[after] == Kind.OP) & (phase[after] == Phase.BACKWARD)
    )
    numbers = recording.columns["subject"][ends]
    numbers = np.append(numbers, numbers[-1] + int(begins_again.any()))
    return numbers[np.searchsorted(ends, rows, side="left")]


def _copies_of_weights(
    recording: Recording,
    storage: np.ndarray,
    settled: np.ndarray,
    role: np.ndarray,
    birth: np.ndarray,
    death: np.ndarray,
    op_row: np.ndarray,
) -> np.ndarray:
    """Which allocations are clones of weights that the program keeps over an optimizer step: averages, old policies."""
    is_clone = np.array([s.name in _CLONES for s in recording.signatures], bool)
    ends = np.append(np.flatnonzero(recording.columns["kind"] == Kind.STEP), NEVER)
    stays = (role == Role.UNKNOWN) & (op_row >= 0) & (ends[np.searchsorted(ends, birth)] < death)
    found = np.flatnonzero(stays)
    found = found[is_clone[recording.columns["value"][op_row[found]]]]
    weights = np.unique(storage[np.isin(settled, _WEIGHTS)])
    offsets, ids = recording.inputs
    first = offsets[op_row[found]]
    found, first = found[first < len(ids)], first[first < len(ids)]
    return found[np.isin(ids[first], weights)]


def _deaths(kind: np.ndarray, subject: np.ndarray, birth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each allocation the rows of its free and of the next allocation of the same storage (or NEVER)."""
    rows = np.flatnonzero((kind == Kind.ALLOC) | (kind == Kind.FREE))
    order = np.lexsort((rows, subject[rows]))
    rows = rows[order]
    owner, is_birth = subject[rows], kind[rows] == Kind.ALLOC
    follows = np.zeros(len(rows), bool)
    follows[:-1] = owner[1:] == owner[:-1]
    after = np.full(len(rows), NEVER)
    after[:-1] = rows[1:]
    # ALLOC, FREE: freed. ALLOC, ALLOC: never freed, as far as the recording shows.
    dies = np.zeros(len(rows), bool)
    dies[:-1] = is_birth[:-1] & follows[:-1] & ~is_birth[1:]
    position = np.searchsorted(birth, rows[is_birth])
    death = np.full(len(birth), NEVER)
    death[position] = np.where(dies, after, NEVER)[is_birth]
    next_birth = np.full(len(birth), NEVER)
    born_owner, born_row = owner[is_birth], rows[is_birth]
    again = np.flatnonzero(born_owner[1:] == born_owner[:-1])
    next_birth[position[again]] = born_row[again + 1]
    return death, next_birth


def _marks(
    columns: dict[str, np.ndarray], storage: np.ndarray, next_birth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The role of the last mark before a storage's next allocation, and the last name; both survive a resize."""
    marks = np.flatnonzero(columns["kind"] == Kind.MARK)
    last = _last_before(marks, columns["subject"], storage, next_birth)
    role = np.where(last >= 0, columns["role"][last], np.uint8(Role.UNKNOWN))
    last = _last_before(marks[columns["value"][marks] >= 0], columns["subject"], storage, next_birth)
    return role, np.where(last >= 0, columns["value"][last], -1)


def _last_before(rows: np.ndarray, subject: np.ndarray, storage: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """For each storage the last of `rows` about it that comes before its limit, or -1."""
    if len(rows) == 0:
        return np.full(len(storage), -1)
    rows = rows[np.lexsort((rows, subject[rows]))]
    # One sorted key for (storage, row), so that a single search finds the last one.
    span = len(subject) + 1
    ids, owner = np.unique(subject[rows], return_inverse=True)
    where = np.searchsorted(ids, storage)
    is_known = ids[np.minimum(where, len(ids) - 1)] == storage
    last = np.searchsorted(owner * span + rows, where * span + np.minimum(limit, span - 1)) - 1
    is_known &= (last >= 0) & (owner[np.maximum(last, 0)] == where)
    return np.where(is_known, rows[np.maximum(last, 0)], -1)


def _op_rows(is_op: np.ndarray, subject: np.ndarray, op: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(is_op)
    if len(rows) == 0:
        return np.full(len(op), -1)
    ids = subject[rows]
    order = np.argsort(ids, kind="stable")
    found = np.minimum(np.searchsorted(ids, op, sorter=order), len(ids) - 1)
    return np.where(ids[order[found]] == op, rows[order[found]], -1)
