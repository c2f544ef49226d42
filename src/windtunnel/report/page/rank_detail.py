"""The details of one rank, packed for a page.

    RankDetail ──> texts once, columns packed ──> document["details"][rank]

templates/memory/memory_bands.js reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.events.model import Phase
from windtunnel.memory.allocation_list import AllocatorMap, RankDetail
from windtunnel.memory.attribution import ROLE_NAMES, ROLES
from windtunnel.report.page.columns import pack

__all__ = ["detail_document"]


def detail_document(detail: RankDetail) -> dict[str, Any]:
    """Plain values and packed columns."""
    labels, frames, rest, ops = detail.labels, detail.frames, detail.rest, detail.ops
    texts = {text: number for number, text in enumerate(detail.texts)}
    maps = [_map_document(each, texts) for each in detail.maps]
    sizes, size = np.unique(detail.n_bytes, return_inverse=True)
    return {
        "rows": detail.n_rows,
        "strings": list(texts),
        "roles": [ROLE_NAMES[role] for role in ROLES],
        "allocations": {
            "born": pack(detail.born, is_rising=True),
            # Lifetimes and sizes repeat from step to step; rows and long numbers do not.
            "life": pack(detail.freed - detail.born),
            "size": pack(size),
            "what": pack(detail.label),
        },
        "sizes": pack(sizes),
        "whats": {
            "name": pack(labels.name),
            "op": pack(labels.op),
            "module": pack(labels.module),
            "shape": pack(labels.shape),
            "where": pack(labels.where),
            "role": pack(labels.role),
            "frame": pack(labels.frame),
        },
        "frames": {
            "file": pack(frames.file),
            "function": pack(frames.function),
            "line": pack(frames.line),
            "parent": pack(frames.parent),
        },
        "reserved": {"row": pack(detail.reserved_row, is_rising=True), "bytes": pack(detail.reserved_bytes)},
        "rest": rest
        and {"row": pack(rest.row, is_rising=True), "bytes": [pack(column) for column in rest.n_bytes.T]},
        "ops": ops
        and {
            "row": pack(ops.row, is_rising=True),
            "rows": pack(ops.n_rows),
            "name": pack(ops.name),
            "module": pack(ops.module),
            "frame": pack(ops.frame),
            "phase": pack(ops.phase),
        },
        "phases": {
            "row": pack(detail.phase_row, is_rising=True),
            "phase": pack(detail.phase),
            "names": [*(phase.name.lower() for phase in Phase), "recompute", "after backward"],
        },
        "steps": {"row": pack(detail.step_row, is_rising=True), "number": pack(detail.step)},
        "peak_row": detail.peak_row,
        "maps": maps,
        "left_out": list(detail.left_out),
    }


def _map_document(found: AllocatorMap, texts: dict[str, int]) -> dict[str, Any]:
    columns = found.columns
    base = int(columns.address.min()) if len(columns.address) else 0
    return {
        "title": found.title,
        "row": found.row,
        "base": hex(base),
        "segments": {
            "address": pack(columns.address - base, is_rising=True),
            "bytes": pack(columns.n_bytes),
            "stream": pack(columns.stream),
            "pool": pack([texts.setdefault(pool, len(texts)) for pool in columns.pool]),
            "expandable": pack(columns.is_expandable),
        },
        "blocks": {
            "segment": pack(columns.block_segment, is_rising=True),
            "offset": pack(columns.block_offset),
            "bytes": pack(columns.block_bytes),
            "state": pack(columns.block_state),
            "allocation": pack(found.allocation),
        },
        "allocated_bytes": columns.allocated_bytes,
        "reserved_bytes": columns.reserved_bytes,
    }
