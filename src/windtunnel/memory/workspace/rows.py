"""Level 2: a recording with the working memory of its kernels in it.

    Recording + WorkspaceTable ──> demand of each distinct operator ──> ALLOC rows before it, FREE rows after it

Scratch of one call is freed with its operator's row. What a library keeps (cuBLAS per thread and stream) is allocated
before the first operator that needs it and never freed: backward runs in a thread of autograd's own, so training has
two. Everything downstream reads the new rows as it reads all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from windtunnel.devices import DeviceProfile
from windtunnel.events.model import COLUMNS, NO_NAME, Kind, Phase, Recording, Role
from windtunnel.memory.workspace.dimensions import settings_of
from windtunnel.memory.workspace.table import Demand, WorkspaceTable

__all__ = ["WorkspaceTable", "with_workspaces"]

_NOTED = 5  # operators named in one note
_NOTABLE_BYTES = 1 << 20  # a bound below this is not worth a note


def with_workspaces(
    recording: Recording, device: DeviceProfile, table: WorkspaceTable, *, env: Mapping[str, str]
) -> tuple[Recording, tuple[str, ...]]:
    """Return the recording with a row for every workspace, and notes about it.

    Scratch that the recording already has for an operator (kernels whose scratch was known when it was recorded)
    counts towards the table's figure, so nothing is counted twice.
    """
    columns = recording.columns
    rows = np.flatnonzero((columns["kind"] == Kind.OP) & (columns["device"] >= 0))
    table = table.for_device(device)
    settings = settings_of(env, bool(recording.footer.get("deterministic", False)))
    used = np.unique(columns["value"][rows]).tolist()
    demands = {i: table.demand_of(recording.signatures[i], device, settings) for i in used}
    notes = tuple(_notes(recording, table, demands))
    call = _calls(columns, rows, demands)
    kept = _kept(columns, rows, demands)
    if not len(call) and not len(kept):
        return recording, notes
    return _insert(recording, call, kept), notes


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Allocations to be made, in order: parallel arrays."""

    row: np.ndarray  # of the operator
    n_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.row)


def _calls(columns: dict[str, np.ndarray], rows: np.ndarray, demands: Mapping[int, Demand]) -> _Scratch:
    """What is held while one operator runs."""
    recorded = _recorded(columns, rows)
    # A pattern is a list of sizes. Most operators have that of their signature; one whose scratch was recorded
    # in part has what remains.
    patterns = [demands[i].call if i in demands else () for i in range(max(demands, default=-1) + 1)]
    pattern = columns["value"][rows].copy()
    for at in np.flatnonzero(recorded).tolist():
        demand = demands[int(pattern[at])]
        if demand.call and not demand.adds:
            remaining = sum(demand.call) - int(recorded[at])
            pattern[at] = len(patterns)
            patterns.append((remaining,) if remaining > 0 else ())
    lengths = np.array([len(sizes) for sizes in patterns], np.int64)
    starts = np.cumsum(lengths) - lengths
    flat = np.array([size for sizes in patterns for size in sizes], np.int64)
    counts = lengths[pattern] if len(rows) else np.zeros(0, np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    which = np.arange(len(first)) - first + np.repeat(starts[pattern] if len(rows) else first, counts)
    return _Scratch(np.repeat(rows, counts), flat[which])


def _recorded(columns: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Bytes of workspace each operator already has."""
    found = np.zeros(len(rows), np.int64)
    births = np.flatnonzero((columns["kind"] == Kind.ALLOC) & (columns["role"] == Role.WORKSPACE))
    if len(births) == 0 or len(rows) == 0:
        return found
    ids = columns["subject"][rows]
    order = np.argsort(ids, kind="stable")
    owner = columns["extra"][births]
    at = order[np.minimum(np.searchsorted(ids, owner, sorter=order), len(ids) - 1)]
    is_ours = ids[at] == owner
    np.add.at(found, at[is_ours], columns["value"][births[is_ours]])
    return found


def _kept(columns: dict[str, np.ndarray], rows: np.ndarray, demands: Mapping[int, Demand]) -> _Scratch:
    """What libraries keep, at the first operator of each thread and stream that needs it."""
    handles: dict[tuple[str, bool], dict[int, tuple[int, ...]]] = {}
    for signature, demand in demands.items():
        for kept in demand.kept:
            handles.setdefault((kept.handle, kept.is_per_thread), {})[signature] = kept.sizes
    found: list[tuple[int, int]] = []
    for (_, is_per_thread), sizes in handles.items():
        users = rows[np.isin(columns["value"][rows], list(sizes))]
        owner = columns["device"][users].astype(np.int64) << 40
        if is_per_thread:
            # Streams are 32-bit and may be negative; the thread is forward's or autograd's.
            owner += (columns["stream"][users].astype(np.int64) << 1) + (1 << 36)
            owner += columns["phase"][users] == Phase.BACKWARD
        _, first = np.unique(owner, return_index=True)
        for row in users[first].tolist():
            found += [(row, size) for size in sizes[int(columns["value"][row])]]
    found.sort(key=lambda each: each[0])  # stable: at one operator the handles stay in the table's order
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return _Scratch(pairs[:, 0], pairs[:, 1])


def _insert(recording: Recording, call: _Scratch, kept: _Scratch) -> Recording:
    """New rows in place; every old row stays as it is."""
    old, n = recording.columns, len(recording)
    n_kept, n_call = (np.bincount(scratch.row, minlength=n) for scratch in (kept, call))
    # Where each old row goes: after what comes before it, the frees of the operators before included.
    place = np.arange(n) + np.cumsum(n_kept + n_call) + np.cumsum(n_call) - n_call
    births = np.concatenate([kept.row, call.row])
    at = np.concatenate(
        [
            place[kept.row] - (n_kept + n_call)[kept.row] + _position(kept.row),
            place[call.row] - n_call[call.row] + _position(call.row),
        ]
    )
    frees = place[call.row] + 1 + _position(call.row)
    storages = _first_free(recording) + np.arange(len(births))
    total = n + len(births) + len(frees)
    columns = {}
    for name, dtype in COLUMNS.items():
        column = columns[name] = np.zeros(total, dtype)
        column[place] = old[name]
        if name in ("module", "phase", "stream", "device"):
            column[at], column[frees] = old[name][births], old[name][call.row]
    columns["kind"][at], columns["kind"][frees] = Kind.ALLOC, Kind.FREE
    columns["subject"][at], columns["subject"][frees] = storages, storages[len(kept) :]
    columns["value"][at], columns["value"][frees] = np.concatenate([kept.n_bytes, call.n_bytes]), -1
    columns["extra"][at], columns["extra"][frees] = old["subject"][births], -1
    columns["role"][at] = Role.WORKSPACE
    columns["frame"][at], columns["frame"][frees] = old["frame"][births], NO_NAME
    return replace(
        recording,
        columns=columns,
        inputs=_spread(recording.inputs, place, total),
        outputs=_spread(recording.outputs, place, total),
    )


def _position(rows: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... within each run of equal rows."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))


def _spread(
    ragged: tuple[np.ndarray, np.ndarray], place: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    """New rows name no storages."""
    offsets, ids = ragged
    lengths = np.zeros(total + 1, offsets.dtype)
    lengths[place + 1] = np.diff(offsets)
    return np.cumsum(lengths) + offsets[0], ids


def _first_free(recording: Recording) -> int:
    """A storage number above every one in use."""
    kind, subject, value = (recording.columns[name] for name in ("kind", "subject", "value"))
    named = np.isin(kind, [Kind.ALLOC, Kind.FREE, Kind.MARK, Kind.RECORD_STREAM, Kind.RESIZE])
    held = np.isin(kind, [Kind.SAVE, Kind.LOAD, Kind.RESIZE])
    parts = (subject[named], value[held], recording.inputs[1], recording.outputs[1])
    return 1 + max(int(part.max(initial=-1)) for part in parts)


# -- notes --------------------------------------------------------------------------------------------------


def _notes(recording: Recording, table: WorkspaceTable, demands: Mapping[int, Demand]) -> list[str]:
    names = {i: recording.signatures[i].name.removesuffix(".default") for i in demands}
    failed = {names[i]: demand.failed[0] for i, demand in demands.items() if demand.failed}
    bounds = {entry.name for entry in table.entries if entry.accuracy == "bound"}
    singles = {entry.name for entry in table.entries if entry.accuracy == "single"}
    single = sorted({names[i] for i, demand in demands.items() if singles.intersection(demand.used)})
    bounded: dict[str, int] = {}
    for i, demand in demands.items():
        if bounds.intersection(demand.used) and sum(demand.call) >= _NOTABLE_BYTES:
            bounded[names[i]] = max(sum(demand.call), bounded.get(names[i], 0))
    notes = []
    if failed:
        first = next(iter(failed.values()))
        notes.append(f"the workspace of {_listed(sorted(failed))} is not counted ({first})")
    if bounded:
        largest_first = sorted(bounded, key=lambda name: -bounded[name])
        notes.append(
            f"the workspace of {_listed(largest_first)} is counted as an upper bound, see docs/workspace.md"
        )
    if single:
        notes.append(
            f"the workspace of {_listed(single)} rests on one published measurement per operator, used for every shape:"
            " an input to this run, not a result; see docs/workspace.md"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NOTED
    return ", ".join(names[:_NOTED]) + (f" and {more} more operators" if more > 0 else "")
