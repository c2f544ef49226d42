"""How long operators and collectives take: where level 3 gets its times from.

RunRequest, recordings ──┬──> --device cpu or --measure: run each distinct operator here ──┬──> CostSource
                         └──> any other device: Roofline ──────────────────────────────────┘
recording, Network ──> (group id, signature index) -> seconds on the network
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from windtunnel.events.model import Kind, Recording
from windtunnel.events.scalars import peer_of
from windtunnel.session.request import RunRequest
from windtunnel.timing.measured.on_this_machine import measure_here
from windtunnel.timing.network.collectives import collective_bytes, collective_seconds
from windtunnel.timing.network.links import Network, host_network
from windtunnel.timing.operators.op_cost import CostSource
from windtunnel.timing.roofline.model import Roofline

__all__ = ["call_seconds", "cost_source"]

_PREFIX = "c10d."


def cost_source(
    request: RunRequest, recordings: Iterable[Recording], tell: Callable[[str], None]
) -> CostSource:
    """Return the measured costs of this machine, or the roofline model of a named device."""
    if request.is_measuring or request.device.kind == "cpu":
        return measure_here(list(recordings), device=request.device.kind, tell=tell)
    return Roofline(request.device)


def call_seconds(recording: Recording, network: Network) -> dict[tuple[int, int], float]:
    """Return how long each distinct collective, send and receive of a recording takes on the network."""
    columns = recording.columns
    offsets, ranks = recording.inputs
    rows = np.flatnonzero(columns["kind"] == Kind.GROUP).tolist()
    groups = {
        int(columns["subject"][row]): tuple(ranks[offsets[row] : offsets[row + 1]].tolist()) for row in rows
    }
    on_host = {int(columns["subject"][row]) for row in rows if columns["device"][row] < 0}
    through_host = host_network(network.ranks_per_node)
    is_call = columns["kind"] == Kind.COLLECTIVE
    distinct = np.unique(np.stack([columns["extra"][is_call], columns["value"][is_call]], axis=1), axis=0)
    found = {}
    for group, index in distinct.tolist():
        members, signature = groups.get(group, ()), recording.signatures[index]
        if len(members) < 2:
            continue
        kind = signature.name.removeprefix(_PREFIX)
        n_bytes = collective_bytes(signature, len(members))
        if kind in ("send", "recv"):
            members = _ends(signature.scalars, members, int(recording.header.get("rank", members[0])))
        links = through_host if group in on_host else network
        found[group, index] = collective_seconds(kind, n_bytes, members, links).seconds
    return found


def _ends(scalars: str, members: tuple[int, ...], own: int) -> tuple[int, ...]:
    """The two ranks of a send or receive. A receive from any rank is taken to come from the next member."""
    peer = peer_of(scalars)
    if peer < 0:
        peer = members[(members.index(own) + 1) % len(members)] if own in members else members[0]
    return (own, peer)
