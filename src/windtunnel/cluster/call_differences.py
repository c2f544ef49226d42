"""The first mismatch between the calls of two ranks, and the sentence that reports it.

    CallSequence of one rank, and of its peer ──> Difference ──> "rank 0 calls ... where rank 1 calls ...: the job would hang"

Only facts that both recordings have are compared: a false alarm costs more than a miss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.rank_communication import Call, CallOrder, RankCommunication

__all__ = ["CallSequence", "Difference", "collective_sentence", "find_difference", "message_sentence"]

_HANG = "the job would hang"
_GARBAGE = "the result would be garbage or the job would hang"
_LONGEST_LIST = 8  # ranks


@dataclass(frozen=True, slots=True)
class CallSequence:
    """The calls of one rank in a group; `communication` is its own or that of its representative."""

    rank: int
    communication: RankCommunication
    order: CallOrder
    positions: tuple[int, ...] = ()  # in the group, of this rank and others with the same calls

    def call(self, index: int) -> Call | None:
        return (
            self.communication.calls[self.order.indexes[index]] if index < len(self.order.indexes) else None
        )

    def __str__(self) -> str:
        same = (
            ""
            if self.rank == self.communication.rank
            else f" (which does the work of rank {self.communication.rank:,})"
        )
        return f"rank {self.rank:,}{same}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first mismatch of two sequences: `what` is kind, root, count, dtype, reduction, or missing if one ends early."""

    index: int
    what: str
    one: CallSequence
    other: CallSequence

    @property
    def calls(self) -> tuple[Call | None, Call | None]:
        return self.one.call(self.index), self.other.call(self.index)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for the same mistake between other ranks."""
        return (self.what, *(text for c in self.calls if c for text in (c.kind, c.source)))


def find_difference(one: CallSequence, other: CallSequence, *, is_same_group: bool) -> Difference | None:
    """Return the first pair of calls that do not match. Roots are compared only if `is_same_group`."""
    orders = np.array(one.order.indexes, np.int64), np.array(other.order.indexes, np.int64)
    n_both = min(map(len, orders))
    pairs = orders[0][:n_both] * len(other.communication.calls) + orders[1][:n_both]
    _, firsts = np.unique(pairs, return_index=True)
    for index in np.sort(firsts).tolist():
        what = _disagreement(one, other, index, is_same_group)
        if what is not None:
            return Difference(index, what, one, other)
    if len(orders[0]) == len(orders[1]):
        return None
    longer, shorter = (one, other) if len(orders[0]) > n_both else (other, one)
    return Difference(n_both, "missing", one, other) if _is_final(n_both, longer, shorter) else None


def _is_final(index: int, longer: CallSequence, shorter: CallSequence) -> bool:
    """Whether the shorter sequence had really ended, and was not only cut off by stopping its rank."""
    if shorter.communication.is_whole:
        return True
    # Both were stopped after the same step: calls before it must have their counterparts before it.
    return index < longer.order.n_settled and shorter.communication.n_steps >= longer.communication.n_steps


def _disagreement(one: CallSequence, other: CallSequence, index: int, is_same_group: bool) -> str | None:
    a, b = one.call(index), other.call(index)
    assert a is not None
    assert b is not None
    if {a.kind, b.kind} != {"send", "recv"} and a.kind != b.kind:
        return "kind"
    if is_same_group and _differ(a.root, b.root):
        return "root"
    if (
        _have_other_lists(a, b)
        or _expects_other(a, b, other.positions)
        or _expects_other(b, a, one.positions)
    ):
        return "count"
    if _differ(a.dtype, b.dtype):
        return "dtype"
    return "reduction" if _differ(a.reduction, b.reduction) else None


def _differ(a: object, b: object) -> bool:
    return a is not None and b is not None and a != b


def _have_other_lists(a: Call, b: Call) -> bool:
    return min(len(a.shares), len(b.shares)) > 1 and a.shares != b.shares


def _expects_other(call: Call, peer: Call, positions: tuple[int, ...]) -> bool:
    """Whether a call expects another share of its peers, which are at these positions of the group."""
    if not call.shares or peer.n_elements is None:
        return False
    if len(call.shares) == 1:
        return call.shares[0] != peer.n_elements
    return any(call.shares[p] != peer.n_elements for p in positions)


# -- sentences ------------------------------------------------------------------------------------------------


def collective_sentence(found: Difference, group: tuple[int, ...]) -> str:
    a, b = found.calls
    place = f"as its {_ordinal(found.index + 1)} collective in group {_ranks(group)}"
    if a is None or b is None:
        missing, caller, call = (found.one, found.other, b) if a is None else (found.other, found.one, a)
        return f"{missing} never calls the {_text(call)} that {caller} calls{_at(call)} {place}: {_HANG}"
    texts = [_text(call, found.what) for call in (a, b)]
    end = _GARBAGE if found.what in ("dtype", "reduction") else _HANG
    return f"{found.one} calls {texts[0]}{_at(a)} {place} where {found.other} calls {texts[1]}{_at(b)}: {end}"


def message_sentence(found: Difference) -> str:
    """For a difference whose `one` sends and whose `other` receives."""
    sent, received = found.calls
    sender, receiver = found.one, found.other
    if received is None:
        assert sent is not None
        return (
            f"{sender} sends {_amount(sent)} to {receiver}{_at(sent)}, and rank {receiver.rank:,} never "
            f"receives it: {_HANG}"
        )
    if sent is None:
        return (
            f"{receiver} waits for {_amount(received)} from {sender}{_at(received)}, and rank {sender.rank:,} "
            f"never sends it: {_HANG}"
        )
    end = _GARBAGE if found.what == "dtype" else _HANG
    return (
        f"{sender} sends {_amount(sent)} to {receiver}{_at(sent)} as its {_ordinal(found.index + 1)} message to "
        f"it, and rank {receiver.rank:,} receives {_amount(received)}{_at(received)}: {end}"
    )


def _text(call: Call | None, what: str = "") -> str:
    """all_reduce of 1,024 float32"""
    assert call is not None
    text = call.kind
    if what == "reduction":
        text += f" ({call.reduction})"
    if call.n_elements is not None or (what == "dtype" and call.dtype):
        text += f" of {_amount(call)}"
    if what == "count" and len(set(call.shares)) > 1:
        text += f" in shares {_list(call.shares)}"
    if what == "root":
        text += f" with root {call.root:,}"
    return text


def _amount(call: Call) -> str:
    number = "" if call.n_elements is None else f"{call.n_elements:,} "
    return f"{number}{call.dtype or 'elements'}"


def _at(call: Call | None) -> str:
    return f" at {call.source}" if call is not None and call.source else ""


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def _ranks(group: tuple[int, ...]) -> str:
    return _list(group) if len(group) <= _LONGEST_LIST else f"{_list(group)} of {len(group):,} ranks"


def _list(values: tuple[int, ...]) -> str:
    if len(values) <= _LONGEST_LIST:
        return f"[{', '.join(map(str, values))}]"
    return f"[{', '.join(map(str, values[:3]))}, ..., {values[-1]}]"
