"""Level 3 on recordings written by hand: what is timed, counted and noted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.runs import FITTING
from windtunnel.cluster.matching import Mismatch
from windtunnel.devices import find_device
from windtunnel.events.file import record_events
from windtunnel.events.model import (
    Alloc,
    Collective,
    Group,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Signature,
    Step,
    TensorSpec,
)
from windtunnel.report.results.run import failed_rank
from windtunnel.session.rank_analysis import Finding
from windtunnel.session.request import RunRequest, task_of
from windtunnel.session.simulation import summarise
from windtunnel.session.time_stage import time_run

N = 1024


def spec(*shape, dtype="bfloat16"):
    strides, step = (), 1
    for size in reversed(shape):
        strides, step = (step, *strides), step * size
    return TensorSpec(shape, strides, dtype)


MM = Signature("aten.mm.default", (spec(N, N), spec(N, N)), (spec(N, N),), "")
LOOKUP = Signature(
    "aten.embedding.default", (spec(32000, 64), spec(4, 512, dtype="int64")), (spec(4, 512, 64),), ""
)
ODD = Signature("mine.odd.default", (spec(N, N),), (spec(N, N),), "")
SUM = Signature("c10d.all_reduce", (spec(N, N),), (), "op=SUM")
SEND = [Signature("c10d.send", (spec(N, N),), (), f"peer={peer}") for peer in range(6)]
RECEIVE = [Signature("c10d.recv", (), (spec(N, N),), f"peer={peer}") for peer in range(6)]
SIGNATURES = [MM, LOOKUP, ODD, SUM, *SEND, *RECEIVE]


def op(signature, phase=Phase.FORWARD):
    return Op(0, SIGNATURES.index(signature), phase=phase)


def call(signature, id=0, group=0, phase=Phase.FORWARD):
    return Collective(id, SIGNATURES.index(signature), group, (1,), (1,), phase=phase)


def request_in(folder: Path, **more) -> RunRequest:
    request = RunRequest(
        "train.py", (), False, find_device("a100-80gb"), "cuda", "", None, 1, 8, True, 3, None, False, False, folder,
    )  # fmt: skip
    return replace(request, **more)


def write(request, rank, events):
    record_events(
        task_of(request, rank).recording_path, [ModuleEnter(0), *events, ModuleExit(0)], ["net"], SIGNATURES
    )


def timed(folder, *programs, stands_for=None, **more):
    """Time the programs of ranks 0, 1, ...; `stands_for` says who shows which other ranks."""
    shown = {rank: rank for rank in range(len(programs))} | (stands_for or {})
    request = request_in(folder, world_size=more.pop("world_size", len(shown)), **more)
    for rank, events in enumerate(programs):
        write(request, rank, events)
    results = {rank: replace(FITTING, rank=rank) for rank in range(len(programs))}
    return time_run(request, results, shown)


def test_the_last_step_is_profiled_and_the_first_is_distinguished(tmp_path):
    found = timed(tmp_path, [op(MM), op(MM), op(MM), Step(1), op(MM), Step(2), op(MM), Step(3)])
    assert (found.time.n_steps, found.time.model_flops) == (3, 2 * N**3)
    assert found.time.warm_up_seconds > found.time.step_seconds > 0
    assert found.time.notes == ()
    assert found.step_us == {0: pytest.approx(found.time.step_seconds * 1e6)}
    assert found.time.peak_flops == find_device("a100-80gb").bf16_tflops * 1e12


def test_a_single_step_is_noted(tmp_path):
    (note,) = timed(tmp_path, [op(MM), Step(1)]).time.notes
    assert note.startswith("only one step ran")


def test_a_program_without_steps_is_timed_as_a_whole(tmp_path):
    found = timed(tmp_path, [op(MM), op(MM)])
    assert (found.time.n_steps, found.time.warm_up_seconds) == (0, None)
    assert found.time.model_flops == 2 * 2 * N**3
    assert found.time.notes == ()


def test_a_program_that_does_nothing_on_the_device_has_no_time(tmp_path):
    assert timed(tmp_path, [Step(1), Step(2)]) is None
    assert timed(tmp_path, [replace(op(MM), device=-1), Step(1)]) is None


def test_a_rank_that_failed_is_not_timed(tmp_path):
    request = request_in(tmp_path)
    write(request, 0, [op(MM)])
    assert time_run(request, {0: failed_rank(0, "ValueError")}, {0: 0}) is None


def test_a_rank_that_does_not_fit_is_timed_all_the_same(tmp_path):
    request = request_in(tmp_path)
    write(request, 0, [op(MM), Step(1)])
    assert time_run(request, {0: replace(FITTING, status="oom")}, {0: 0}).time.step_seconds > 0


def test_tokens_are_counted_or_taken_as_told(tmp_path):
    steps = [op(LOOKUP), op(MM), Step(1)]
    counted = timed(tmp_path, steps).time
    assert (counted.tokens_per_step, counted.tokens_basis.split(";")[0]) == (
        2048, "2,048 looked up in the largest embedding",
    )  # fmt: skip
    assert counted.tokens_per_second == pytest.approx(2048 / counted.step_seconds)
    assert timed(tmp_path, steps, tokens_per_step=7).time.tokens_per_step == 7
    assert timed(tmp_path, [op(MM), Step(1)]).time.tokens_per_second is None


def test_an_operator_without_a_model_is_noted_with_its_share(tmp_path):
    notes = timed(tmp_path, [op(MM), op(ODD), Step(1), op(ODD), op(ODD), op(MM), Step(2)]).time.notes
    assert len(notes) == 1
    assert notes[0].startswith(
        "there is no cost model for mine.odd (2): their time is that of moving their bytes, "
    )


def data_parallel(world_size=4):
    group = Group(0, tuple(range(world_size)))
    return [group, Alloc(1, 8), op(LOOKUP), op(MM), call(SUM, phase=Phase.BACKWARD), Step(1)]


def test_ranks_that_do_the_same_are_played_by_one(tmp_path):
    found = timed(tmp_path, data_parallel(), stands_for={1: 0, 2: 0, 3: 0})
    assert found.step_us == dict.fromkeys(range(4), pytest.approx(found.time.step_seconds * 1e6))
    assert set(found.ranks) == {0}
    assert found.time.model_flops == 4 * 2 * N**3  # of the whole job
    assert found.time.tokens_per_step == 4 * 2048
    assert "x 4 data-parallel shards" in found.time.tokens_basis
    ((_, exposed),) = found.time.exposed_seconds.items()
    assert exposed > 0
    assert "GB/s" in found.time.network


def test_ranks_nobody_looked_at_are_taken_to_be_like_the_others_and_noted(tmp_path):
    found = timed(tmp_path, data_parallel(), world_size=4)
    assert found.time.model_flops == 4 * 2 * N**3
    assert "3 of 4 ranks were not simulated: no rank waits for them" in found.time.notes


def test_a_slower_network_takes_longer(tmp_path):
    fast, slow = (
        timed(
            tmp_path,
            data_parallel(),
            stands_for={1: 0, 2: 0, 3: 0},
            nproc_per_node=2,
            network=f"bandwidth={rate}GB/s",
        )
        for rate in (400, 1)
    )
    assert slow.time.step_seconds > fast.time.step_seconds


def test_a_stage_simulated_elsewhere_in_the_mesh_has_a_time_too(tmp_path):
    """Two pipelines 0-2 and 1-3: of the first stage rank 0 was simulated, of the second rank 3."""
    groups = [Group(0, (0, 2)), Group(1, (0, 1))]
    first = [*groups, Alloc(1, 8), op(MM), call(SEND[2]), Step(1)]
    second = [Group(0, (1, 3)), Group(1, (2, 3)), Alloc(1, 8), call(RECEIVE[1]), op(MM), op(MM), Step(1)]
    request = request_in(tmp_path, world_size=4)
    write(request, 0, first)
    write(request, 3, second)
    results = {rank: replace(FITTING, rank=rank) for rank in (0, 3)}
    found = time_run(request, results, {0: 0, 1: 0, 2: 3, 3: 3})
    assert set(found.step_us) == {0, 1, 2, 3}
    assert set(found.ranks) == {0, 3}
    assert found.ranks[3].time.rank == 3
    assert found.ranks[3].time.bubble_seconds > 0
    assert found.time.model_flops == 2 * (1 + 2) * 2 * N**3


def test_a_send_to_a_rank_nobody_simulated_is_noted(tmp_path):
    steps = [Group(0, (0, 1)), Alloc(1, 8), op(MM), call(SEND[1]), Step(1)]
    notes = timed(tmp_path, steps, world_size=2).time.notes
    assert any("have a peer that was not simulated" in note for note in notes)


def test_traces_are_written_of_a_few_ranks_and_of_those_that_are_named(tmp_path):
    steps = [op(MM), Step(1)]
    many = timed(tmp_path / "many", *[steps] * 6)
    assert [rank for rank, each in many.ranks.items() if each.trace] == [
        0,
        1,
        3,
        5,
    ]  # from the first to the last
    assert any(note.startswith("traces were written for 4 of 6 simulated ranks") for note in many.time.notes)
    assert (tmp_path / "many" / "trace_view.json").exists()
    named = timed(tmp_path / "named", *[steps] * 6, trace_ranks=(5,))
    assert [rank for rank, each in named.ranks.items() if each.trace] == [5]
    assert not (tmp_path / "named" / "trace_view.json").exists()  # nothing to put side by side
    absent = timed(tmp_path / "absent", steps, stands_for={1: 0}, trace_ranks=(0, 1))
    assert "there is no trace of rank 1: it is represented by another rank" in absent.time.notes


def test_the_page_gets_a_step_of_the_ranks_that_have_traces_or_of_the_slowest_pipeline(tmp_path):
    steps = [op(MM), Step(1), op(MM), Step(2)]
    assert timed(tmp_path / "many", *[steps] * 6).trace["ranks"] == [0, 1, 3, 5]
    assert timed(tmp_path / "many", *[steps] * 6).trace["step"] == 2
    assert timed(tmp_path / "named", *[steps] * 6, trace_ranks=(5,)).trace["ranks"] == [5]
    assert timed(tmp_path / "none", steps, writes_page=False).trace is None
    # Six stages, the last the slowest: all of them, though only four have files.
    stages = [
        [
            Group(0, tuple(range(6))), Alloc(1, 8), *([call(RECEIVE[rank - 1])] if rank else []),
            *[op(MM)] * (rank + 1), *([call(SEND[rank + 1])] if rank < 5 else []), Step(1),
        ]
        for rank in range(6)
    ]  # fmt: skip
    assert timed(tmp_path / "stages", *stages).trace["ranks"] == [0, 1, 2, 3, 4, 5]


def test_a_trace_that_cannot_be_written_costs_the_trace_only(tmp_path):
    (tmp_path / "rank0" / "trace_view.json").mkdir(parents=True)
    found = timed(tmp_path, [op(MM), Step(1), op(MM), Step(2)])
    assert found.time.step_seconds > 0
    assert found.ranks[0].trace == ""
    assert any(note.startswith("some traces could not be written: ") for note in found.time.notes)


def test_what_is_done_is_reported(tmp_path):
    told = []
    request = request_in(tmp_path)
    write(request, 0, [op(MM), Step(1)])
    time_run(request, {0: FITTING}, {0: 0}, told.append)
    assert told == [
        "timing rank 0, 1 of 1",
        "simulating the timeline of 1 ranks",
        "writing the trace of rank 0",
    ]


def test_ranks_that_would_hang_have_no_time(tmp_path):
    request = request_in(tmp_path)
    write(request, 0, [op(MM), Step(1)])
    finding = Finding(FITTING, None, 0)
    hung = summarise(request, {0: finding}, {0: 0}, (Mismatch((0, 1), "rank 0 waits for rank 1"),)).result
    assert (hung.time, hung.ranks[0].step_time_us) == (None, None)
    fine = summarise(request, {0: finding}, {0: 0}).result
    assert fine.time is not None
    assert fine.ranks[0].step_time_us == pytest.approx(fine.time.step_seconds * 1e6)
