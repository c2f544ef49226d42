"""Replaying a tape: what is held after each request, and where a small device fails."""

from __future__ import annotations

from tests.memory.allocators.rounding_allocator import LateAllocator, RoundingAllocator
from windtunnel.memory.peak import replay, replay_limited
from windtunnel.memory.tape import TapeKind, make_tape


def _alloc(id, n_bytes):
    return (TapeKind.ALLOC, id, n_bytes, 0, False, id)


def _free(id):
    return (TapeKind.FREE, id, 0, 0, False, 100 + id)


def test_the_peak_counts_only_what_is_alive_together():
    played = replay(
        make_tape([_alloc(1, 4000), _free(1), _alloc(2, 3000), _alloc(3, 2000)]), RoundingAllocator()
    )
    assert (played.peak, played.peak_bytes) == (3, 3072 + 2048)
    assert played.allocated.tolist() == [4096, 0, 3072, 5120]
    assert played.held.tolist() == [4096, 0, 3072, 2048]
    assert played.released.tolist() == [1, 4, 4, 4]
    assert played.base_address == 0x1000


def test_a_free_that_an_allocator_counts_later_is_held_until_then():
    tape = make_tape(
        [
            _alloc(1, 512),
            (TapeKind.RECORD_STREAM, 1, 0, 7, False, 0),
            _free(1),
            _alloc(2, 512),
            (TapeKind.STREAM_DONE, -1, 0, 7, False, 0),
        ]
    )
    played = replay(tape, LateAllocator())
    assert played.released[0] == 4
    assert played.peak_bytes == 1024


def test_a_limited_replay_names_the_request_that_failed():
    tape = make_tape([_alloc(1, 1024), _alloc(2, 1024), _free(2), _alloc(3, 2048)])
    assert replay_limited(tape, RoundingAllocator(3072)).failure is None
    failed = replay_limited(tape, RoundingAllocator(2048)).failure
    assert (failed.position, failed.requested_bytes) == (3, 2048)


def test_an_empty_tape_has_no_peak():
    played = replay(make_tape([]), RoundingAllocator())
    assert (played.peak, played.peak_bytes) == (-1, 0)
