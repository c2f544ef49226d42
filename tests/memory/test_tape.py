"""The tape: allocator requests of one device, in program order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, EmptyCache, Free, Mark, RecordStream, Role, Sync
from windtunnel.memory.tape import TapeKind, play, tape_of


def _tape(tmp_path, events, device=0):
    record_events(tmp_path / "r.arrows", events)
    return tape_of(read_recording(tmp_path / "r.arrows"), device)


def _rows(tape):
    return list(
        zip(tape.kind.tolist(), tape.id.tolist(), tape.n_bytes.tolist(), tape.stream.tolist(), strict=True)
    )


class Listener:
    def __init__(self):
        self.heard = []

    def alloc(self, id, n_bytes, stream=0):
        self.heard.append(("alloc", id, n_bytes, stream))
        return 0

    def free(self, id):
        self.heard.append(("free", id))

    def record_stream(self, id, stream):
        self.heard.append(("record_stream", id, stream))

    def stream_done(self, stream):
        self.heard.append(("stream_done", stream))

    def empty_cache(self):
        self.heard.append(("empty_cache",))


def test_a_tape_keeps_only_its_device_and_drops_empty_storages(tmp_path):
    events = [
        Alloc(1, 100),
        Alloc(2, 200, device=1),
        Alloc(3, 0),
        Mark(1, Role.WEIGHT),
        Free(2),
        Free(3),
        Free(1),
    ]
    assert _rows(_tape(tmp_path, events)) == [(TapeKind.ALLOC, 0, 100, 0), (TapeKind.FREE, 0, 0, 0)]
    assert _rows(_tape(tmp_path, events, device=1)) == [(TapeKind.ALLOC, 1, 200, 0), (TapeKind.FREE, 1, 0, 0)]


def test_a_resized_storage_is_a_new_allocation(tmp_path):
    tape = _tape(tmp_path, [Alloc(7, 100), Free(7), Alloc(7, 300), Free(7)])
    assert tape.id.tolist() == [0, 0, 2, 2]
    assert tape.event.tolist() == [0, 1, 2, 3]


def test_a_storage_used_on_a_side_stream_is_finished_right_after_its_free(tmp_path):
    tape = _tape(tmp_path, [Alloc(1, 100), RecordStream(1, 7), Free(1), Sync(), EmptyCache()])
    listener = Listener()
    play(tape, listener)
    assert listener.heard == [
        ("alloc", 0, 100, 0),
        ("record_stream", 0, 7),
        ("free", 0),
        ("stream_done", 7),
        ("stream_done", 7),
        ("empty_cache",),
    ]


def test_the_free_of_something_allocated_before_the_recording_is_ignored(tmp_path):
    assert len(_tape(tmp_path, [Free(9), Alloc(1, 100)])) == 1


class PersistentListener(Listener):
    def alloc(self, id, n_bytes, stream=0, *, persistent=False):
        self.heard.append((id, persistent))
        return 4096 + id


def test_weights_are_announced_to_an_allocator_that_keeps_them_apart(tmp_path):
    tape = _tape(tmp_path, [Alloc(1, 100, role=Role.WEIGHT), Alloc(2, 100)])
    listener, notes = PersistentListener(), []
    play(tape, listener, lambda *note: notes.append(note))
    assert listener.heard == [(0, True), (1, False)]
    assert notes == [(TapeKind.ALLOC, 0, 4096), (TapeKind.ALLOC, 1, 4097)]


steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.integers(0, 1)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_a_tape_agrees_with_a_slow_reading(tmp_path_factory, script):
    events = []
    for storage, what, number, device in script:
        events.append(
            [
                Alloc(storage, number * 100, device=device, stream=number),
                Free(storage),
                RecordStream(storage, number),
                Sync(number - 1, device),
                EmptyCache(device),
            ][what]
        )
    wanted, live, used = [], {}, {}
    sides = sorted(
        {e.stream for i, e in enumerate(events) if isinstance(e, RecordStream) and _is_live(events, i)}
    )
    for row, event in enumerate(events):
        match event:
            case Alloc():
                live[event.storage] = (row, event.device == 0 and event.n_bytes > 0)
                if live[event.storage][1]:
                    wanted.append((TapeKind.ALLOC, row, event.n_bytes, event.stream))
            case Free():
                id, is_ours = live.pop(event.storage, (-1, False))
                if is_ours:
                    wanted.append((TapeKind.FREE, id, 0, 0))
                    wanted += [(TapeKind.STREAM_DONE, -1, 0, s) for s in sorted(used.pop(id, ()))]
            case RecordStream():
                id, is_ours = live.get(event.storage, (-1, False))
                if is_ours:
                    used.setdefault(id, set()).add(event.stream)
                    wanted.append((TapeKind.RECORD_STREAM, id, 0, event.stream))
            case Sync() if event.device == 0:
                done = sides if event.stream < 0 else [event.stream]
                wanted += [(TapeKind.STREAM_DONE, -1, 0, s) for s in done]
            case EmptyCache() if event.device == 0:
                wanted.append((TapeKind.EMPTY_CACHE, -1, 0, 0))
    assert _rows(_tape(tmp_path_factory.mktemp("t"), events)) == wanted


def _is_live(events, row):
    """Whether the storage used in this row is alive on device 0."""
    for event in reversed(events[:row]):
        if isinstance(event, (Alloc, Free)) and event.storage == events[row].storage:
            return isinstance(event, Alloc) and event.device == 0 and event.n_bytes > 0
    return False
