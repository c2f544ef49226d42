"""What every row of a recording costs, given the costs of its operators.

    recording, CostSource ──> RowCosts: seconds on the device and on the host for each row

Where the program was compiled, several operators are one kernel: its time is at the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.timing.operators.op_cost import Basis, CostSource, HostCosts, OpCost
from windtunnel.timing.roofline.fusion import fused_kernels

__all__ = ["RowCosts", "operator_rows", "row_costs"]

_NOTHING = OpCost(0.0, 0.0, Basis.FREE)


@dataclass(frozen=True)
class RowCosts:
    """Parallel to the rows of the recording, but for `costs`."""

    costs: tuple[OpCost, ...]  # one for each signature; nothing for those that no operator has
    seconds: np.ndarray  # float64, on the device
    host_seconds: np.ndarray  # float64, of the thread that issues them
    is_fused: np.ndarray  # bool: part of a kernel that a compiler makes of several operators


def operator_rows(recording: Recording) -> np.ndarray:
    """Rows of operators that run on a device."""
    columns = recording.columns
    return np.flatnonzero((columns["kind"] == Kind.OP) & (columns["device"] >= 0))


def row_costs(recording: Recording, source: CostSource) -> RowCosts:
    columns = recording.columns
    rows = operator_rows(recording)
    value = columns["value"][rows]
    forward, backward = ([_NOTHING] * len(recording.signatures) for _ in range(2))
    for i in np.unique(value).tolist():
        forward[i] = source.cost(recording.signatures[i])
        backward[i] = source.cost(recording.signatures[i], is_backward=True)
    seconds, host = (np.zeros(len(recording)) for _ in range(2))
    # A compiled graph holds backward too: no autograd looks for its operators one by one.
    in_backward = (columns["phase"][rows] == Phase.BACKWARD) & (not recording.footer.get("is_graph"))
    for costs, mask in ((forward, ~in_backward), (backward, in_backward)):
        seconds[rows[mask]] = np.array([cost.seconds for cost in costs])[value[mask]]
        host[rows[mask]] = np.array([cost.host_seconds for cost in costs])[value[mask]]
    for kind, extra in _host_work(source.host).items():
        host[columns["kind"] == kind] = extra
    is_fused = _fuse(recording, source, seconds, host)
    return RowCosts(tuple(forward), seconds, host, is_fused)


def _host_work(host: HostCosts) -> dict[Kind, float]:
    return {
        Kind.MODULE_ENTER: host.module_seconds,
        Kind.COLLECTIVE: host.collective_seconds,
        Kind.SYNC: host.sync_seconds,
    }


def _fuse(recording: Recording, source: CostSource, seconds: np.ndarray, host: np.ndarray) -> np.ndarray:
    is_fused = np.zeros(len(recording), bool)
    for kernel in fused_kernels(recording):
        cost = source.fused_cost(kernel.n_bytes)
        rows = np.array(kernel.rows)
        if cost is None:  # a device on which nothing was compiled when it was measured
            continue
        seconds[rows], host[rows], is_fused[rows] = 0.0, 0.0, True
        seconds[rows[0]], host[rows[0]] = cost.seconds, cost.host_seconds
    return is_fused
