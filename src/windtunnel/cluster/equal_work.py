"""A digest of all the work of a rank: equal digests mean equal work.

    columns of a recording ──> memory and communication events, renumbered ──> digest

It leaves out what differs between ranks that do the same work: module names, source lines, arguments such as the
first row of a shard, the device index of the rank on its node, and the root of a collective. It also leaves out events
that neither take memory nor communicate: a rank that prints its loss is not a class of its own. And it leaves out the
small constants of compiled graphs: a compiler keeps equal values once, so a rank whose number happens to equal another
constant (a size, a tag, the rank of a peer) has one constant fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from windtunnel.events.model import CONSTANT, Kind, Phase, Recording, Role, Signature, TensorSpec

__all__ = ["digest_of", "peak_bytes_of"]

_OF_STORAGE = (Kind.ALLOC, Kind.FREE, Kind.RECORD_STREAM, Kind.MARK)

_SMALL = 1e-4  # of the peak
_SMALL_CONSTANT = 512  # bytes: MindSpore's smallest block, which holds one scalar or the shape of one tensor

_WITH_PEER = ("c10d.send", "c10d.recv")


def digest_of(recording: Recording, group_sizes: Mapping[int, int], *, is_rough: bool = False) -> str:
    """Return the digest of a recording; `group_sizes` gives the number of members by group id.

    A rough digest covers only the larger storages of modules and of backward. Elsewhere a sharded optimizer cuts its
    buffer at other tensors on every rank, so the same bytes come in other pieces; and small storages depend on the
    data, such as the tokens of a batch that fall into this rank's part of the vocabulary.
    """
    columns = recording.columns
    kind, subject, device = columns["kind"], columns["subject"], columns["device"]
    is_model = (columns["phase"] == Phase.BACKWARD) | (
        (columns["phase"] == Phase.FORWARD) & (columns["module"] >= 0)
    )
    if is_rough:
        is_small = (kind == Kind.ALLOC) & (columns["value"] < _SMALL * peak_bytes_of(recording))
        device = np.where(is_model & ~is_small, device, -1)
    device = np.where(_of_small_constants(recording), -1, device)
    storage = _numbers_of_storages(kind, subject, device)
    call = _numbers_of_calls(kind, subject)
    # A FREE or MARK row does not always have a device; the ALLOC row does. Frees by Python's cycle collector are
    # ignored: when it runs depends on all objects of a rank, not on its work.
    of_storage = np.isin(kind, _OF_STORAGE) & (storage >= 0) & ~((kind == Kind.FREE) & (columns["role"] != 0))
    of_call = (kind == Kind.COLLECTIVE) | ((kind == Kind.WAIT) & (call >= 0))
    makes = (kind == Kind.OP) & (device >= 0) & (np.diff(recording.outputs[0]) > 0)
    if is_rough:
        of_storage &= is_model & (kind != Kind.MARK)
        makes[:] = False
    keep = of_storage | of_call | makes | (kind == Kind.STEP)
    keep |= (kind == Kind.EMPTY_CACHE) & (device >= 0)
    rows = _with_sorted_frees(np.flatnonzero(keep), kind, storage)

    kind = kind[rows]
    is_alloc, is_call = kind == Kind.ALLOC, kind == Kind.COLLECTIVE
    # The row of a call does not distinguish the host from the first device; the ALLOC rows of its storages do.
    has_device = is_alloc | (kind == Kind.OP) | (kind == Kind.RECORD_STREAM)
    value = np.where(is_alloc, columns["value"][rows], 0)
    with_signature = np.flatnonzero(is_call | (kind == Kind.OP))
    value[with_signature] = _signatures(recording)[columns["value"][rows[with_signature]]]
    hashed = blake2b(digest_size=16)
    for column in (
        kind,
        np.where(of_call[rows], call[rows], np.where(of_storage[rows], storage[rows], -1)),
        value,
        np.where(is_alloc | is_call | (kind == Kind.MARK), columns["role"][rows], 0),
        np.where(is_alloc | is_call, columns["phase"][rows], 0),
        _in_order_of_use(np.where(has_device | is_call, columns["stream"][rows], 0), default=0),
        _in_order_of_use(np.where(has_device, device[rows], -1), default=-1),
        _groups(columns["extra"][rows[is_call]], group_sizes),
        _peers(recording, columns["value"][rows[is_call]]),
    ):
        hashed.update(np.ascontiguousarray(column).data)
    return hashed.hexdigest()


def peak_bytes_of(recording: Recording) -> int:
    """Return the peak of live bytes on the rank's devices, counted as the program requested them."""
    columns = recording.columns
    is_alloc = (columns["kind"] == Kind.ALLOC) & (columns["device"] >= 0)
    allocated, n_bytes = columns["subject"][is_alloc], columns["value"][is_alloc]
    if not len(allocated):
        return 0
    sizes = np.zeros(int(columns["subject"].max()) + 1, np.int64)
    sizes[allocated] = n_bytes
    change = np.where(is_alloc, columns["value"], 0)
    frees = np.flatnonzero(columns["kind"] == Kind.FREE)
    change[frees] = -sizes[columns["subject"][frees]]
    return int(np.cumsum(change).max())


def _of_small_constants(recording: Recording) -> np.ndarray:
    """Whether each row allocates a small constant."""
    columns = recording.columns
    kind, subject, value = columns["kind"], columns["subject"], columns["value"]
    if CONSTANT not in recording.names:
        return np.zeros(len(kind), bool)
    is_mark = (kind == Kind.MARK) & (columns["role"] == Role.TEMPORARY)
    is_mark &= value == recording.names.index(CONSTANT)
    return (kind == Kind.ALLOC) & (value <= _SMALL_CONSTANT) & np.isin(subject, subject[is_mark])


def _with_sorted_frees(rows: np.ndarray, kind: np.ndarray, storage: np.ndarray) -> np.ndarray:
    """The same rows, with frees that follow one another in the order of their storages.

    After the last of them the allocator is in the same state in any order, and a compiled graph releases the inputs
    of an operator in an order that differs between ranks.
    """
    is_free = kind[rows] == Kind.FREE
    order = np.lexsort((np.where(is_free, storage[rows], -1), np.cumsum(~is_free)))
    return rows[order]


def _numbers_of_storages(kind: np.ndarray, subject: np.ndarray, device: np.ndarray) -> np.ndarray:
    """For each row about a storage its number, by order of first allocation on a device; -1: none or host."""
    allocated = subject[(kind == Kind.ALLOC) & (device >= 0) & (subject >= 0)]
    rows = np.flatnonzero(np.isin(kind, _OF_STORAGE) & (subject >= 0))
    numbers = np.full(len(kind), -1, np.int64)
    if len(allocated):
        table = np.full(int(subject[rows].max()) + 1, -1, np.int64)
        table[allocated[::-1]] = np.arange(len(allocated))[
            ::-1
        ]  # of several writes the last one stays: the first allocation
        numbers[rows] = table[subject[rows]]
    return numbers


def _numbers_of_calls(kind: np.ndarray, subject: np.ndarray) -> np.ndarray:
    """For each row of a call, and of a wait for one, how many calls came before it; -1: another row."""
    numbers = np.full(len(kind), -1, np.int64)
    calls, waits = np.flatnonzero(kind == Kind.COLLECTIVE), np.flatnonzero(kind == Kind.WAIT)
    numbers[calls] = np.arange(len(calls))
    if len(calls) and len(waits):
        order = np.argsort(subject[calls], kind="stable")
        ids = subject[calls][order]
        at = np.minimum(np.searchsorted(ids, subject[waits]), len(ids) - 1)
        numbers[waits] = np.where(ids[at] == subject[waits], order[at], -1)
    return numbers


def _in_order_of_use(column: np.ndarray, default: int) -> np.ndarray:
    """Rename the numbers in a column 1, 2, ... as they first appear; `default` becomes 0."""
    found, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    first[found == default] = -1
    rank = np.empty(len(found), np.int32)
    rank[np.argsort(first)] = np.arange(len(found))
    return rank[inverse.reshape(-1)] + (0 if default in found else 1)


def _groups(ids: np.ndarray, group_sizes: Mapping[int, int]) -> np.ndarray:
    """The group of each call, numbered in order of use, and its number of members."""
    sizes = np.array([group_sizes.get(id, 0) for id in ids.tolist()], np.int64)
    return np.stack([_in_order_of_use(ids, default=-1), sizes])


def _peers(recording: Recording, signatures: np.ndarray) -> np.ndarray:
    """The peer of each send and receive, numbered in order of use: which rank it is does not matter."""
    texts = [s.scalars if s.name in _WITH_PEER else "" for s in recording.signatures]
    words = [next((w for w in text.split() if w.startswith("peer=")), "") for text in texts]
    numbers = {word: i for i, word in enumerate(dict.fromkeys(["", *words]))}
    return _in_order_of_use(np.array([numbers[w] for w in words], np.int64)[signatures], default=0)


def _signatures(recording: Recording) -> np.ndarray:
    """A number for each signature that covers only what is work."""
    numbers = [blake2b(_work_of(signature).encode(), digest_size=8) for signature in recording.signatures]
    return np.array([int.from_bytes(n.digest(), "little", signed=True) for n in numbers], np.int64)


def _work_of(signature: Signature) -> str:
    is_call = signature.name.startswith("c10d.")
    specs = [_spec(spec, is_call) for spec in signature.inputs]
    specs += ["->", *(_spec(spec, is_call) for spec in signature.outputs)]
    if is_call:  # the other words name a root or peer, which takes no memory
        specs += [word for word in signature.scalars.split() if word.startswith("op=")]
    return " ".join([signature.name, *specs])


def _spec(spec: TensorSpec, is_call: bool) -> str:
    # Pickled objects are sent as bytes; their length differs from rank to rank although the work is the same.
    return spec.dtype if is_call and spec.dtype == "uint8" else f"{spec.dtype}{list(spec.shape)}"
