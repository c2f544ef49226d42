"""The labels of slices in a trace: name, module, shapes, source line, bytes.

    recording, program ──> distinct (operator, module, phase, line, group) ──> a Label for each, an index for each element

A program repeats few distinct calls many times, so each label is made once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from windtunnel.cluster.program import RankTimeline, Work
from windtunnel.events.model import Kind, Phase, Recording, TensorSpec
from windtunnel.memory.attribution import short_op, user_line
from windtunnel.report.rank_spans import rank_ranges
from windtunnel.report.trace.model import Label

__all__ = ["ElementLabels", "LabelTable"]

_COMMUNICATION = (Work.COLLECTIVE, Work.SEND, Work.RECEIVE)
_NAMES = {
    Work.WAIT: "wait for communication",
    Work.SYNC: "synchronize",
    Work.RECORD_EVENT: "record event",
    Work.WAIT_EVENT: "wait for event",
    Work.STEP: "step",
}
_LONGEST = 300  # characters of an argument: enough for shapes, not for a list of a thousand tensors
_MOST_TENSORS = 12
_MOST_RANGES = 16
_LARGEST = 1 << 62


class LabelTable:
    """Labels by their key; equal keys get equal numbers."""

    def __init__(self) -> None:
        self.labels: list[Label] = []
        self._index: dict[object, int] = {}

    def add(self, key: object, label: Label) -> int:
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.labels)
            self.labels.append(label)
        return index


class ElementLabels:
    """Labels of a program's elements: as work on the device or network, as time on the host, or as waiting."""

    def __init__(
        self, recording: Recording, timeline: RankTimeline, table: LabelTable, flops: Sequence[float | None]
    ) -> None:
        self.table = table
        program = timeline.program
        is_itself = timeline.rank == program.rank
        self._stand_in = "" if is_itself else f" (peer of rank {program.rank}, which does the same work)"
        self._recording, self._program, self._flops = recording, program, flops
        self._lines: dict[int, str] = {}
        columns = recording.columns
        row = program.row
        has_row = (row >= 0) & (row < len(recording))
        at = np.where(has_row, row, 0)
        kind = np.where(has_row, columns["kind"][at], 0) if len(recording) else np.zeros(len(row), np.uint8)
        is_call = (kind == Kind.OP) | (kind == Kind.COLLECTIVE)

        def column(name: str, where: np.ndarray) -> np.ndarray:
            if not len(recording):
                return np.full(len(row), -1, np.int64)
            return np.where(where, columns[name][at].astype(np.int64), -1)

        self.module = column("module", has_row)
        self.phase = column("phase", has_row)
        self._first, self._group_of = _distinct(
            [
                column("value", is_call),
                self.module,
                self.phase,
                column("frame", has_row),
                program.work.astype(np.int64),
                program.group.astype(np.int64),
                program.peer.astype(np.int64),
                np.where(is_call, -1, kind.astype(np.int64)),
            ]
        )
        self._signature, self._frame = column("value", is_call), column("frame", has_row)
        self._kind = kind

    def device(self, elements: np.ndarray) -> np.ndarray:
        return self._labels(elements, "device", self._device_label)

    def host(self, elements: np.ndarray) -> np.ndarray:
        return self._labels(elements, "host", self._host_label)

    def stalled(self, causes: np.ndarray) -> np.ndarray:
        """Return labels for idle streams: `causes` are elements of communication, -1 is another stream."""
        found = np.zeros(len(causes), np.int32)
        found[causes >= 0] = self._labels(causes[causes >= 0], "stalled", self._stalled_label)
        if (causes < 0).any():
            found[causes < 0] = self.table.add("stalled", Label("waiting for another stream", "wait", {}))
        return found

    def waiting(self, elements: np.ndarray) -> np.ndarray:
        return self._labels(elements, "waiting", self._waiting_label)

    def _labels(self, elements: np.ndarray, role: str, make: Callable[[int], Label]) -> np.ndarray:
        groups, inverse = np.unique(self._group_of[elements], return_inverse=True)
        found = [self.table.add((role, g), make(int(self._first[g]))) for g in groups.tolist()]
        return np.array(found, np.int32)[inverse] if found else np.zeros(0, np.int32)

    def _device_label(self, element: int) -> Label:
        work = Work(int(self._program.work[element]))
        args = self._common(element)
        signature = int(self._signature[element])
        if signature >= 0:
            call = self._recording.signatures[signature]
            args["inputs"] = _tensors(call.inputs)
            args["outputs"] = _tensors(call.outputs)
            if call.scalars:
                args["scalars"] = _short(call.scalars)
            args["bytes"] = _call_bytes(call.inputs, call.outputs, work)
            if signature < len(self._flops) and self._flops[signature]:
                args["flops"] = self._flops[signature]
        if work in _COMMUNICATION:
            args |= self._communication(element, work)
            return Label(self._name(element), "communication", args)
        return Label(self._name(element), "kernel" if work == Work.KERNEL else "wait", args)

    def _host_label(self, element: int) -> Label:
        return Label(self._name(element), "host", self._common(element))

    def _waiting_label(self, element: int) -> Label:
        work = Work(int(self._program.work[element]))
        args = self._common(element) | self._communication(element, work)
        return Label(f"waiting for peers: {self._name(element)}", "waiting", args)

    def _stalled_label(self, element: int) -> Label:
        work = Work(int(self._program.work[element]))
        args = self._common(element) | self._communication(element, work)
        return Label(f"waiting for {self._name(element)}", "wait", args)

    def _common(self, element: int) -> dict[str, object]:
        args: dict[str, object] = {}
        module, phase, frame = (int(each[element]) for each in (self.module, self.phase, self._frame))
        if module >= 0:
            args["module"] = _short(self._recording.name(module))
        if phase >= 0:
            args["phase"] = _phase_name(phase)
        if frame >= 0:
            line = self._lines.get(frame)
            if line is None:
                line = self._lines[frame] = _short(user_line(self._recording, frame))
            args["source"] = line
        return args

    def _communication(self, element: int, work: Work) -> dict[str, object]:
        program = self._program
        args: dict[str, object] = {"kind": self._name(element)}
        group, peer = int(program.group[element]), int(program.peer[element])
        if 0 <= group < len(program.groups):
            args["group"] = _short(program.group_names[group])
            args["ranks"] = _ranks(program.groups[group]) + self._stand_in
        if work in (Work.SEND, Work.RECEIVE) and peer >= 0:
            args["to" if work == Work.SEND else "from"] = f"rank {peer}{self._stand_in}"
        return args

    def _name(self, element: int) -> str:
        signature = int(self._signature[element])
        if signature >= 0:
            return _short(short_op(self._recording.signatures[signature].name).removeprefix("c10d."))
        work = Work(int(self._program.work[element]))
        kind = int(self._kind[element])
        plain = Kind(kind).name.lower().replace("_", " ") if kind in set(Kind) else work.name.lower()
        return _NAMES.get(work, plain)


def _distinct(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first element of each distinct combination, and the combination of each element."""
    key, n_keys = np.zeros(len(columns[0]), np.int64), 1
    if len(key) == 0:
        return key, key
    for column in columns:
        lowest = int(column.min())
        n_values = int(column.max()) - lowest + 1
        if n_keys * n_values >= _LARGEST:
            key = np.unique(key, return_inverse=True)[1]
            n_keys = len(key)
        key, n_keys = key * n_values + (column - lowest), n_keys * n_values
    _, first, key = np.unique(key, return_index=True, return_inverse=True)
    return first, key


def _ranks(ranks: Sequence[int]) -> str:
    ranges = rank_ranges(ranks)
    more = f" … ({len(ranks)} ranks)" if len(ranges) > _MOST_RANGES else ""
    return ", ".join(ranges[:_MOST_RANGES]) + more


def _tensors(specs: Sequence[TensorSpec]) -> list[str]:
    shown = [f"{spec.dtype}[{', '.join(map(str, spec.shape))}]" for spec in specs[:_MOST_TENSORS]]
    return [
        *map(_short, shown),
        *([f"and {len(specs) - _MOST_TENSORS} more"] if len(specs) > len(shown) else []),
    ]


def _call_bytes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], work: Work) -> int:
    """Return the bytes a kernel reads and writes; for communication the larger side, which is the message."""
    read, written = (sum(map(_tensor_bytes, specs)) for specs in (inputs, outputs))
    return max(read, written) if work in _COMMUNICATION else read + written


def _tensor_bytes(spec: TensorSpec) -> int:
    bits = re.search(r"\d+", spec.dtype)  # float8_e4m3fn: 8; bool: none
    n = prod(size for size, stride in zip(spec.shape, spec.strides, strict=True) if stride or not size)
    return n * (int(bits.group()) if bits else 8) // 8


def _phase_name(phase: int) -> str:
    return Phase(phase).name.lower() if phase in set(Phase) else f"phase {phase}"


def _short(text: str) -> str:
    """Shorten a long text; half a surrogate pair is replaced, because it is not valid UTF-8."""
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return text.encode("utf-8", "replace").decode()
