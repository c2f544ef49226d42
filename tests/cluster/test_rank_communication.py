"""From a rank's recording to what it has to do with the others."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from tests.cluster.communications import STEP, all_gather, all_reduce, barrier, broadcast, record, recv, send
from windtunnel.cluster.rank_communication import Call, CallOrder, communication_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    COLUMNS,
    CONSTANT,
    Alloc,
    Collective,
    EmptyCache,
    Frame,
    Free,
    Group,
    Kind,
    Mark,
    ModuleEnter,
    Op,
    Phase,
    Recording,
    RecordStream,
    Role,
    Signature,
    Step,
    Sync,
    TensorSpec,
    Wait,
)


def test_a_rank_s_calls_are_sorted_by_group_peer_and_direction(tmp_path):
    calls = [
        all_reduce(8, line=1, group=1),
        send(4, 5, line=2),
        all_reduce(8, line=1, group=1),
        STEP,
        recv(4, 6, line=3),
        broadcast(7, root=4, line=4),
    ]
    record(tmp_path / "r", calls, [(0, 2, 4), (0, 2)])
    communication = communication_of(read_recording(tmp_path / "r"), 2, 6)
    assert (communication.rank, communication.world_size, communication.groups) == (2, 6, ((0, 2, 4), (0, 2)))
    assert (communication.n_steps, communication.is_whole) == (1, False)
    lines = [*communication.collectives, communication.sends[0, 4], communication.receives[0, 4]]
    assert [[communication.calls[i] for i in line.indexes] for line in lines] == [
        [Call("broadcast", "train.py:4", "float32", 7, (7,), root=4)],
        [Call("all_reduce", "train.py:1", "float32", 8, (8,), reduction="SUM")] * 2,
        [Call("send", "train.py:2", "float32", 5, (5,))],
        [Call("recv", "train.py:3", "float32", 6, (6,))],
    ]
    assert [line.n_settled for line in lines] == [0, 2, 1, 0]
    assert pickle.loads(pickle.dumps(communication)) == communication


def test_a_call_in_a_package_is_shown_by_its_path_in_there(tmp_path):
    record(tmp_path / "r", [barrier(line=9)], [(0, 1)], file="/v/site-packages/megatron/core/pipe.py")
    assert communication_of(read_recording(tmp_path / "r"), 0, 2).calls == (
        Call("barrier", "megatron/core/pipe.py:9"),
    )


def test_groups_of_others_and_calls_in_unknown_groups_are_left_out(tmp_path):
    record(tmp_path / "r", [barrier(group=0), barrier(group=1), barrier(group=7)], [(1, 2), (0, 1)])
    communication = communication_of(read_recording(tmp_path / "r"), 0, 3)
    assert communication.groups == ((0, 1),)
    assert communication.collectives == (CallOrder((0,), 0),)


def test_the_shares_of_a_list_are_kept(tmp_path):
    record(tmp_path / "r", [all_gather(3, 3, 2), all_gather(3, 6), all_gather(3, 5)], [(0, 1)])
    calls = communication_of(read_recording(tmp_path / "r"), 0, 2).calls
    assert [call.shares for call in calls] == [(3, 2), (3,), ()]


# -- the digest -----------------------------------------------------------------------------------------------


def spec(n, dtype="float32"):
    return TensorSpec((n,), (1,), dtype)


SIGNATURES = [
    Signature("aten.mul.Tensor", (spec(4),), (spec(4),), "2.0"),
    Signature("aten.mul.Tensor", (spec(4),), (spec(4),), "3.0"),
    Signature("aten.relu.default", (spec(4),), (spec(4),), ""),
    Signature("c10d.all_reduce", (spec(4),), (spec(4),), "op=SUM"),
    Signature("c10d.all_reduce", (spec(4),), (spec(4),), "op=MAX"),
    Signature("c10d.all_reduce", (spec(5),), (spec(5),), "op=SUM"),
    Signature("c10d.broadcast", (spec(4),), (), "peer=0"),
    Signature("c10d.broadcast", (spec(4),), (), "peer=1"),
    Signature("c10d.send", (spec(4),), (), "peer=0"),
    Signature("c10d.send", (spec(4),), (), "peer=1"),
    Signature("aten.item.default", (spec(1),), (), ""),
    Signature("c10d.broadcast", (spec(90, "uint8"),), (), "peer=0"),
    Signature("c10d.broadcast", (spec(91, "uint8"),), (), "peer=0"),
]
MUL, MUL_BY_3, RELU, SUM, MAX, LONGER, FROM_0, FROM_1, TO_0, TO_1, ITEM, OBJECT, LONGER_OBJECT = range(13)
GROUPS = [Group(0, (0, 1)), Group(1, (0, 1, 2, 3)), Group(2, (0, 1))]


@pytest.fixture
def digest(tmp_path):
    def digest(*events):
        frames = [Frame("a.py", 1, "f"), Frame("b.py", 2, "g")]
        record_events(tmp_path / "r", [*GROUPS, *events], ["one", "two", CONSTANT], SIGNATURES, frames)
        return communication_of(read_recording(tmp_path / "r"), 0, 4).digest

    return digest


WORK = [Alloc(0, 512), Alloc(1, 1024), Free(0), Collective(0, SUM, 0, is_async=True), Wait(0), Step(1)]


@pytest.mark.parametrize(
    "twin",
    [
        [Alloc(7, 512), Alloc(3, 1024), Free(7), *WORK[3:]],  # other numbers of storages
        [Alloc(0, 512, device=3), Alloc(1, 1024, device=3), Free(0), Collective(0, SUM, 0, is_async=True, device=3),
         *WORK[4:]],  # the fourth device of its node
        [Alloc(0, 512, device=3), Alloc(1, 1024, device=3), *WORK[2:]],  # whose calls do not say so
        [Alloc(0, 512, module=1, frame=1), *WORK[1:]],  # another layer, another line
        [Alloc(9, 64, device=-1), *WORK[:2], Free(9, device=-1), *WORK[2:]],  # memory of the host
        [*WORK[:3], Op(5, ITEM), Sync(), ModuleEnter(0), *WORK[3:]],  # prints its loss
        [*WORK[:3], Collective(44, SUM, 0, is_async=True), Wait(44), Step(1)],
        [*WORK[:3], Collective(0, SUM, 2, is_async=True), *WORK[4:]],  # another group of as many
        [*WORK, Mark(99, Role.WEIGHT)],  # of a storage of the host
    ],
)  # fmt: skip
def test_ranks_that_do_the_same_work_have_one_digest(digest, twin):
    assert digest(*twin) == digest(*WORK)


@pytest.mark.parametrize(
    "other",
    [
        [Alloc(0, 1024), Alloc(1, 512), *WORK[2:]],
        [Alloc(0, 512), Alloc(1, 1024), Free(1), *WORK[3:]],
        [Alloc(0, 512), Free(0), Alloc(1, 1024), *WORK[3:]],
        [Alloc(0, 512, stream=1), *WORK[1:]],
        [Alloc(0, 512, device=1), *WORK[1:]],  # two devices
        [Alloc(0, 512, role=Role.WEIGHT), *WORK[1:]],
        [Alloc(0, 512, phase=Phase.BACKWARD), *WORK[1:]],
        [*WORK[:3], Collective(0, MAX, 0, is_async=True), *WORK[4:]],
        [*WORK[:3], Collective(0, LONGER, 0, is_async=True), *WORK[4:]],
        [*WORK[:3], Collective(0, SUM, 1, is_async=True), *WORK[4:]],  # of four ranks
        [*WORK[:3], Collective(0, SUM, 0), *WORK[4:]],
        [*WORK[:4], Step(1), Wait(0)],
        WORK[:-1],
        [*WORK, Step(2)],
        [*WORK, EmptyCache()],
        [*WORK, Mark(1, Role.OPTIMIZER)],
        [*WORK, RecordStream(1, 1)],
        [*WORK, Op(0, RELU, outputs=(1,))],
    ],
)
def test_other_work_has_another_digest(digest, other):
    assert digest(*other) != digest(*WORK)


def test_numbers_that_are_no_shape_do_not_count(digest):
    """The first row of a shard is such a number, and differs from rank to rank."""
    one, other = ([Alloc(0, 16, op=0), Op(0, which, outputs=(0,))] for which in (MUL, MUL_BY_3))
    assert digest(*one) == digest(*other)


def test_a_root_and_a_partner_have_no_name(digest):
    assert digest(Collective(0, FROM_0, 0)) == digest(Collective(0, FROM_1, 0))
    assert digest(Collective(0, TO_0, 0)) == digest(Collective(0, TO_1, 0))


def test_one_partner_is_not_two(digest):
    one, two = ([Collective(0, TO_0, 1), Collective(1, to, 1)] for to in (TO_0, TO_1))
    assert digest(*one) != digest(*two)


def test_one_group_is_not_two(digest):
    one, two = ([Collective(0, SUM, 0), Collective(1, SUM, group)] for group in (0, 2))
    assert digest(*one) != digest(*two)


def test_streams_count_by_order_of_use(digest):
    assert digest(Alloc(0, 8, stream=3)) == digest(Alloc(0, 8, stream=9)) != digest(Alloc(0, 8))


def test_the_length_of_pickled_objects_does_not_count(digest):
    assert digest(Collective(0, OBJECT, 0)) == digest(Collective(0, LONGER_OBJECT, 0))


def test_small_constants_of_compiled_graphs_do_not_count(digest):
    """A rank whose number equals another constant has one fewer."""

    def with_constant(n_bytes, role=Role.TEMPORARY, name=2):
        return [Alloc(9, n_bytes, role=Role.WEIGHT), Mark(9, role, name), *WORK, Free(9)]

    assert digest(*with_constant(480)) == digest(*WORK)
    assert digest(*with_constant(513)) != digest(*WORK)
    assert digest(*with_constant(480, role=Role.WEIGHT)) != digest(*WORK)
    assert digest(*with_constant(480, name=1)) != digest(*WORK)


def test_the_order_of_frees_with_nothing_between_them_does_not_count(digest):
    made = [Alloc(0, 512), Alloc(1, 1024), Alloc(2, 512)]
    assert digest(*made, Free(0), Free(2), Step(1)) == digest(*made, Free(2), Free(0), Step(1))
    assert digest(*made, Free(0), Free(2), Step(1)) != digest(*made, Free(0), Step(1), Free(2))
    assert digest(*made, Free(0), Free(2)) != digest(*made, Free(0), Free(1))


def test_an_empty_recording_has_a_communication(tmp_path):
    record_events(tmp_path / "r", [])
    communication = communication_of(read_recording(tmp_path / "r"), 0, 1)
    assert (communication.groups, communication.calls, communication.is_whole) == ((), (), True)


def test_a_million_rows_take_less_than_a_second():
    n = 1_000_000
    columns = {name: np.zeros(n, dtype) for name, dtype in COLUMNS.items()}
    columns["kind"] = np.resize(np.array([Kind.ALLOC, Kind.OP, Kind.FREE, Kind.COLLECTIVE], np.uint8), n)
    columns["subject"] = np.arange(n) // 4
    columns["value"] = np.where(columns["kind"] == Kind.ALLOC, 512, SUM)
    columns["kind"][:1], columns["extra"][:], columns["value"][:1] = Kind.GROUP, 0, -1
    offsets = np.minimum(np.arange(n + 1), 1) * 2
    outputs = np.concatenate([[0], np.cumsum(columns["kind"] == Kind.OP)])
    recording = Recording(
        {}, (), tuple(SIGNATURES), (Frame("a.py", 1, "f"),), columns,
        (offsets, np.array([0, 1])), (outputs, np.zeros(outputs[-1], np.int64)),
    )  # fmt: skip
    began = time.process_time()
    communication = communication_of(recording, 0, 2)
    assert time.process_time() - began < 1
    assert len(communication.collectives[0].indexes) == n // 4
