"""How long each distinct call of a recording takes on the network.

recording (groups, collectives), Network ──> (group id, signature) -> seconds
"""

from __future__ import annotations

import numpy as np

from windtunnel.events.model import Kind, Recording
from windtunnel.events.scalars import peer_of
from windtunnel.timing.collectives import collective_bytes, collective_seconds
from windtunnel.timing.network import Network, host_network

__all__ = ["call_seconds"]

_PREFIX = "c10d."


def call_seconds(recording: Recording, network: Network) -> dict[tuple[int, int], float]:
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
        way = through_host if group in on_host else network
        found[group, index] = collective_seconds(kind, n_bytes, members, way).seconds
    return found


def _ends(scalars: str, members: tuple[int, ...], own: int) -> tuple[int, ...]:
    """The two ranks of a send or receive; whoever it is from, if nobody is named, is the next one."""
    peer = peer_of(scalars)
    if peer < 0:
        peer = members[(members.index(own) + 1) % len(members)] if own in members else members[0]
    return (own, peer)
