"""Workspaces in a recording: where the rows are, and that nothing else changes."""

from __future__ import annotations

import csv
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.recorded import memory_of, unplayed
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    COLUMNS,
    Alloc,
    Frame,
    Free,
    Kind,
    Load,
    Mark,
    Op,
    Phase,
    Role,
    Save,
    Signature,
    TensorSpec,
)
from windtunnel.memory import Allocator
from windtunnel.memory.files.memory_block import read_memory_block, write_memory_block
from windtunnel.memory.files.snapshot_writer import write_snapshot
from windtunnel.memory.lifetime import ALIVE, lifetimes_of
from windtunnel.memory.tape import play, tape_of
from windtunnel.memory.workspace.rows import WorkspaceTable, with_workspaces

A100 = find_device("a100-80gb")
CUBLAS = 8_519_680
TABLE = """
[lib]
devices = ["cuda"]
operators = ["mm", "conv"]
bytes = 1000
lifetime = "handle"
source = "here"

[engine]
devices = ["cuda"]
operators = ["mm"]
bytes = 64
lifetime = "process"
source = "here"

[pair]
devices = ["cuda"]
operators = ["sort", "conv"]
bytes = ["in0_bytes", "in0_numel"]
source = "here"
"""


def spec(*shape):
    return TensorSpec(shape, tuple(np.cumprod((1, *shape[:0:-1]))[::-1].tolist()), "float32")


SIGNATURES = (
    Signature("aten.mm.default", (spec(8, 8), spec(8, 8)), (spec(8, 8),), "_,_"),
    Signature("aten.sort.default", (spec(10),), (spec(10),), "_"),
    Signature("aten.add.Tensor", (spec(10), spec(10)), (spec(10),), "_,_"),
    Signature("aten.conv.default", (spec(20),), (spec(20),), "_"),
)
MM, SORT, ADD, CONV = range(4)


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "mine.toml"
    path.write_text(TABLE)
    return WorkspaceTable().with_file(path)


def recorded(tmp_path, events):
    path = tmp_path / "r.arrows"
    record_events(path, events, ["layer"], SIGNATURES, [Frame("train.py", 3, "main")])
    return read_recording(path)


def events_with(recording, table, **env):
    new, notes = with_workspaces(recording, A100, table, env=env)
    return list(new.events()), notes


def same(a, b):
    assert all((a.columns[name] == b.columns[name]).all() for name in COLUMNS)
    assert [(x.tolist(), y.tolist()) for x, y in (a.inputs, a.outputs)] == [
        (x.tolist(), y.tolist()) for x, y in (b.inputs, b.outputs)
    ]
    assert (a.header, a.names, a.signatures, a.frames) == (b.header, b.names, b.signatures, b.frames)


def test_scratch_of_one_call_lives_around_its_operator(tmp_path, table):
    where = {"module": 0, "phase": Phase.BACKWARD, "stream": 3, "device": 1}
    events = [Alloc(1, 40, op=7, **where), Op(7, SORT, (5,), (1,), **where, frame=0), Free(1, **where)]
    found, notes = events_with(recorded(tmp_path, events), table)
    scratch = [
        Alloc(6, 40, 7, Role.WORKSPACE, **where, frame=0),
        Alloc(7, 10, 7, Role.WORKSPACE, **where, frame=0),
    ]
    assert found == [events[0], *scratch, events[1], Free(6, **where), Free(7, **where), events[2]]
    assert notes == ()


def test_a_library_keeps_one_per_thread_and_stream(tmp_path, table):
    events = [
        Op(0, ADD),
        Op(1, MM, phase=Phase.FORWARD),
        Op(2, MM, phase=Phase.OPTIMIZER),  # the same thread
        Op(3, MM, phase=Phase.BACKWARD),  # autograd's own
        Op(4, MM, phase=Phase.FORWARD, stream=2),
        Op(5, CONV, phase=Phase.FORWARD, stream=2),  # another operator, the same handle
        Op(6, MM, phase=Phase.FORWARD, device=1),
    ]
    found, _ = events_with(recorded(tmp_path, events), table)
    kept = [(e.op, e.n_bytes) for e in found if isinstance(e, Alloc) and e.n_bytes in (1000, 64)]
    assert kept == [(1, 1000), (1, 64), (3, 1000), (4, 1000), (6, 1000), (6, 64)]
    assert sum(isinstance(e, Free) for e in found) == 2  # of the convolution's call alone


def test_training_has_two_cublas_workspaces(tmp_path):
    steps = [Op(i, MM, phase=phase) for i, phase in enumerate([Phase.FORWARD, Phase.BACKWARD] * 3)]
    found, _ = events_with(recorded(tmp_path, steps), WorkspaceTable.built_in())
    assert [e.n_bytes for e in found if isinstance(e, Alloc)] == [CUBLAS, CUBLAS]
    found, _ = events_with(recorded(tmp_path, steps[:1]), WorkspaceTable.built_in())
    assert [e.n_bytes for e in found if isinstance(e, Alloc)] == [CUBLAS]
    found, _ = events_with(
        recorded(tmp_path, steps), WorkspaceTable.built_in(), CUBLAS_WORKSPACE_CONFIG=":4096:8"
    )
    assert [e.n_bytes for e in found if isinstance(e, Alloc)] == [32 << 20] * 2


def test_scratch_that_was_recorded_is_not_counted_again(tmp_path, table):
    def sort_with(n_bytes):
        own = Alloc(1, n_bytes, op=0, role=Role.WORKSPACE)
        found, _ = events_with(recorded(tmp_path, [own, Op(0, SORT), Free(1)]), table)
        return [e.n_bytes for e in found if isinstance(e, Alloc)]

    assert sort_with(30) == [30, 20]  # 50 in all
    assert sort_with(50) == [50]
    assert sort_with(80) == [80]
    adding = replace(table.entry("pair"), adds=True)
    events = [Alloc(1, 30, op=0, role=Role.WORKSPACE), Op(0, SORT), Free(1)]
    found, _ = events_with(recorded(tmp_path, events), WorkspaceTable((adding,)))
    assert [e.n_bytes for e in found if isinstance(e, Alloc)] == [30, 40, 10]


def test_an_entry_without_a_value_is_reported(tmp_path, table):
    path = tmp_path / "odd.toml"
    path.write_text('[odd]\ndevices = ["cuda"]\noperators = ["add"]\nbytes = "b * sq"\nsource = "x"\n')
    recording = recorded(tmp_path, [Op(0, ADD), Op(1, SORT)])
    found, notes = events_with(recording, table.with_file(path))
    assert notes == ("the workspace of aten.add.Tensor is not counted (odd: it has no 'b')",)
    assert sum(isinstance(e, Alloc) for e in found) == 2


def test_a_bound_is_reported(tmp_path):
    _, notes = events_with(recorded(tmp_path, [Op(0, CONV)]), WorkspaceTable.built_in())
    assert notes == ()
    long = replace(SIGNATURES[SORT], inputs=(spec(100_000),))
    record_events(tmp_path / "l.arrows", [Op(0, 0)], [], [long])
    _, notes = events_with(read_recording(tmp_path / "l.arrows"), WorkspaceTable.built_in())
    assert notes == ("the workspace of aten.sort is counted as an upper bound, see docs/workspace.md",)


def test_a_single_measurement_is_named_as_an_input(tmp_path):
    (tmp_path / "once.toml").write_text(
        '[once]\ndevices = ["cuda"]\noperators = ["add"]\nbytes = 512\naccuracy = "single"\nsource = "x"\n'
    )
    table = WorkspaceTable.built_in().with_file(tmp_path / "once.toml")
    _, notes = events_with(recorded(tmp_path, [Op(0, ADD), Op(1, ADD)]), table)
    assert notes == (
        "the workspace of aten.add.Tensor rests on one published measurement per operator, used for every shape:"
        " an input to this run, not a result; see docs/workspace.md",
    )


def test_new_storages_have_numbers_nobody_uses(tmp_path, table):
    events = [Alloc(4, 8), Save(9, 70), Load(9, 71), Op(0, SORT, (90,), (80,)), Mark(60, Role.WEIGHT)]
    found, _ = events_with(recorded(tmp_path, events), table)
    assert [e.storage for e in found if isinstance(e, Alloc) and e.role == Role.WORKSPACE] == [91, 92]


def test_without_workspaces_the_recording_is_the_same(tmp_path, table):
    recording = recorded(tmp_path, [Alloc(1, 8, op=0), Op(0, ADD, (1,), (1,)), Free(1)])
    for each in (WorkspaceTable(), table):
        new, notes = with_workspaces(recording, A100, each, env={})
        same(new, recording)
        assert notes == ()
    empty = recorded(tmp_path, [])
    same(with_workspaces(empty, A100, table, env={})[0], empty)
    on_cpu, _ = with_workspaces(
        recorded(tmp_path, [Op(0, MM)]), find_device("cpu"), WorkspaceTable.built_in(), env={}
    )
    assert len(on_cpu) == 1  # the CPU's kernels were asked when they were recorded


# -- downstream ---------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, table):
    events = [
        Alloc(1, 4000, op=0, module=0), Op(0, SORT, (), (1,), module=0, frame=0),
        Alloc(2, 4000, op=1, module=0), Op(1, MM, (1,), (2,), module=0, frame=0), Free(1),
        Alloc(3, 4000, op=2, phase=Phase.BACKWARD), Op(2, MM, (2,), (3,), phase=Phase.BACKWARD), Free(2), Free(3),
    ]  # fmt: skip
    return with_workspaces(recorded(tmp_path, events), A100, table, env={})[0]


def test_the_peak_and_who_holds_it(run):
    memory = memory_of(run, lambda n: Allocator.named("cuda", device_bytes=n))
    # two handles, the engine's, two results of 4,096; the sort's scratch is gone by then
    assert memory.peak_bytes == 2 * 1024 + 512 + 2 * 4096
    assert memory.at_peak.workspace == 2 * 1024 + 512
    assert sum(group.n_bytes for group in memory.largest if group.role == "workspace") == 2 * 1024 + 512
    assert {share.module for share in memory.by_module if share.role == "workspace"} == {"layer", ""}


def test_lifetimes_name_the_operator(run):
    lives = lifetimes_of(run)
    mine = np.flatnonzero(lives.role == Role.WORKSPACE)
    names = [run.signatures[i].name for i in lives.signature[mine]]
    assert names == ["aten.sort.default"] * 2 + ["aten.mm.default"] * 3
    assert (lives.death[mine] == ALIVE).tolist() == [False, False, True, True, True]


def test_rows_of_memory_block_and_snapshot(tmp_path, run):
    path = tmp_path / "memory_block.csv"
    write_memory_block(path, unplayed(run), Allocator.named("mindspore"))
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["type"] == "WorkSpace"]
    assert [row["node_name"] for row in rows] == ["aten.sort"] * 2 + ["aten.mm"] * 3
    assert [row["task_name"] for row in rows] == ["layer"] * 4 + [""]
    assert rows[0]["python_stack"] == "File:train.py;Line:3;Function:main|"
    assert len(read_memory_block(path)) == len(tape_of(run))
    write_snapshot(tmp_path / "snapshot.pickle", unplayed(run), Allocator.named("cuda"))
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0


# -- properties ---------------------------------------------------------------------------------------------


@st.composite
def programs(draw):
    """Operators of every kind with results and scratch of their own, freed at once, later or never."""
    events, live, storage = [], [], 0
    for i in range(draw(st.integers(0, 12))):
        signature = draw(st.integers(0, 3))
        phase, stream = draw(st.sampled_from(list(Phase))), draw(st.integers(0, 2))
        device = draw(st.integers(-1, 1))
        where = {"phase": phase, "stream": stream, "device": device}
        outputs, scratch = [], []
        for role in draw(st.lists(st.sampled_from([Role.UNKNOWN, Role.WORKSPACE]), max_size=2)):
            storage += draw(st.integers(1, 3))
            events.append(Alloc(storage, draw(st.integers(0, 60)), op=i, role=role, **where))
            (scratch if role == Role.WORKSPACE else outputs).append(storage)
        inputs = tuple(draw(st.lists(st.sampled_from(live), max_size=2))) if live else ()
        events.append(Op(i, signature, inputs, tuple(outputs), **where))
        events += [Free(s, **where) for s in scratch]
        live += outputs
        while live and draw(st.booleans()):
            events.append(Free(live.pop(draw(st.integers(0, len(live) - 1)))))
    return events


@settings(deadline=None, max_examples=60)
@given(programs())
def test_taking_the_new_rows_out_gives_the_old_recording(tmp_path_factory, table, events):
    recording = recorded(tmp_path_factory.mktemp("r"), events)
    new, _ = with_workspaces(recording, A100, table, env={})
    born = new.columns["subject"][new.columns["kind"] == Kind.ALLOC]
    assert len(np.unique(born)) == len(born)
    old = set(recording.columns["subject"][recording.columns["kind"] == Kind.ALLOC].tolist())
    is_named = np.isin(new.columns["kind"], [Kind.ALLOC, Kind.FREE])
    added = is_named & ~np.isin(new.columns["subject"], list(old))
    assert (new.columns["role"][added & (new.columns["kind"] == Kind.ALLOC)] == Role.WORKSPACE).all()
    offsets = [np.concatenate([[0], np.cumsum(np.diff(o)[~added])]) for o, _ in (new.inputs, new.outputs)]
    assert not any(np.diff(o)[added].any() for o, _ in (new.inputs, new.outputs))
    taken_out = replace(
        new,
        columns={name: column[~added] for name, column in new.columns.items()},
        inputs=(offsets[0], new.inputs[1]),
        outputs=(offsets[1], new.outputs[1]),
    )
    same(taken_out, recording)


class Strict:
    """An allocator that knows what it gave."""

    def __init__(self):
        self.live = {}

    def alloc(self, id, n_bytes, stream=0):
        assert id not in self.live
        assert n_bytes > 0
        self.live[id] = n_bytes
        return 0

    def free(self, id):
        del self.live[id]

    def record_stream(self, id, stream): ...
    def stream_done(self, stream): ...
    def empty_cache(self): ...


@settings(deadline=None, max_examples=60)
@given(programs())
def test_an_allocator_gets_back_only_what_it_gave(tmp_path_factory, table, events):
    recording = recorded(tmp_path_factory.mktemp("r"), events)
    new, _ = with_workspaces(recording, A100, table, env={})
    for device in (0, 1):
        before, after = Strict(), Strict()
        play(tape_of(recording, device), before)
        play(tape_of(new, device), after)
        kept = sorted(after.live.values())
        for n_bytes in before.live.values():
            kept.remove(n_bytes)
        assert set(kept) <= {1000, 64}  # only what libraries keep stays


def test_many_rows_take_no_time(tmp_path, table):
    n = 250_000
    recording = recorded(tmp_path, [Op(0, SORT, (1,), (2,)), Op(1, MM, (2,), (3,))])
    kinds = np.tile(recording.columns["value"], n // 2)
    columns = {name: np.tile(column, n // 2) for name, column in recording.columns.items()}
    columns["subject"] = np.arange(n)
    large = replace(
        recording,
        columns=columns,
        inputs=(np.arange(n + 1), np.ones(n, np.int64)),
        outputs=(np.arange(n + 1), np.ones(n, np.int64)),
    )
    start = time.process_time()
    new, _ = with_workspaces(large, A100, table, env={})
    assert (
        time.process_time() - start < 0.5 * 2
    )  # a quarter of a million rows; 2 s for a million, and slow machines
    assert len(new) == n + 4 * int((kinds == SORT).sum()) + 2
