"""What more steps of a MindSpore program give: "with fragments" by repeating its last step."""

from __future__ import annotations

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Event, Free, Step
from windtunnel.memory import mindspore_fragments
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.mindspore_fragments import MANY_STEPS, is_too_long_to_repeat, peak_after_many_steps
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import play, tape_of

MIB = 1 << 20


def _allocator(device_bytes: int | None) -> Allocator:
    return Allocator.from_spec("mindspore")


def _program(n_steps: int, leak: int = 0) -> list[Event]:
    """Each step makes an output that lives until the step after the next, and two temporaries around it."""
    events: list[Event] = [Alloc(0, 8 * MIB)]
    for step in range(n_steps):
        first = 10 * step + 1
        events += [Alloc(first, 3 * MIB), Alloc(first + 1, 2 * MIB), Free(first), Alloc(first + 2, 4 * MIB)]
        if step >= 2:
            events.append(Free(first + 1 - 20))
        events += [Free(first + 2), *([Alloc(first + 3, leak)] if leak else []), Step(step + 1)]
    return events


def _read(path, events):
    record_events(path, events)
    return read_recording(path)


def _peak(recording) -> int:
    allocator = _allocator(None)
    play(tape_of(recording), allocator)
    return allocator.peak_reserved_bytes


def test_a_few_steps_tell_what_many_give(tmp_path):
    few, many = (_read(tmp_path / str(n), _program(n)) for n in (6, MANY_STEPS))
    assert peak_after_many_steps(RecordedMemory(few, _allocator)) == _peak(many)


def test_it_grows_between_the_few_and_the_many(tmp_path):
    """Otherwise the test above would show nothing."""
    sizes = [_peak(_read(tmp_path / str(n), _program(n))) for n in (1, 2, MANY_STEPS)]
    assert sizes[0] < sizes[2]


def test_nothing_is_told_where_the_last_steps_differ_or_leak(tmp_path):
    cases = [
        _program(2),
        _program(3),
        _program(6, leak=MIB),
        [*_program(6), Alloc(99, MIB), Free(99), Step(7)],
    ]
    found = [
        peak_after_many_steps(RecordedMemory(_read(tmp_path / str(i), events), _allocator))
        for i, events in enumerate(cases)
    ]
    assert found == [None] * 4


def test_a_step_that_is_too_long_to_repeat_is_known_as_such(tmp_path, monkeypatch):
    recorded = RecordedMemory(_read(tmp_path / "r", _program(6)), _allocator)
    assert not is_too_long_to_repeat(recorded)
    monkeypatch.setattr(mindspore_fragments, "_MOST_REQUESTS", 10)
    assert is_too_long_to_repeat(recorded)
    assert peak_after_many_steps(recorded) is None
