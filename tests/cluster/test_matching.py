"""Every kind of mismatch, and beside it the correct program that looks most like it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.cluster.communications import (
    STEP,
    CallSpec,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    explore,
    mesh_groups,
    record,
    recv,
    reduce_scatter,
    send,
    world,
)
from windtunnel.cluster.matching import Mismatch, find_mismatches
from windtunnel.cluster.rank_communication import Call, CallOrder, RankCommunication, communication_of
from windtunnel.events.file import read_recording
from windtunnel.events.model import Step


def mismatches(communications, representative=None, world_size=None):
    n = world_size or len(communications)
    return find_mismatches(communications, representative or {rank: rank for rank in range(n)}, n)


def sentence(communications, representative=None, world_size=None):
    (found,) = mismatches(communications, representative, world_size)
    return found.sentence


# -- collectives ----------------------------------------------------------------------------------------------


def test_another_kind_of_call_is_a_hang_with_both_source_lines(tmp_path):
    same = [all_reduce(line=39), all_reduce(line=40)]
    communications = world(tmp_path, [*same, all_reduce(line=41)], [*same, broadcast(7, line=57)])
    assert mismatches(communications) == (
        Mismatch(
            (0, 1),
            "rank 0 calls all_reduce of 1,024 float32 at train.py:41 as its 3rd collective in group [0, 1] "
            "where rank 1 calls broadcast of 7 float32 at train.py:57: the job would hang",
        ),
    )


def test_the_same_calls_from_other_lines_fit(tmp_path):
    communications = world(
        tmp_path, [all_reduce(line=1), broadcast(line=2)], [all_reduce(line=8), broadcast(line=9)]
    )
    assert mismatches(communications) == ()


def test_another_number_of_elements_is_a_hang(tmp_path):
    communications = world(tmp_path, [all_reduce(1024)], [all_reduce(2048)])
    assert sentence(communications) == (
        "rank 0 calls all_reduce of 1,024 float32 at train.py:41 as its 1st collective in group [0, 1] "
        "where rank 1 calls all_reduce of 2,048 float32 at train.py:41: the job would hang"
    )


def test_another_dtype_is_garbage_or_a_hang(tmp_path):
    communications = world(tmp_path, [all_reduce()], [all_reduce(dtype="bfloat16")])
    assert sentence(communications).endswith(
        "where rank 1 calls all_reduce of 1,024 bfloat16 at train.py:41: "
        "the result would be garbage or the job would hang"
    )


def test_another_reduction_is_named(tmp_path):
    communications = world(tmp_path, [all_reduce(op="SUM")], [all_reduce(op="MAX")])
    assert sentence(communications) == (
        "rank 0 calls all_reduce (SUM) of 1,024 float32 at train.py:41 as its 1st collective in group [0, 1] "
        "where rank 1 calls all_reduce (MAX) of 1,024 float32 at train.py:41: "
        "the result would be garbage or the job would hang"
    )


def test_another_root_is_named(tmp_path):
    communications = world(tmp_path, [broadcast(root=0)], [broadcast(root=1)])
    assert sentence(communications) == (
        "rank 0 calls broadcast of 1,024 float32 with root 0 at train.py:41 as its 1st collective in group "
        "[0, 1] where rank 1 calls broadcast of 1,024 float32 with root 1 at train.py:41: the job would hang"
    )


def test_a_call_one_rank_never_makes_is_a_hang(tmp_path):
    communications = world(tmp_path, [barrier(), all_reduce()], [barrier()])
    assert sentence(communications) == (
        "rank 1 never calls the all_reduce of 1,024 float32 that rank 0 calls at train.py:41 "
        "as its 2nd collective in group [0, 1]: the job would hang"
    )
    assert sentence(world(tmp_path, [barrier()], [barrier(), all_reduce()])).startswith(
        "rank 0 never calls the all_reduce"
    )


@pytest.mark.parametrize(
    "pair",
    [
        (all_gather(10, 10, 7), all_gather(7, 10, 7)),  # lists of uneven shares that agree
        (all_gather(10, 20), all_gather(10, 10, 10)),  # into one tensor here, into a list there
        (all_gather(10), all_gather(7)),  # a list that was not recorded
        (CallSpec("all_gather", (1, 10), (2, 20)), CallSpec("all_gather", (1, 10), (2, 20))),
        (all_gather(10, 17), all_gather(7, 17)),  # uneven into one tensor: nothing can be said
        (reduce_scatter(20, 10), reduce_scatter((10, 10), 10)),
        (reduce_scatter((10, 7), 10), reduce_scatter((10, 7), 7)),
        (CallSpec("gather", (5,), (5, 5), "peer=0"), CallSpec("gather", (5,), (), "peer=0")),
        (CallSpec("gather", (5,), (5, 3), "peer=0"), CallSpec("gather", (3,), (), "peer=0")),
        (CallSpec("scatter", (5, 3), (5,), "peer=0"), CallSpec("scatter", (), (3,), "peer=0")),
        (CallSpec("broadcast", (5,), (5,), "peer=0"), CallSpec("broadcast", (), (5,), "peer=0")),
        (CallSpec("all_to_all", (30,), (12,)), CallSpec("all_to_all", (12,), (30,))),
        (all_gather(100, 200, dtype="uint8"), all_gather(120, 240, dtype="uint8")),  # pickled objects
    ],
)
def test_correct_pairs_fit(tmp_path, pair):
    assert mismatches(world(tmp_path, [pair[0]], [pair[1]])) == ()


@pytest.mark.parametrize(
    "pair",
    [
        (all_gather(10, 10, 7), all_gather(7, 10, 10)),
        (all_gather(10, 20), all_gather(7, 14)),
        (
            CallSpec("all_gather", (1, 10), (2, 20)),
            CallSpec("all_gather", (1, 7), (2, 14)),
        ),  # two calls in one
        (all_gather(10, 20), all_gather(7, 10, 7)),
        (reduce_scatter(20, 10), reduce_scatter(14, 7)),
        (reduce_scatter(20, 10), reduce_scatter(20, 10, op="AVG")),
        (CallSpec("gather", (5,), (5, 5), "peer=0"), CallSpec("gather", (3,), (), "peer=0")),
        (CallSpec("scatter", (5, 5), (5,), "peer=0"), CallSpec("scatter", (), (3,), "peer=0")),
        (CallSpec("broadcast", (5,), (), "peer=0"), CallSpec("broadcast", (), (6,), "peer=0")),
        (CallSpec("reduce", (5,), (5,), "peer=0 op=SUM"), CallSpec("reduce", (6,), (6,), "peer=0 op=SUM")),
        (CallSpec("all_to_all", (30,), (12,)), CallSpec("all_to_all", (12,), (30,), dtype="int64")),
        (barrier(), all_reduce()),
    ],
)
def test_wrong_pairs_do_not(tmp_path, pair):
    assert len(mismatches(world(tmp_path, [pair[0]], [pair[1]]))) == 1


def test_a_wrong_entry_in_a_list_of_shares_is_shown(tmp_path):
    communications = world(tmp_path, [all_gather(5, 5, 4, line=1)], [all_gather(5, 5, 5, line=2)])
    assert sentence(communications) == (
        "rank 0 calls all_gather of 5 float32 in shares [5, 4] at train.py:1 as its 1st collective in group [0, 1] "
        "where rank 1 calls all_gather of 5 float32 at train.py:2: the job would hang"
    )


def test_groups_have_lines_of_their_own(tmp_path):
    """Order within a group counts, order between groups does not; equal members do not make one group."""
    groups = [(0, 1), (0, 1)]
    one = [all_reduce(1, group=0, line=1), all_reduce(2, group=1, line=2)]
    assert mismatches(world(tmp_path, one, one[::-1], groups=groups)) == ()
    other = [all_reduce(1, group=1, line=1), all_reduce(2, group=0, line=2)]
    assert len(mismatches(world(tmp_path, one, other, groups=groups))) == 2


def test_one_mistake_is_reported_once(tmp_path):
    """Ranks 1 to 3 all differ from rank 0, and everything after the first difference is shifted."""
    skipped = [all_reduce(n) for n in range(2, 9)]
    communications = world(tmp_path, [all_reduce(1), *skipped], skipped, skipped, skipped)
    assert [m.ranks for m in mismatches(communications)] == [(0, 1)]


def test_one_mistake_in_many_groups_is_reported_once(tmp_path):
    pairs = [(0, 1), (2, 3)]
    communications = world(tmp_path, *[[all_reduce(1 + rank % 2)] for rank in range(4)], groups=pairs)
    assert [m.ranks for m in mismatches(communications)] == [(0, 1)]


def test_a_failed_rank_is_not_missed(tmp_path):
    communications = world(tmp_path, [all_reduce()], [all_reduce()], [])
    del communications[2]
    assert mismatches(communications, world_size=3) == ()


def test_nothing_simulated_nothing_found():
    assert find_mismatches({}, {}, 4) == ()


# -- runs that were stopped -----------------------------------------------------------------------------------


def test_calls_after_the_last_step_may_be_unanswered(tmp_path):
    communications = world(tmp_path, [all_reduce(), STEP, barrier()], [all_reduce(), STEP])
    assert mismatches(communications) == ()


def test_calls_before_the_last_step_may_not(tmp_path):
    communications = world(tmp_path, [all_reduce(), barrier(), STEP], [all_reduce(), STEP])
    assert sentence(communications).startswith(
        "rank 1 never calls the barrier that rank 0 calls at train.py:41"
    )


def test_a_rank_that_is_a_step_behind_is_not_blamed(tmp_path):
    ahead = [all_reduce(), Step(1), all_reduce(), Step(2)]
    assert mismatches(world(tmp_path, ahead, [all_reduce(), Step(1)])) == ()


def test_calls_after_the_last_step_that_both_made_must_fit(tmp_path):
    assert len(mismatches(world(tmp_path, [STEP, barrier()], [STEP, all_reduce()]))) == 1


def test_a_program_that_ended_by_itself_said_all_it_had_to_say(tmp_path):
    record(tmp_path / "a", [STEP, barrier()], [(0, 1)])
    record(tmp_path / "b", [STEP], [(0, 1)])
    ended = {"status": "ok", "is_stopped": False}
    communications = {
        rank: communication_of(replace(read_recording(tmp_path / name), footer=ended), rank, 2)
        for rank, name in enumerate("ab")
    }
    assert sentence(communications).startswith("rank 1 never calls the barrier")


def test_a_killed_rank_is_not_blamed(tmp_path):
    record(tmp_path / "a", [barrier()], [(0, 1)])
    record(tmp_path / "b", [], [(0, 1)])
    whole, cut = read_recording(tmp_path / "a"), replace(read_recording(tmp_path / "b"), is_complete=False)
    assert mismatches({0: communication_of(whole, 0, 2), 1: communication_of(cut, 1, 2)}) == ()


# -- sends and receives ---------------------------------------------------------------------------------------


def test_a_send_nobody_receives(tmp_path):
    communications = world(tmp_path, [send(1, dtype="bfloat16", line=88)], [])
    assert mismatches(communications) == (
        Mismatch(
            (0, 1),
            "rank 0 sends 4,096 bfloat16 to rank 1 at train.py:88, and rank 1 never receives it: the job would hang",
        ),
    )


def test_a_receive_nobody_sends(tmp_path):
    communications = world(tmp_path, [], [recv(0, line=91)])
    assert mismatches(communications) == (
        Mismatch(
            (0, 1),
            "rank 1 waits for 4,096 float32 from rank 0 at train.py:91, and rank 0 never sends it: "
            "the job would hang",
        ),
    )


def test_messages_meet_in_order(tmp_path):
    communications = world(tmp_path, [send(1, 5), send(1, 6, line=88)], [recv(0, 5), recv(0, 7, line=91)])
    assert sentence(communications) == (
        "rank 0 sends 6 float32 to rank 1 at train.py:88 as its 2nd message to it, "
        "and rank 1 receives 7 float32 at train.py:91: the job would hang"
    )


def test_messages_of_another_dtype(tmp_path):
    communications = world(tmp_path, [send(1)], [recv(0, dtype="int32")])
    assert sentence(communications).endswith("the result would be garbage or the job would hang")


@pytest.mark.parametrize(
    "ranks",
    [
        [[send(1, 5), recv(1, 6)], [send(0, 6), recv(0, 5)]],  # order between directions does not count
        [[send(1, 5)], [CallSpec("recv", (), (5,))]],  # from anyone
        [[send(1, 5)], [CallSpec("recv", (5,), (5,), "peer=0")]],
    ],
)
def test_correct_messages_fit(tmp_path, ranks):
    assert mismatches(world(tmp_path, *ranks)) == ()


def test_messages_of_different_groups_do_not_meet(tmp_path):
    communications = world(tmp_path, [send(1, group=0)], [recv(0, group=1)], groups=[(0, 1), (0, 1)])
    assert len(mismatches(communications)) == 2


# -- ranks that were not simulated ----------------------------------------------------------------------------

STAGES = {0: 0, 1: 1, 2: 1, 3: 1, 4: 4}  # a pipeline: the first, the middle ones as rank 1, the last


def pipeline(tmp_path, first=5, middle=5, last=5):
    calls_of = {
        0: [send(1, first), recv(1, 6)],
        1: [recv(0, 5), send(2, middle), recv(2, 6), send(0, 6)],
        4: [recv(3, last), send(3, 6)],
    }
    communications = {}
    for rank, calls in calls_of.items():
        record(tmp_path / "r", calls, [(0, 1, 2, 3, 4)])
        communications[rank] = communication_of(read_recording(tmp_path / "r"), rank, 5)
    return mismatches(communications, STAGES, 5)


def test_stages_that_were_not_simulated_speak_through_their_representative(tmp_path):
    assert pipeline(tmp_path) == ()
    assert [m.ranks for m in pipeline(tmp_path, first=7)] == [(0, 1)]
    (found,) = pipeline(tmp_path, last=7)
    assert found.ranks == (3, 4)
    assert "rank 3 (which does the work of rank 1) sends 5 float32 to rank 4" in found.sentence


def test_messages_to_one_rank_for_all_fit(tmp_path):
    communications = world(tmp_path, [recv(1, 5), recv(2, 5), recv(3, 5)], [send(0, 5)], [], [])
    del communications[2], communications[3]
    assert mismatches(communications, {0: 0, 1: 1, 2: 1, 3: 1}, 4) == ()


def test_a_class_answers_from_its_own_group(tmp_path):
    """Two stages of two ranks; rank 3 was not simulated, and does what rank 1 does in the other stage."""

    def communications(n_of_rank_2):
        call_of = {0: all_reduce(5, group=1), 1: all_reduce(5, group=1), 2: all_reduce(n_of_rank_2, group=1)}
        found = {}
        for rank, call in call_of.items():
            record(tmp_path / "r", [call], mesh_groups(rank, (2, 2)))
            found[rank] = communication_of(read_recording(tmp_path / "r"), rank, 4)
        return found

    same = {0: 0, 1: 1, 2: 2, 3: 1}
    assert mismatches(communications(5), same, 4) == ()
    assert mismatches(communications(6), same, 4) == (
        Mismatch(
            (2, 3),
            "rank 2 calls all_reduce of 6 float32 at train.py:41 as its 1st collective in group [2, 3] where "
            "rank 3 (which does the work of rank 1) calls all_reduce of 5 float32 at train.py:41: the job would hang",
        ),
    )


def test_uneven_shares_of_ranks_that_were_not_simulated_count(tmp_path):
    def communications(shares):
        record(tmp_path / "a", [all_gather(5, *shares)], [(0, 1, 2, 3)])
        record(tmp_path / "b", [all_gather(4, *shares)], [(0, 1, 2, 3)])
        return {
            r: communication_of(read_recording(tmp_path / name), r, 4) for r, name in ((0, "a"), (3, "b"))
        }

    same = {0: 0, 1: 0, 2: 0, 3: 3}
    assert mismatches(communications((5, 5, 5, 4)), same, 4) == ()
    assert len(mismatches(communications((5, 5, 5, 5)), same, 4)) == 1
    assert len(mismatches(communications((5, 4, 5, 4)), same, 4)) == 1


def test_a_large_world_is_compared_by_classes():
    """16,384 ranks of 64 classes, with 2,000 calls in each of their groups."""
    sizes, calls = (8, 256, 8), tuple(Call("all_reduce", "a.py:1", "float32", n, (n,)) for n in (5, 6, 7))
    classes, rounds = explore(sizes, lambda digits: f"{digits[2]} {digits[0]}")
    line = CallOrder((0, 1, 2, 1) * 500, 2000)
    communications = {
        rank: RankCommunication(rank, 16384, mesh_groups(rank, sizes), "", calls, (line,) * 4)
        for wanted in rounds
        for rank in wanted
    }
    representative = classes.representatives()
    assert len(set(representative.values())) == 64
    began = time.process_time()
    assert find_mismatches(communications, representative, 16384) == ()
    assert time.process_time() - began < 5
    last = max(communications)
    communications[last] = replace(
        communications[last], collectives=(line, line, replace(line, indexes=line.indexes[:-1]), line)
    )
    assert [m.ranks[1] for m in find_mismatches(communications, representative, 16384)] == [last]


def test_long_groups_are_shortened(tmp_path):
    record(tmp_path / "a", [all_reduce(5)], [tuple(range(0, 64, 2))])
    record(tmp_path / "b", [all_reduce(6)], [tuple(range(0, 64, 2))])
    communications = {
        r: communication_of(read_recording(tmp_path / name), r, 64) for r, name in ((0, "a"), (2, "b"))
    }
    assert "in group [0, 2, 4, ..., 62] of 32 ranks" in sentence(
        communications, dict.fromkeys(range(64), 0), 64
    )
