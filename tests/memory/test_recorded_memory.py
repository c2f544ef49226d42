"""Lifetimes, tapes and replays of a recording: each built once, and the maps of the peaks come out of the same replay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.training_run import record_training
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Free
from windtunnel.memory import allocator_map, recorded_memory
from windtunnel.memory.allocation_list import rank_detail
from windtunnel.memory.allocator_map import PeakMaps, take_maps
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.analysis import analyse_memory
from windtunnel.memory.peak import replay
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import TapeKind, make_tape

SPECS = ("cuda", "cuda-expandable", "npu", "mindspore", "megengine", "cpu")


@pytest.fixture
def counts(monkeypatch):
    """How often each part is built."""
    found: Counter[str] = Counter()

    def count(module, name):
        true = getattr(module, name)

        def counted(*args, **kwargs):
            found[name] += 1
            return true(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for name in ("lifetimes_of", "tape_of", "replay"):
        count(recorded_memory, name)
    count(allocator_map, "play")  # for maps that the replay did not bring
    return found


def cuda(device_bytes):
    return Allocator.from_spec("cuda", device_bytes=device_bytes)


def test_the_report_and_the_page_share_one_replay(tmp_path, counts):
    recorded = RecordedMemory(record_training(tmp_path / "r.arrows"), cuda, takes_maps=True)
    memory, detail = analyse_memory(recorded), rank_detail(recorded)
    assert detail.peak_row == memory.peak_event
    assert len(detail.maps) == 1
    assert counts == {"lifetimes_of": 1, "tape_of": 1, "replay": 1}


def test_another_allocator_shares_lifetimes_and_tape(tmp_path, counts):
    recorded = RecordedMemory(record_training(tmp_path / "r.arrows"), cuda)
    first = analyse_memory(recorded)
    other = recorded.under(lambda limit: Allocator.from_spec("mindspore", device_bytes=limit))
    assert analyse_memory(other).peak_with_fragments_bytes != first.peak_with_fragments_bytes
    assert counts == {"lifetimes_of": 1, "tape_of": 1, "replay": 2}
    assert analyse_memory(recorded).peak_bytes == first.peak_bytes
    assert counts["replay"] == 2


def test_what_it_holds_is_counted(tmp_path):
    recorded = RecordedMemory(record_training(tmp_path / "r.arrows"), cuda)
    read = recorded.n_bytes
    assert read >= sum(column.nbytes for column in recorded.recording.columns.values())
    analyse_memory(recorded)
    assert recorded.n_bytes >= read + 4 * 8 * len(recorded.tape(0)) + 8 * len(recorded.lives)


requests = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([1, 500, 512, 4000, 1 << 20, 3 << 20, 11 << 20])),
    max_size=60,
)


def tape_from(steps):
    """A step allocates under a new id, or frees what its number points to."""
    made, live, n = [], [], 0
    for choice, n_bytes in steps:
        if live and choice < 12:
            id = live.pop(choice % len(live))
            made.append((TapeKind.FREE, id, 0, 0, False, len(made)))
        elif choice == 12:
            made.append((TapeKind.EMPTY_CACHE, -1, 0, 0, False, len(made)))
        else:
            n += 1
            live.append(n)
            made.append((TapeKind.ALLOC, n, n_bytes, choice % 2, False, len(made)))
    return make_tape(made)


@settings(max_examples=150, deadline=None)
@given(steps=requests, spec=st.sampled_from(SPECS))
def test_maps_taken_on_the_way_are_those_of_a_second_replay(steps, spec):
    tape = tape_from(steps)
    allocator = Allocator.from_spec(spec)
    maps = PeakMaps(tape, allocator)
    played, taken = replay(tape, allocator, maps), maps.taken()
    assert np.array_equal(played.reserved, replay(tape, Allocator.from_spec(spec)).reserved)
    if played.peak < 0 or not played.allocated.any():
        return
    assert played.peak in taken
    again = take_maps(tape, Allocator.from_spec(spec), taken)
    for position in taken:
        one, other = vars(taken[position]), vars(again[position])
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_peak_of_reserved_bytes_after_that_of_live_bytes_is_taken_on_the_way(tmp_path, counts):
    mib = 1 << 20
    events = [*(Alloc(i, 20 * mib) for i in range(3)), *(Free(i) for i in range(3)), Alloc(3, 30 * mib)]
    record_events(tmp_path / "r.arrows", events)
    recorded = RecordedMemory(read_recording(tmp_path / "r.arrows"), cuda, takes_maps=True)
    live, reserved = rank_detail(recorded).maps
    assert (live.columns.allocated_bytes, live.columns.reserved_bytes) == (60 * mib, 60 * mib)
    assert (reserved.columns.allocated_bytes, reserved.columns.reserved_bytes) == (30 * mib, 90 * mib)
    assert counts["play"] == 0


def test_where_too_many_moments_may_be_the_peak_a_second_replay_gives_the_maps(tmp_path, counts, monkeypatch):
    recording = record_training(tmp_path / "r.arrows")
    whole = rank_detail(RecordedMemory(recording, cuda, takes_maps=True))
    monkeypatch.setattr(PeakMaps, "_rise", lambda *args: None)
    counts.clear()
    late = rank_detail(RecordedMemory(recording, cuda, takes_maps=True))
    assert counts["play"] == 1
    for one, other in zip(late.maps, whole.maps, strict=True):
        assert all(
            np.array_equal(vars(one.columns)[name], vars(other.columns)[name]) for name in vars(one.columns)
        )


def test_listing_stops_when_it_would_cost_more_than_the_replay():
    n = 3000
    steps = []
    for i in range(
        n
    ):  # every second request is a free: each allocation before one is a moment that may be the peak
        steps += [
            (TapeKind.ALLOC, 2 * i, 1, 0, False, len(steps)),
            (TapeKind.ALLOC, 2 * i + 1, 1, 0, False, 0),
        ]
        steps.append((TapeKind.FREE, 2 * i + 1, 0, 0, False, 0))
    tape = make_tape(steps)
    allocator = Allocator.from_spec("cuda")
    maps = PeakMaps(tape, allocator)
    n_listed = 0
    true = maps._look

    def look():
        nonlocal n_listed
        found = true()
        n_listed += sum(len(segment.blocks) for segment in found)
        return found

    maps._look = look
    replay(tape, allocator, maps)
    assert n_listed <= max(len(tape), allocator_map._FREE_BLOCKS) + n + 1
