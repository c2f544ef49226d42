"""torch's snapshot.pickle: torch's own viewer reads ours, and we read theirs without running anything."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.recorded import unplayed
from tests.memory.training_run import record_training
from windtunnel.errors import CorruptFile
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, EmptyCache, Free, RecordStream
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.files.snapshot_reader import read_snapshot
from windtunnel.memory.files.snapshot_writer import write_snapshot
from windtunnel.memory.tape import TapeKind, play, tape_of

REAL = Path(__file__).parents[4] / "shared" / "data" / "allocator" / "real"
MIB = 1 << 20


def _write(tmp_path, events):
    record_events(tmp_path / "r.arrows", events)
    path = tmp_path / "snapshot.pickle"
    write_snapshot(path, unplayed(read_recording(tmp_path / "r.arrows")), Allocator.named("cuda"))
    return path


def _pickle(tmp_path, value):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    return path


def _entry(action, addr, size, stream=0):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": []}


def _segment(address, size, blocks, **more):
    return {"address": address, "total_size": size, "stream": 0, "blocks": blocks, **more}


def test_the_trace_holds_every_request_and_the_segments_behind_them(tmp_path):
    path = _write(tmp_path, [Alloc(1, 3 * MIB), Alloc(2, 100), Free(1), EmptyCache()])
    snapshot = pickle.loads(path.read_bytes())
    assert [(e["action"], e["size"]) for e in snapshot["device_traces"][0]] == [
        ("segment_alloc", 20 * MIB),
        ("alloc", 3 * MIB),
        ("segment_alloc", 2 * MIB),
        ("alloc", 100),
        ("free_requested", 3 * MIB),
        ("free_completed", 3 * MIB),
        ("segment_free", 20 * MIB),
    ]
    (segment,) = snapshot["segments"]
    assert (segment["total_size"], segment["allocated_size"], segment["segment_type"]) == (
        2 * MIB,
        512,
        "small",
    )
    assert [b["state"] for b in segment["blocks"]] == ["active_allocated", "inactive"]


def test_a_free_waits_for_a_side_stream_until_the_next_allocation(tmp_path):
    path = _write(tmp_path, [Alloc(1, 100), RecordStream(1, 7), Free(1), Alloc(2, 100)])
    actions = [e["action"] for e in pickle.loads(path.read_bytes())["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "alloc"]


def test_torchs_own_viewer_reads_it(tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "snapshot.pickle"
    write_snapshot(path, unplayed(record_training(tmp_path / "r.arrows")), Allocator.named("cuda"))
    snapshot = pickle.loads(path.read_bytes())
    assert "total_reserved: 2.0MiB" in viz.segsum(snapshot)
    assert "b = a[0:8.0KiB]" in viz.trace(snapshot)  # the first weight, at the start of the first segment
    assert "active_allocated" in viz.segments(snapshot, lambda lines: lines)
    assert "<script" in viz.trace_plot(snapshot)
    assert "<script" in viz.segment_plot(snapshot)


def test_frames_name_the_operator_in_its_module_then_the_python_stack(tmp_path):
    path = tmp_path / "snapshot.pickle"
    write_snapshot(path, unplayed(record_training(tmp_path / "r.arrows")), Allocator.named("cuda"))
    entries = pickle.loads(path.read_bytes())["device_traces"][0]
    linear = next(e for e in entries if e["frames"] and e["frames"][0]["name"] == "aten.linear")
    assert [(f["filename"], f["line"], f["name"]) for f in linear["frames"]] == [
        ("layers.0", 0, "aten.linear"),
        ("/site-packages/lib/nn.py", 7, "forward"),
        ("/home/me/train.py", 41, "main"),
    ]
    assert linear["user_metadata"] == "activations"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans(), st.booleans()), max_size=25))
def test_what_is_written_is_read_back_as_the_same_requests(tmp_path_factory, script):
    directory = tmp_path_factory.mktemp("s")
    events = []
    for i, (n_bytes, is_freed, is_emptied) in enumerate(script):
        events += [Alloc(i, n_bytes)] + [Free(i // 2)] * is_freed + [EmptyCache()] * is_emptied
    path = _write(directory, events)
    found, wanted = read_snapshot(path), tape_of(read_recording(directory / "r.arrows"))

    def requests(tape):
        names: dict[int, int] = {}
        rows = zip(tape.kind.tolist(), tape.id.tolist(), tape.n_bytes.tolist(), strict=True)
        return [(k, names.setdefault(i, len(names)), n) for k, i, n in rows if k != TapeKind.EMPTY_CACHE]

    assert requests(found) == requests(wanted)
    allocator = Allocator.named("cuda")
    play(wanted, allocator)
    assert found.recorded_peak_reserved_bytes == allocator.peak_reserved_bytes
    replayed = Allocator.named("cuda")
    play(found, replayed)
    assert replayed.peak_reserved_bytes == allocator.peak_reserved_bytes


def test_what_was_allocated_before_the_trace_comes_first_in_order_of_address(tmp_path):
    blocks = [
        {"address": 0x3000, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
        {"address": 0x3200, "size": 512, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    freed = [_entry("free_requested", 0x1000, 700), _entry("free_completed", 0x1000, 700)]
    trace = [*freed, _entry("alloc", 0x1000, 90)]
    segments = [_segment(0x3000, 1024, blocks), _segment(0x1000, 2048, [])]
    tape = read_snapshot(_pickle(tmp_path, {"segments": segments, "device_traces": [trace]}))
    assert tape.kind.tolist() == [TapeKind.ALLOC, TapeKind.ALLOC, TapeKind.FREE, TapeKind.ALLOC]
    assert tape.n_bytes.tolist() == [700, 500, 0, 90]
    assert "2 allocations" in tape.notes[0]
    assert tape.recorded_peak_reserved_bytes == 3072


def test_the_format_of_torch_2_0_is_read(tmp_path):
    blocks = [
        {"size": 1024, "state": "inactive"},
        {"size": 512, "state": "active_allocated", "history": [{"addr": 1, "real_size": 400, "frames": []}]},
    ]
    snapshot = {"segments": [_segment(0x1000, 1536, blocks)], "device_traces": [[]]}
    tape = read_snapshot(_pickle(tmp_path, snapshot))
    assert tape.n_bytes.tolist() == [400]
    assert "no trace" in tape.notes[-1]


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path):
    trap = tmp_path / "trap"
    with pytest.raises(CorruptFile, match="asks to run"):
        read_snapshot(_pickle(tmp_path, {"segments": [], "device_traces": [], "more": Trap(trap)}))
    assert not trap.exists()


@pytest.mark.parametrize(
    "value",
    [
        7,
        [],
        {"segments": []},
        {"segments": 3, "device_traces": [[]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": "x", "size": 1}]]},
        {"segments": [], "device_traces": [[_entry("alloc", 1, -5)]]},
        {"segments": [], "device_traces": [[_entry("alloc", 1, 1 << 60)]]},
        {"segments": [], "device_traces": [[_entry("free_completed", 1, 5), _entry("free_completed", 1, 5)]]},
        {"segments": [{"blocks": None}], "device_traces": []},
    ],
)
def test_other_pickles_are_refused_in_one_sentence(tmp_path, value):
    with pytest.raises(CorruptFile):
        read_snapshot(_pickle(tmp_path, value))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 400))
def test_any_damage_is_refused_or_harmless(tmp_path_factory, noise, cut):
    path = tmp_path_factory.mktemp("s") / "snapshot.pickle"
    whole = pickle.dumps({"segments": [], "device_traces": [[_entry("alloc", 1 << 40, 512)]]})
    path.write_bytes(whole[:cut] + noise + whole[cut + len(noise) :])
    try:
        tape = read_snapshot(path)
    except CorruptFile as refused:
        assert refused.exit_code == 2
    else:
        assert len(tape.kind) == len(tape.n_bytes)


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared traces of real GPUs")
@pytest.mark.parametrize("number", ["024", "052", "054", "058"])
def test_a_real_trace_replays_to_the_peak_the_gpu_recorded(tmp_path, number):
    data = json.loads(gzip.decompress((REAL / f"{number}.json.gz").read_bytes()))
    trace = [_entry(*event) for event in data["events"]]
    segments = []
    for address, total, stream, kind, _, blocks in data["final_segments"]:
        entries = [{"size": s, "requested_size": r, "state": state} for s, r, state in blocks]
        segments.append(_segment(address, total, entries, segment_type=kind) | {"stream": stream})
    tape = read_snapshot(_pickle(tmp_path, {"segments": segments, "device_traces": [trace]}))
    allocator = Allocator.named("cuda", torch="2.11")
    play(tape, allocator)
    assert tape.recorded_peak_reserved_bytes == data["recorded"]["peak_reserved"]
    assert allocator.peak_reserved_bytes == data["recorded"]["peak_reserved"]
