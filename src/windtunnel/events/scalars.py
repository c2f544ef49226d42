"""The non-tensor arguments of an operator, which a signature stores as text.

"_,_,[1,1],False" ──> arguments        "peer=3 op=SUM" (a collective) ──> the other rank
"bytes=4096 flops=0" (a kernel that a compiler made) ──> what the compiler counted
"""

from __future__ import annotations

import re

__all__ = ["arguments_of", "counted_of", "peer_of"]

_COUNTED = re.compile(r"(?:^|\s)(bytes|flops)=(\d{1,18})(?=\s|$)", re.ASCII)
_PEER = re.compile(r"(?:^|\s)peer=(-?\d{1,9})(?:\s|$)", re.ASCII)


def arguments_of(scalars: str) -> list[str]:
    """The top-level parts of "_,_,[1,1],False"."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(scalars):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(scalars[start:i])
            start = i + 1
    return [*parts, scalars[start:]]


def peer_of(scalars: str) -> int:
    """The global rank of the root or partner of a call; -1: none is named."""
    found = _PEER.search(scalars)
    return int(found[1]) if found else -1


def counted_of(scalars: str, what: str) -> int | None:
    """The bytes or flops of a kernel as its compiler counted them; None: it did not."""
    return next((int(number) for name, number in _COUNTED.findall(scalars) if name == what), None)
