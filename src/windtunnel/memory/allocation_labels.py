"""What to call each allocation: a label for all that are alike, every text once, and the Python stacks behind them.

    recording, lifetimes ──> label_allocations ──> LabelledAllocations (a label for each), Labels, texts
    frames in use ──> frame_columns ──> FrameColumns

A training step repeats itself: half a million allocations have a few thousand labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Recording, Role
from windtunnel.memory.attribution import ROLES, module_path, output_slots, short_op, user_line
from windtunnel.memory.lifetime import Lifetimes

__all__ = ["FrameColumns", "Labels", "Texts", "frame_columns", "label_allocations", "number_rows"]


class Texts:
    """Every text once; number 0 is no text."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


@dataclass(frozen=True)
class Labels:
    """Parallel columns, one element per label. All but `role` and `frame` are numbers of texts."""

    name: np.ndarray  # of a weight, its gradient or its optimizer state
    op: np.ndarray
    module: np.ndarray  # the one its bytes are booked on
    shape: np.ndarray  # "4096x3584 bfloat16"
    where: np.ndarray  # "train.py:41"
    role: np.ndarray  # index into ROLES
    frame: np.ndarray  # index into FrameColumns, -1: unknown

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class FrameColumns:
    """Lines of Python and their callers; `file` and `function` are numbers of texts."""

    file: np.ndarray
    function: np.ndarray
    line: np.ndarray
    parent: np.ndarray  # -1: nobody called it


def label_allocations(
    recording: Recording, lives: Lifetimes, chosen: np.ndarray, new_frames: np.ndarray, texts: Texts
) -> tuple[np.ndarray, Labels]:
    """The label of each of the chosen lives, and the labels; `new_frames` from `frame_columns`."""
    slots = output_slots(recording, lives, chosen)
    columns = [c[chosen] for c in (lives.name, lives.module, lives.role, lives.signature, lives.frame)]
    columns.append(slots)
    first, label = number_rows(columns)
    role_number = {int(role): i for i, role in enumerate(ROLES)}
    lines: dict[int, int] = {}
    rows: list[tuple[int, ...]] = []
    for name, module, role, signature, frame, slot in zip(*(c[first].tolist() for c in columns), strict=True):
        if frame not in lines:
            lines[frame] = texts(user_line(recording, frame))
        known = recording.signatures[signature] if signature >= 0 else None
        spec = known.outputs[slot] if known is not None and slot >= 0 else None
        shape = "x".join(map(str, spec.shape)) or "scalar" if spec is not None else ""
        rows.append((
            texts(recording.name(name)),
            texts(short_op(known.name) if known is not None else ""),
            texts(module_path(recording, module, name, Role(role))),
            texts(f"{shape} {spec.dtype}" if spec is not None else ""),
            lines[frame],
            role_number[role],
            int(new_frames[frame]),
        ))  # fmt: skip
    table = np.array(rows, np.int64).reshape(-1, 7)
    # Scalars of an operator, such as the number of a step, are part of its signature but not of what is told.
    once, again = number_rows(table.T)
    return again[label], Labels(*table[once].T)


def number_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a table numbered by what they say: the first row of each number, and the number of each row.

    Numbers are given in the order of first appearance.
    """
    n_rows = len(columns[0])
    code = np.zeros(n_rows, np.int64)
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if n_rows else (0, 0)
        # Codes are below the number of rows, so the product stays far from overflowing.
        _, code = np.unique(code * (high - low + 1) + (column.astype(np.int64) - low), return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[code.reshape(-1)]


def frame_columns(
    recording: Recording, used: Sequence[np.ndarray], texts: Texts
) -> tuple[np.ndarray, FrameColumns]:
    """The frames in use with all their callers, and for each frame of the recording its new number (or -1).

    The numbers have one element more, -1, so that frame -1 stays -1.
    """
    frames = recording.frames
    parent = np.array([frame.parent for frame in frames] + [-1], np.int64)
    is_used = np.zeros(len(frames) + 1, bool)
    for rows in used:
        is_used[rows] = True
    while not is_used[parent[is_used]].all():
        is_used[parent[is_used]] = True
    is_used[-1] = False
    kept = np.flatnonzero(is_used)
    numbers = np.full(len(frames) + 1, -1)
    numbers[kept] = np.arange(len(kept))
    columns = FrameColumns(
        np.array([texts(frames[i].file) for i in kept.tolist()], np.int64),
        np.array([texts(frames[i].function) for i in kept.tolist()], np.int64),
        np.array([frames[i].line for i in kept.tolist()], np.int64),
        numbers[parent[kept]],
    )
    return numbers, columns
