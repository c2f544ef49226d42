"""How long a collective takes, from its bytes and from where its ranks sit.

    kind, bytes, ranks, Network ──> layout ──> every algorithm and protocol that applies ──> the quickest

A step costs a hop and its bytes over the narrowest wire they cross. Ranks of one node share its NICs: a group that has
some of a node's ranks gets their part of the NICs, because its sibling groups (the same collective of the other ranks)
usually run at the same time. A group of whole nodes has all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, log2, prod

from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.network.library import Protocol
from windtunnel.timing.network.links import Network, check_network

__all__ = ["CollectiveTime", "collective_bytes", "collective_seconds"]

_BITS = re.compile(r"[a-z]+(\d+)")


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    seconds: float
    algorithm: str  # "ring LL128"
    is_across_nodes: bool
    note: str = ""  # what a reader should know, such as an unknown kind


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the ranks of a group sit."""

    n_ranks: int
    n_nodes: int
    n_local: int  # ranks of the node that has most of them
    n_least: int  # and of the one that has fewest


@dataclass(frozen=True, slots=True)
class _Path:
    """What one protocol makes of the wires between the ranks of a group. Times are in seconds, rates in bytes a second."""

    layout: _Layout
    protocol: Protocol
    link_hop: float
    nic_hop: float
    link_rate: float  # of one rank to the others of its node
    pair_rate: float  # of one rank to one other of its node
    nic_rate: float  # of all ranks of the group on a node together

    @property
    def base(self) -> float:
        return self.protocol.base_us * 1e-6

    @property
    def ring_rate(self) -> float:
        """A ring enters and leaves each node once over every NIC, and passes all ranks inside."""
        inside = self.link_rate if self.layout.n_local > 1 else inf
        return min(inside, self.nic_rate) if self.layout.n_nodes > 1 else inside

    @property
    def rank_nic_rate(self) -> float:
        return self.nic_rate / self.layout.n_least


def collective_bytes(signature: Signature, group_size: int) -> int:
    """Bytes of a recorded collective, as `collective_seconds` counts them."""
    kind = signature.name.rpartition(".")[2]
    given, received = _n_bytes(signature.inputs), _n_bytes(signature.outputs)
    if kind in ("all_gather", "gather"):
        return given * group_size
    if kind in ("reduce_scatter", "scatter"):
        return received * group_size
    return given or received


def collective_seconds(kind: str, n_bytes: int, ranks: Sequence[int], network: Network) -> CollectiveTime:
    """The time of one collective on global `ranks` once all of them have come; of a send or recv, the two ends.

    `n_bytes`: the message (all_reduce, broadcast, reduce, send, recv), the whole result (all_gather, gather), the whole
    input (reduce_scatter, scatter), or what one rank gives (all_to_all).
    """
    return _seconds(kind.rpartition(".")[2], n_bytes, _layout(tuple(ranks), network.ranks_per_node), network)


@lru_cache(maxsize=4096)
def _layout(ranks: tuple[int, ...], ranks_per_node: int) -> _Layout:
    on_node = Counter(rank // ranks_per_node for rank in ranks)
    return _Layout(
        len(ranks), len(on_node), max(on_node.values(), default=0), min(on_node.values(), default=0)
    )


@lru_cache(maxsize=65536)
def _seconds(kind: str, n_bytes: int, layout: _Layout, network: Network) -> CollectiveTime:
    is_across = layout.n_nodes > 1
    if layout.n_ranks < 2:
        return CollectiveTime(0.0, "none", False)
    check_network(network, network.ranks_per_node + 1 if is_across else layout.n_ranks)
    note = ""
    if kind not in _CHOICES:
        note = f"there is no time model of {kind}: it is timed as {n_bytes} bytes sent to one peer"
        kind = "send"
    seconds, algorithm = min(_CHOICES[kind](n_bytes, layout, network))
    return CollectiveTime(seconds, algorithm, is_across, note)


_Choices = Iterator[tuple[float, str]]


def _all_reduce(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    algorithms = network.library.algorithms
    for path in _paths(layout, network):
        name = path.protocol.name
        if "ring" in algorithms:
            yield path.base + _ring(path, n_bytes, n_turns=2), f"ring {name}"
        if "tree" in algorithms and layout.n_nodes > 1:
            yield _tree(path, n_bytes, network), f"tree {name}"
        if "hierarchical" in algorithms and layout.n_nodes > 1 and layout.n_local > 1:
            yield path.base + _hierarchical(path, n_bytes, n_turns=2), f"hierarchical {name}"
        if "switch" in algorithms and path.protocol.link_share == 1 and _has_switch_sum(layout, network):
            yield _switch(path, n_bytes, network), "switch"


def _all_gather(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    for path in _paths(layout, network):
        name = path.protocol.name
        yield path.base + _ring(path, n_bytes, n_turns=1), f"ring {name}"
        if "hierarchical" in network.library.algorithms and layout.n_nodes > 1 and layout.n_local > 1:
            yield path.base + _hierarchical(path, n_bytes, n_turns=1), f"hierarchical {name}"


def _broadcast(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    """Passed on from rank to rank in pieces, so that all wires are busy at once."""
    for path in _paths(layout, network):
        hops = (layout.n_ranks - layout.n_nodes) * path.link_hop + (layout.n_nodes - 1) * path.nic_hop
        yield path.base + hops + n_bytes / path.ring_rate, f"chain {path.protocol.name}"


def _all_to_all(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    """Every pair at once: what stays in the node and what leaves it go over different wires."""
    for path in _paths(layout, network):
        yield path.base + _spread(path, n_bytes, network, path.rank_nic_rate), f"pairs {path.protocol.name}"


def _gather(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    """All for one root, or from it: its own wires are the narrow place."""
    for path in _paths(layout, network):
        yield path.base + _spread(path, n_bytes, network, path.rank_nic_rate), f"to root {path.protocol.name}"


def _send(n_bytes: int, layout: _Layout, network: Network) -> _Choices:
    for path in _paths(layout, network):
        is_across = layout.n_nodes > 1
        hop, rate = (path.nic_hop, path.rank_nic_rate) if is_across else (path.link_hop, path.pair_rate)
        yield path.base + hop + n_bytes / rate, f"pair {path.protocol.name}"


_CHOICES: dict[str, Callable[[int, _Layout, Network], _Choices]] = {
    "all_reduce": _all_reduce,
    "barrier": _all_reduce,  # of nothing
    "all_gather": _all_gather,
    "reduce_scatter": _all_gather,  # the same steps backwards
    "broadcast": _broadcast,
    "reduce": _broadcast,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _gather,
    "send": _send,
    "recv": _send,
}


def _ring(path: _Path, n_bytes: float, n_turns: int) -> float:
    """Each turn passes every rank's part on to all others."""
    n, n_nodes, protocol = path.layout.n_ranks, path.layout.n_nodes, path.protocol
    steps, nic_steps = n_turns * (n - 1), n_turns * (n_nodes - 1)
    link_hop = max(path.link_hop, protocol.post_us * 1e-6) if n_nodes > 1 else path.link_hop
    hops = (steps - nic_steps) * link_hop + nic_steps * path.nic_hop
    return hops + steps * n_bytes / n / path.ring_rate


def _tree(path: _Path, n_bytes: int, network: Network) -> float:
    """Up and down: a chain inside each node, two trees that share the bytes between nodes."""
    layout, protocol = path.layout, path.protocol
    n_levels = ceil(log2(layout.n_nodes))
    nic_hop = path.nic_hop + protocol.tree_us * 1e-6
    hops = 2 * ((layout.n_local - 1) * path.link_hop + n_levels * nic_hop)
    # Between two nodes every byte crosses once each way; in a larger tree a node has children as well as a parent.
    outside = path.nic_rate if layout.n_nodes == 2 else path.nic_rate / 2
    inside = path.link_rate / 2 if layout.n_local > 1 else inf
    rate = network.library.tree_share * min(inside, outside)
    return path.base + hops + n_bytes / rate


def _has_switch_sum(layout: _Layout, network: Network) -> bool:
    switch = network.library.switch
    return switch is not None and network.switch_share > 0 and layout.n_least >= switch.min_ranks


def _switch(path: _Path, n_bytes: int, network: Network) -> float:
    """The switch sums inside each node, a tree between nodes."""
    layout, switch = path.layout, network.library.switch
    assert switch is not None  # `_has_switch_sum`
    rate = network.link_gbs * 1e9 * network.switch_share
    seconds = switch.latency_us * 1e-6
    if layout.n_nodes > 1:
        n_levels = ceil(log2(layout.n_nodes))
        seconds += 2 * n_levels * (network.nic_latency_us + switch.nic_us) * 1e-6
        outside = path.nic_rate if layout.n_nodes == 2 else path.nic_rate / 2
        rate = min(rate, outside * switch.nic_share)
    return seconds + n_bytes / rate


def _hierarchical(path: _Path, n_bytes: int, n_turns: int) -> float:
    """Inside the nodes, then between ranks of equal place with their part of the bytes; once or, to sum, there and back."""
    local, n_nodes = path.layout.n_local, path.layout.n_nodes
    inside = n_turns * (local - 1) * (path.link_hop + n_bytes / local / path.link_rate)
    part = n_bytes / local / n_nodes
    outside = n_turns * (n_nodes - 1) * (path.nic_hop + part / path.rank_nic_rate)
    return inside + outside


def _spread(path: _Path, n_bytes: int, network: Network, nic_rate: float) -> float:
    """What one rank exchanges with all others, an equal part with each."""
    layout, library = path.layout, network.library
    n_near, n_far = layout.n_local - 1, layout.n_ranks - layout.n_local
    part = n_bytes / layout.n_ranks
    near = n_near * part / path.link_rate if n_near else 0.0
    far = n_far * part / nic_rate if n_far else 0.0
    peers_us = n_near * library.peer_us + n_far * library.nic_peer_us
    return (path.nic_hop if n_far else path.link_hop) + peers_us * 1e-6 + max(near, far)


def _paths(layout: _Layout, network: Network) -> Iterator[_Path]:
    """One for each protocol that is used on these links."""
    link = network.link_gbs * 1e9 * network.link_share
    wires = network.link_wires
    nic = network.nics * network.nic_gbs * 1e9 * network.library.nic_share
    for protocol in network.library.protocols:
        if network.link.startswith(protocol.links):
            link_hop = (network.link_latency_us + protocol.link_us) * 1e-6
            yield _Path(
                layout,
                protocol,
                link_hop,
                max((network.nic_latency_us + protocol.nic_us) * 1e-6, link_hop),
                link * protocol.link_share * (min(layout.n_local - 1, wires) / wires if wires else 1),
                link * protocol.link_share / (wires or 1),
                nic * protocol.nic_share * layout.n_least / network.ranks_per_node,
            )


def _n_bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(prod(spec.shape) * _item_bytes(spec.dtype) for spec in specs)


def _item_bytes(dtype: str) -> int:
    """float16 -> 2, float8_e4m3fn -> 1, bool -> 1: the number of bits is in the name."""
    bits = _BITS.match(dtype)
    return max(int(bits.group(1)) // 8, 1) if bits else 1
