"""Every allocation of a rank in detail: exact on a small training, and in agreement with the report on any program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.allocators.rounding_allocator import LateAllocator, RoundingAllocator
from tests.memory.recorded import detail_of, memory_of
from tests.memory.training_run import KIB, record_training
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    Alloc,
    Collective,
    EmptyCache,
    Frame,
    Free,
    Mark,
    Op,
    Phase,
    RecordStream,
    Role,
    Signature,
    Step,
    Sync,
    TensorSpec,
)
from windtunnel.memory.allocation_labels import number_rows
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.attribution import ROLES
from windtunnel.memory.peak import replay
from windtunnel.memory.tape import tape_of
from windtunnel.memory.thin_curve import outline
from windtunnel.units import MIB

SPECS = ("cuda", "cuda-expandable", "npu", "mindspore", "megengine", "cpu")


@pytest.fixture
def training(tmp_path):
    return record_training(tmp_path / "r.arrows")


def at_row(detail, row):
    """Bytes by role right after a row: the allocations that live, and the rest."""
    lives = (detail.born <= row) & (detail.freed > row)
    held = np.zeros(len(ROLES), np.int64)
    np.add.at(held, detail.labels.role[detail.label[lives]], detail.n_bytes[lives])
    if detail.rest is not None:
        point = np.searchsorted(detail.rest.row, row, side="right") - 1
        held += detail.rest.n_bytes[point] if point >= 0 else 0
    return held.tolist()


def by_role(memory):
    return [n_bytes for _, n_bytes in memory.at_peak.items()]


def label_of(detail, allocation):
    i = detail.label[allocation]
    texts = [
        detail.texts[column[i]]
        for column in (
            detail.labels.name,
            detail.labels.op,
            detail.labels.module,
            detail.labels.shape,
            detail.labels.where,
        )
    ]
    return (*texts, int(detail.labels.role[i]))


def test_a_small_training_is_reported_allocation_by_allocation(training):
    detail = detail_of(training, RoundingAllocator)
    assert detail.n_rows == len(training)
    assert detail.n_bytes.tolist() == [n * KIB for n in (8, 8, 16, 16, 16, 8, 8, 8, 8, 16, 16, 16, 8, 8)]
    assert label_of(detail, 0) == ("layers.0.weight", "", "layers.0", "", "", 0)
    assert label_of(detail, 3) == ("", "aten.linear", "layers.0", "64x64 float32", "train.py:41", 3)
    assert label_of(detail, 5) == ("layers.1.weight", "aten.mm", "layers.1", "32x64 float32", "", 1)
    assert detail.freed[0] == detail.n_rows  # a weight is never freed
    kinds = training.columns["kind"][detail.freed[detail.freed < detail.n_rows]]
    assert set(kinds.tolist()) == {3}
    assert detail.rest is None
    assert detail.left_out == ()


def test_the_live_ones_at_the_peak_add_up_to_the_report(training):
    detail, memory = detail_of(training, RoundingAllocator), memory_of(training, RoundingAllocator)
    assert detail.peak_row == memory.peak_event
    assert at_row(detail, detail.peak_row) == by_role(memory)
    assert sum(at_row(detail, detail.peak_row)) == memory.peak_bytes == 88 * KIB


def test_operators_steps_and_phases_have_their_rows(training):
    detail = detail_of(training, RoundingAllocator)
    names = [detail.texts[i] for i in detail.ops.name.tolist()]
    assert names == ["aten.linear", "aten.linear", "aten.mm", "aten.mm"] * 2
    assert training.columns["kind"][detail.ops.row].tolist() == [1] * 8
    assert detail.ops.row - detail.ops.n_rows == pytest.approx(np.append(-1, detail.ops.row[:-1]))
    assert detail.step.tolist() == [1, 2]
    assert detail.step_row[0] == 0
    assert (
        training.columns["kind"][detail.step_row[1] - 1] == 6
    )  # a step begins after the row that ends the other
    words = [Phase(p).name for p in detail.phase.tolist()]
    assert words == ["BUILD", "FORWARD", "BACKWARD", "OPTIMIZER", "FORWARD", "BACKWARD"]


def test_stacks_keep_their_callers_and_nothing_else(training):
    detail = detail_of(training, RoundingAllocator)
    frame = detail.labels.frame[detail.label[3]]
    files = []
    while frame >= 0:
        files.append((detail.texts[detail.frames.file[frame]], int(detail.frames.line[frame])))
        frame = detail.frames.parent[frame]
    assert files == [("/site-packages/lib/nn.py", 7), ("/home/me/train.py", 41)]


def test_unused_frames_are_left_out(tmp_path):
    frames = [Frame("a.py", 1, "f"), Frame("b.py", 2, "g", 0), Frame("c.py", 3, "h", 0)]
    record_events(tmp_path / "r.arrows", [Alloc(1, 512, frame=2)], frames=frames)
    detail = detail_of(read_recording(tmp_path / "r.arrows"), RoundingAllocator)
    assert [detail.texts[i] for i in detail.frames.file.tolist()] == ["a.py", "c.py"]
    assert detail.frames.parent.tolist() == [-1, 0]


def test_the_map_shows_who_sits_in_every_block(training):
    detail = detail_of(training, lambda limit: Allocator.from_spec("cuda", device_bytes=limit))
    (found,) = detail.maps
    assert (found.title, found.row) == ("peak of live bytes", detail.peak_row)
    active = found.columns.block_state == 0
    assert detail.n_bytes[found.allocation[active]].tolist() == found.columns.block_bytes[active].tolist()
    assert found.columns.block_bytes[active].sum() == found.columns.allocated_bytes == 88 * KIB
    assert found.columns.block_bytes.sum() == found.columns.n_bytes.sum() == found.columns.reserved_bytes
    assert (found.allocation[~active] == -1).all()


def test_a_later_peak_of_reserved_bytes_has_a_map_of_its_own(tmp_path):
    """Many small blocks, half of them freed, leave no room for a large one."""
    events = (
        [Alloc(i, 2 * MIB) for i in range(20)] + [Free(i) for i in range(0, 20, 2)] + [Alloc(99, 19 * MIB)]
    )
    record_events(tmp_path / "r.arrows", events)
    recording = read_recording(tmp_path / "r.arrows")
    detail = detail_of(recording, lambda limit: Allocator.from_spec("cuda", device_bytes=limit))
    assert [m.title for m in detail.maps] == ["peak of live bytes", "peak of reserved bytes"]
    assert detail.maps[0].columns.allocated_bytes == 40 * MIB
    assert detail.maps[1].row == len(recording) - 1
    assert detail.maps[1].columns.reserved_bytes > detail.maps[0].columns.reserved_bytes


def test_an_allocator_that_cannot_tell_its_segments_has_no_map(training):
    assert detail_of(training, RoundingAllocator).maps == ()


def test_beyond_a_number_of_allocations_the_smallest_are_only_counted(training):
    memory = memory_of(training, RoundingAllocator)
    detail = detail_of(training, RoundingAllocator, most_allocations=9)
    assert len(detail.born) == 9
    assert at_row(detail, detail.peak_row) == by_role(memory)
    assert detail.left_out == (
        "5 of 14 allocations are counted but not listed: the smallest that are not alive at a peak",
    )
    whole = detail_of(training, RoundingAllocator)
    for row in range(len(training)):
        assert at_row(detail, row) == at_row(whole, row)
    at_peak = (whole.born <= whole.peak_row) & (whole.freed > whole.peak_row)
    assert set(whole.born[at_peak].tolist()) <= set(detail.born.tolist())


def test_too_many_operators_leave_those_of_the_peak_and_the_last(training):
    detail = detail_of(training, RoundingAllocator, most_allocations=3)
    whole = detail_of(training, RoundingAllocator)
    assert detail.ops.row.tolist() == whole.ops.row[-3:].tolist()
    assert detail.ops.n_rows.tolist() == whole.ops.n_rows[-3:].tolist()
    assert "5 of 8 operators are not listed" in detail.left_out[1]


def test_the_rest_of_a_long_run_keeps_its_outline(tmp_path):
    events = []
    for i in range(20_000):
        events += [Alloc(i, 512 * (1 + i % 7)), Free(i)]
    events += [Alloc(50_000, 512), Alloc(50_001, 512 * 100)]
    record_events(tmp_path / "r.arrows", events)
    recording = read_recording(tmp_path / "r.arrows")
    detail = detail_of(recording, RoundingAllocator, most_allocations=1)
    assert len(detail.rest.row) < 5000
    assert detail.rest.n_bytes.sum(axis=1).max() == 512 * 7
    assert sum(at_row(detail, detail.peak_row)) == 512 * 101


def test_bytes_freed_late_stay_until_the_stream_is_done(tmp_path):
    events = [Alloc(1, 512), RecordStream(1, 7), Free(1), Alloc(2, 512), Sync(7), Alloc(3, 512)]
    record_events(tmp_path / "r.arrows", events)
    detail = detail_of(read_recording(tmp_path / "r.arrows"), LateAllocator)
    assert detail.freed.tolist() == [2, 6, 6]


def test_another_card_has_its_own_details(tmp_path):
    record_events(tmp_path / "r.arrows", [Alloc(1, 512), Alloc(2, 1024, device=1), Op(0, -1, device=1)])
    recording = read_recording(tmp_path / "r.arrows")
    assert detail_of(recording, RoundingAllocator, device=1).n_bytes.tolist() == [1024]
    assert detail_of(recording, RoundingAllocator, device=0).ops is None


def test_a_rank_that_allocates_nothing_has_no_peak(tmp_path):
    record_events(tmp_path / "r.arrows", [])
    detail = detail_of(read_recording(tmp_path / "r.arrows"), RoundingAllocator)
    assert (detail.peak_row, len(detail.born), detail.rest, detail.maps) == (-1, 0, None, ())


def test_rows_are_numbered_in_the_order_they_appear():
    first, number = number_rows([np.array([5, 3, 5, 5]), np.array([-1, 2, -1, 7])])
    assert first.tolist() == [0, 1, 3]
    assert number.tolist() == [0, 1, 0, 2]


def test_an_outline_keeps_extremes_ends_and_what_it_is_reported():
    values = np.zeros(1000, np.int64)
    values[[313, 700]] = 9, -9
    kept = outline(values, 10, np.array([555]))
    assert {0, 313, 555, 700, 999} <= set(kept.tolist())
    assert len(kept) <= 13


# -- any program -------------------------------------------------------------------------------------------------------

_SIGNATURES = [
    Signature("aten.mm.default", (), (TensorSpec((4, 4), (4, 1), "float32"),), ""),
    Signature("c10d.all_reduce", (), (), ""),
]
_FRAMES = [Frame("train.py", 1, "main"), Frame("model.py", 2, "forward", 0)]
requests = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 3 * MIB), st.sampled_from(list(Role)), st.integers(0, 1)),
        st.tuples(st.just("op"), st.integers(1, 3 * MIB), st.sampled_from(list(Phase)), st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 99), st.none(), st.none()),
        st.tuples(st.just("mark"), st.integers(0, 99), st.sampled_from(list(Role)), st.none()),
        st.tuples(st.just("use"), st.integers(0, 99), st.none(), st.integers(0, 2)),
        st.tuples(
            st.sampled_from(["sync", "empty", "step", "communication"]), st.none(), st.none(), st.none()
        ),
    ),
    max_size=50,
)


def program(steps):
    events, live, n, n_steps = [], [], 0, 0
    for what, number, word, stream in steps:
        if what in ("alloc", "op"):
            n += 1
            live.append(n)
            role, phase = (word, Phase.FORWARD) if what == "alloc" else (Role.UNKNOWN, word)
            events.append(
                Alloc(n, number, n if what == "op" else -1, role, n % 3 - 1, phase, stream, frame=1)
            )
            if what == "op":
                events.append(Op(n, 0, (), (n,), n % 3 - 1, phase, frame=1))
        elif what == "free" and live:
            events.append(Free(live.pop(number % len(live))))
        elif what == "mark" and live:
            events.append(Mark(live[number % len(live)], word, number % 3 - 1))
        elif what == "use" and live:
            events.append(RecordStream(live[number % len(live)], stream))
        elif what in ("sync", "empty", "communication"):
            events.append(
                {
                    "sync": Sync(),
                    "empty": EmptyCache(),
                    "communication": Collective(10**6 + len(events), 1, 0),
                }[what]
            )
        elif what == "step":
            n_steps += 1
            events.append(Step(n_steps))
    return events


@settings(max_examples=60, deadline=None)
@given(steps=requests, spec=st.sampled_from(SPECS), most=st.sampled_from([1, 5, 1000]))
def test_any_program_adds_up_to_its_report_under_every_allocator(tmp_path_factory, steps, spec, most):
    path = tmp_path_factory.mktemp("any") / "r.arrows"
    record_events(path, program(steps), ("a.weight", "b"), _SIGNATURES, _FRAMES)
    recording = read_recording(path)

    def make(device_bytes):
        return Allocator.from_spec(spec, device_bytes=device_bytes)

    detail, memory = detail_of(recording, make, 0, most), memory_of(recording, make)
    if memory.peak_event < 0:
        assert len(detail.born) == 0
        return
    assert detail.peak_row == memory.peak_event
    assert at_row(detail, detail.peak_row) == by_role(memory)
    assert len(detail.born) <= most
    tape = tape_of(recording)
    played = replay(tape, make(None))
    for position in range(len(tape)):
        is_last = position + 1 == len(tape) or tape.event[position + 1] != tape.event[position]
        if is_last and position != played.peak:
            assert sum(at_row(detail, tape.event[position])) == played.allocated[position]
    for found in detail.maps:
        columns = found.columns
        told = found.allocation >= 0
        owners = columns.block_owner[told]
        assert detail.born[found.allocation[told]].tolist() == owners.tolist()
        assert columns.block_bytes.sum() == columns.n_bytes.sum() >= columns.reserved_bytes
