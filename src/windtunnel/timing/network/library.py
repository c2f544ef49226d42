"""What a communication library makes of links and NICs, from network.toml.

network.toml ──> library_of(family), link_of(name) ──> Network
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Library", "LinkShare", "Protocol", "SwitchSum", "library_of", "link_of"]

_FILE = Path(__file__).parent / "network.toml"
_LIBRARIES = {"nvidia": "nccl", "amd": "rccl", "ascend": "hccl", "cpu": "gloo"}


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to move a message: quick to start, or fast once it runs."""

    name: str
    base_us: float = 0.0  # once for each collective
    link_us: float = 0.0  # added to the latency of a hop inside a node
    nic_us: float = 0.0  # and across nodes
    tree_us: float = 0.0  # and across nodes in a tree
    post_us: float = 0.0  # least of a ring's step inside a node while others cross nodes
    link_share: float = 1.0  # of the bandwidth that long messages get
    nic_share: float = 1.0
    links: str = ""  # how the name of a link begins on which it is used


@dataclass(frozen=True, slots=True)
class SwitchSum:
    """All-reduce with the sums made by the switch that joins the devices."""

    min_ranks: int  # of a node
    latency_us: float
    nic_us: float
    nic_share: float


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    algorithms: tuple[str, ...]  # of an all-reduce: ring, tree, switch, hierarchical
    protocols: tuple[Protocol, ...]
    nic_share: float = 1.0  # of the data-sheet bandwidth that long messages get
    tree_share: float = 1.0
    peer_us: float = 0.0  # for each partner of an all-to-all, a gather or a scatter
    nic_peer_us: float = 0.0
    switch: SwitchSum | None = None


@dataclass(frozen=True, slots=True)
class LinkShare:
    """How much of a link's data-sheet bandwidth long messages get."""

    share: float
    switch_share: float = 0.0  # the same where the switch sums; 0: it does not


def library_of(family: str) -> Library:
    """The library that torch uses on devices of a family."""
    return _libraries()[_LIBRARIES[family]]


def link_of(name: str) -> LinkShare:
    """What is known of a link by its name."""
    links = _table()["links"]
    found = links.get(name, links["default"])
    return LinkShare(found["share"], found.get("switch_share", 0.0))


@cache
def _libraries() -> dict[str, Library]:
    table = _table()
    return {name: _library(name, table[name]) for name in _LIBRARIES.values()}


def _library(name: str, fields: dict[str, Any]) -> Library:
    switch = fields.get("switch")
    return Library(
        name,
        tuple(fields["algorithms"]),
        tuple(Protocol(key, **values) for key, values in fields["protocols"].items()),
        fields["nic_share"],
        fields["tree_share"],
        fields["peer_us"],
        fields["nic_peer_us"],
        SwitchSum(**{key: value for key, value in switch.items() if key != "source"}) if switch else None,
    )


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
