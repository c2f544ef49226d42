"""Labels of allocations: one label for all equal ones, each text stored once, and the Python stacks behind them.

    recording, lifetimes ──> label_allocations ──> the label of each, Labels, texts
    frames in use ──> frame_columns ──> FrameColumns

Training steps repeat: half a million allocations have a few thousand labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Recording, Role
from windtunnel.memory.attribution import ROLES, module_path, output_slots, short_op, user_line
from windtunnel.memory.lifetime import Lifetimes

__all__ = ["FrameColumns", "Labels", "Texts", "frame_columns", "label_allocations", "number_rows"]


class Texts:
    """Each text once, by number; number 0 is the empty text."""

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
    parent: np.ndarray  # -1: outermost


def label_allocations(
    recording: Recording, lives: Lifetimes, chosen: np.ndarray, new_frames: np.ndarray, texts: Texts
) -> tuple[np.ndarray, Labels]:
    """Return the label of each chosen allocation, and the labels; `new_frames` is from `frame_columns`."""
    made_by = [lives.signature[chosen], output_slots(recording, lives, chosen)]
    first, result = number_rows(made_by)
    ops, shapes = [], []
    for signature, slot in zip(*(column[first].tolist() for column in made_by), strict=True):
        ops.append(texts(short_op(recording.signatures[signature].name) if signature >= 0 else ""))
        spec = recording.signatures[signature].outputs[slot] if slot >= 0 else None
        size = "x".join(map(str, spec.shape)) or "scalar" if spec is not None else ""
        shapes.append(texts(f"{size} {spec.dtype}" if spec is not None else ""))
    booked_on = [lives.module[chosen], lives.name[chosen], lives.role[chosen]]
    first, place = number_rows(booked_on)
    paths = [
        texts(module_path(recording, module, name, Role(role)))
        for module, name, role in zip(*(column[first].tolist() for column in booked_on), strict=True)
    ]
    names, name = np.unique(lives.name[chosen], return_inverse=True)
    frames, frame = np.unique(lives.frame[chosen], return_inverse=True)
    role_numbers = np.zeros(max(Role) + 1, np.int64)
    role_numbers[list(ROLES)] = np.arange(len(ROLES))
    columns = [
        _numbers(texts(recording.name(i)) for i in names.tolist())[name],
        _numbers(ops)[result],
        _numbers(paths)[place],
        _numbers(shapes)[result],
        _numbers(texts(user_line(recording, i)) for i in frames.tolist())[frame],
        role_numbers[lives.role[chosen]],
        new_frames[lives.frame[chosen]],
    ]
    # Labels with the same text are one: they do not include scalars of an operator, such as the number of a step.
    first, label = number_rows(columns)
    return label, Labels(*(column[first] for column in columns))


def _numbers(found: Iterable[int]) -> np.ndarray:
    return np.array(list(found), np.int64)


def number_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct rows of a table: return the first row of each number, and the number of each row.

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
