"""Which module to checkpoint first: those whose activations take most memory at the peak.

RunResult ──> the tightest rank's activations by module, with equal layers folded ──> rows, largest first
"""

from __future__ import annotations

import re
from typing import Any

from windtunnel.memory.checkpoint_units import checkpoint_units, seconds_in
from windtunnel.report.results.run import RankResult, RunResult

__all__ = ["checkpoint_first"]

_ROWS = 8
_WORTH_NAMING = 0.005  # of the need
_LOSS = re.compile(r"log_softmax|nll_loss|cross_entropy|mse_loss|bce|kl_div")


def checkpoint_first(result: RunResult) -> list[dict[str, Any]]:
    """Rows of the tightest rank; none if activations are not what fills the device there.

    `bytes` are held at the peak: checkpointing frees at most as much, since the inputs of the modules stay and the
    peak may move. `forward_us` (level 3) is about what computing them again takes.
    """
    rank = result.tightest
    if rank is None or not rank.peak_with_fragments_bytes:
        return []
    need = rank.peak_with_fragments_bytes
    losses = {tensor.module for tensor in rank.largest_at_peak if _LOSS.search(tensor.op)}
    units = [
        unit
        for unit in checkpoint_units(rank.at_peak_by_module)
        # Recomputing what is outside all blocks, or the loss, allocates all of it again at once.
        if unit.is_whole and unit.n_bytes >= _WORTH_NAMING * need and losses.isdisjoint(unit.members)
    ]
    forward = _forward_share(rank)
    by_module = rank.time.profile.by_module if rank.time else {}
    return [
        {
            "module": unit.module,
            "count": len(unit.members),
            "bytes": unit.n_bytes,
            "share": unit.n_bytes / need,
            "is_repeated": unit.is_repeated,
            "forward_us": None if forward is None else seconds_in(unit, by_module) * forward * 1e6,
        }
        for unit in units[:_ROWS]
    ]


def _forward_share(rank: RankResult) -> float | None:
    """Return the forward share of the time of a module's operators; those of the optimizer have no module."""
    if rank.time is None:
        return None
    phases = rank.time.profile.by_phase
    forward, backward = phases.get("forward", 0.0), phases.get("backward", 0.0)
    return forward / (forward + backward) if forward + backward else None
