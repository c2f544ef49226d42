"""From a recording and seconds to the program of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from windtunnel.cluster.program import StepProgram, Work
from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    Alloc,
    Collective,
    Event,
    EventRecord,
    EventWait,
    Group,
    Kind,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Recording,
    Signature,
    Step,
    Sync,
    Wait,
)
from windtunnel.events.recomputation import is_recomputed

REDUCE, SEND, RECEIVE, MM = 0, 1, 2, 3
SIGNATURES = (
    Signature("c10d.all_reduce", (), (), "op=SUM"),
    Signature("c10d.send", (), (), "peer=3"),
    Signature("c10d.recv", (), (), "peer=1"),
    Signature("aten.mm.default", (), (), ""),
)
GROUPS = [Group(10, (0, 1, 2, 3)), Group(11, (2,)), Group(12, (0, 1))]


@pytest.fixture
def read(tmp_path: Path):
    def read(events: Sequence[Event]) -> Recording:
        record_events(tmp_path / "r.arrows", [*GROUPS, *events], names=("block",), signatures=SIGNATURES)
        return read_recording(tmp_path / "r.arrows")

    return read


def built(recording: Recording, seconds: float = 2.0, host: float = 0.5, **more) -> StepProgram:
    """Every operator takes the same; calls of group 10 take 3 seconds."""
    is_op = recording.columns["kind"] == Kind.OP
    calls = {(10, signature): 3.0 for signature in (REDUCE, SEND, RECEIVE)}
    durations = Durations(np.where(is_op, seconds, 0.0), np.where(is_op, host, 0.0), calls)
    return program_of(recording, 2, durations, **more)


def works(program: StepProgram) -> list[Work]:
    return [Work(int(work)) for work in program.work]


def test_rows_that_take_time_or_wait_become_elements(read):
    recording = read([
        Op(1, MM, stream=7), Alloc(5, 64), Sync(stream=3), EventRecord(4, stream=7), EventWait(4, stream=0), Step(1),
    ])  # fmt: skip
    program = built(recording)
    assert works(program) == [Work.KERNEL, Work.SYNC, Work.RECORD_EVENT, Work.WAIT_EVENT, Work.STEP]
    assert program.row.tolist() == [3, 5, 6, 7, 8]
    assert program.stream.tolist() == [7, 3, 7, 0, 0]
    assert program.seconds.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]
    assert program.host_seconds.tolist() == [0.5, 0.0, 0.0, 0.0, 0.0]


def test_an_operator_without_device_time_is_the_hosts(read):
    assert works(built(read([Op(1, MM)]), seconds=0.0)) == [Work.HOST]


def test_an_operator_on_host_tensors_is_left_out(read):
    assert works(built(read([Op(1, MM, device=-1), Op(2, MM)]))) == [Work.KERNEL]


def test_calls_know_their_group_peer_and_number(read):
    program = built(read([
        Collective(0, REDUCE, 10), Collective(1, SEND, 10, is_async=True), Collective(2, RECEIVE, 10, is_async=True),
        Collective(3, REDUCE, 10), Collective(4, SEND, 10, is_async=True), Wait(4),
    ]))  # fmt: skip
    assert works(program) == [
        Work.COLLECTIVE, Work.SEND, Work.RECEIVE, Work.COLLECTIVE, Work.SEND, Work.WAIT,
    ]  # fmt: skip
    assert program.groups == ((0, 1, 2, 3), (2,))  # not the one that rank 2 is not in
    assert program.group.tolist() == [0, 0, 0, 0, 0, -1]
    assert program.peer.tolist() == [-1, 3, 1, -1, 3, -1]
    assert program.sequence.tolist()[:5] == [0, 0, 0, 1, 1]
    assert program.is_async.tolist() == [False, True, True, False, True, False]
    assert program.seconds.tolist() == [3.0] * 5 + [0.0]
    assert program.subject[5] == 4
    assert program.peers == (1, 3)


def test_a_call_in_a_group_of_one_goes_nowhere(read):
    assert works(built(read([Collective(0, REDUCE, 11)]))) == [Work.HOST]


def test_what_built_the_model_takes_no_time_but_its_calls_are_met(read):
    program = built(read([
        Op(1, MM, phase=Phase.BUILD), Collective(0, SEND, 10, is_async=True, phase=Phase.BUILD), Wait(0),
        Op(2, MM), Collective(1, SEND, 10, is_async=True),
    ]))  # fmt: skip
    assert works(program) == [Work.SEND, Work.WAIT, Work.KERNEL, Work.SEND]
    sends = program.work == Work.SEND
    assert program.seconds[sends].tolist() == [0.0, 3.0]
    assert program.sequence[sends].tolist() == [0, 1]


def test_modules_are_elements_only_if_they_cost_the_host_time(read):
    recording = read([ModuleEnter(0), Op(1, MM), ModuleExit(0)])
    assert works(built(recording)) == [Work.KERNEL]
    host = np.where(recording.columns["kind"] == Kind.MODULE_ENTER, 0.25, 0.0)
    slow = program_of(recording, 2, Durations(np.zeros(len(recording)), host, {}))
    assert works(slow) == [Work.HOST, Work.HOST]
    assert slow.host_seconds.tolist() == [0.25, 0.0]


def test_a_recording_of_building_alone_is_an_empty_program(read):
    assert len(built(read([Op(1, MM, phase=Phase.BUILD)]))) == 0


def test_a_cpu_is_synchronous(read):
    assert built(read([Op(1, MM)]), is_synchronous=True).is_synchronous


def test_rows_of_a_second_forward_pass_are_known(read):
    recording = read([
        ModuleEnter(0), Op(1, MM), ModuleExit(0),
        ModuleEnter(0, is_again=True), Op(2, MM), ModuleExit(0, is_again=True), Op(3, MM),
    ])  # fmt: skip
    ops = recording.columns["kind"] == Kind.OP
    assert is_recomputed(recording)[ops].tolist() == [False, True, False]
