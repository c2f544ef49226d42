"""Memory that the communication library takes outside the allocator: one set of buffers per communicator.

groups in which a rank communicated ──> communicators ──> bytes (an estimate, never part of the predicted peak)

NCCL sizes its buffers by channels and peers, which depend on the topology of the machine; two measured figures
(four A100 with NVLink) are used here. HCCL takes twice HCCL_BUFFSIZE for each communicator, as documented.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Recording

__all__ = ["LibraryBuffers", "library_buffers_of"]

_MIB = 1 << 20
_NCCL_PAIR = 544 * _MIB  # measured: a communicator of two ranks
_NCCL_MORE = 688 * _MIB  # measured: a communicator of more than two
_HCCL_DEFAULT_MIB = 200


@dataclass(frozen=True, slots=True)
class LibraryBuffers:
    """Memory that the communicators of one rank take."""

    library: str = ""  # "NCCL", "HCCL"
    n_communicators: int = 0
    n_bytes: int = 0


def library_buffers_of(recording: Recording, device_kind: str) -> LibraryBuffers:
    """Count the groups in which this rank communicated on its device: a communicator is created at the first call."""
    columns = recording.columns
    used = set(np.unique(columns["extra"][columns["kind"] == Kind.COLLECTIVE]).tolist())
    offsets = recording.inputs[0]
    sizes = [
        int(offsets[row + 1] - offsets[row])
        for row in np.flatnonzero(columns["kind"] == Kind.GROUP).tolist()
        if columns["device"][row] >= 0 and int(columns["subject"][row]) in used
    ]
    sizes = [size for size in sizes if size > 1]
    if device_kind == "cuda":
        n_bytes = sum(_NCCL_PAIR if size == 2 else _NCCL_MORE for size in sizes)
        return LibraryBuffers("NCCL", len(sizes), n_bytes)
    if device_kind == "npu":
        return LibraryBuffers("HCCL", len(sizes), len(sizes) * 2 * _hccl_buffer_mib() * _MIB)
    return LibraryBuffers()


def _hccl_buffer_mib() -> int:
    text = os.environ.get("HCCL_BUFFSIZE", "").strip()
    return int(text) if text.isdecimal() else _HCCL_DEFAULT_MIB
