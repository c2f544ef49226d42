"""A fixed choice of what to drop and hold, played exactly."""

from __future__ import annotations

from tests.remat.handmade import Tape, chain
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.lineage import trace_lineage
from windtunnel.remat.advisor.static_plan import Choice, StaticPlan


def _play(tape, dropped=(), held=()):
    program, seconds = tape.program()
    lineage = trace_lineage(program, seconds)
    held_results = {i for i, result in enumerate(lineage.results) if result.storage in held}
    plan = StaticPlan(program, lineage, Choice(frozenset(dropped), frozenset(held_results)))
    return play(program, seconds, plan), plan


def test_nothing_dropped_is_plain_training():
    plain = play(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    played, _ = _play(chain([10, 20, 30, 40], [1, 2, 3, 4]))
    assert (played.seconds, played.live_bytes.tolist()) == (plain.seconds, plain.live_bytes.tolist())


def test_a_dropped_result_runs_again_from_the_one_before():
    played, plan = _play(chain([10, 20, 30, 40], [1, 2, 3, 4]), dropped={2})
    assert played.seconds == 14 + 3
    assert played.peak_bytes == 1 + 10 + 20 + 40 + 40  # at the first gradient 30 are away
    assert [unit for _, unit in plan.schedule.runs] == [2]


def test_a_chain_runs_from_what_is_kept_and_comes_back_as_a_whole():
    played, plan = _play(chain([10, 20, 30, 40], [1, 2, 3, 4]), dropped={1, 2})
    assert played.seconds == 14 + 2 + 3
    assert [unit for _, unit in plan.schedule.runs] == [1, 2]
    assert len({at for at, _ in plan.schedule.runs}) == 1  # both when 30 is wanted
    assert played.peak_bytes == max(1 + 10 + 40 + 40, 1 + 10 + 20 + 30 + 30)


def _fork():
    """x -> t (not saved) -> a and b, both saved; b is wanted first."""
    tape = Tape()
    x = tape.alloc(1)
    (t,) = tape.call([x], [50], 7.0)
    (a,) = tape.call([t], [10], 1.0)
    (b,) = tape.call([t], [20], 2.0)
    handles = [tape.save(a), tape.save(b)]
    tape.free(t, a, b)
    tape.backward(handles[1:], 0, 1.0)
    tape.backward(handles[:1], 0, 1.0)
    tape.step()
    return tape, t


def test_a_shared_ancestor_runs_once_and_is_held_for_its_second_reader():
    tape, _ = _fork()
    played, plan = _play(tape, dropped={1, 2})
    assert [unit for _, unit in plan.schedule.runs] == [0, 2, 1]
    assert played.seconds == (10 + 2) + (7 + 2 + 1)
    loads = [i for i, action in enumerate(plan.schedule.runs) if action[1] == 1]
    assert loads == [2]
    assert played.live_bytes[plan.schedule.runs[2][0]] == 1 + 50 + 10  # t was held until a ran again


def test_a_result_nobody_saves_can_be_held_instead():
    tape, t = _fork()
    played, plan = _play(tape, dropped={1, 2}, held={t})
    assert [unit for _, unit in plan.schedule.runs] == [2, 1]
    assert played.seconds == (10 + 2) + (2 + 1)
    assert played.live_bytes[-1] == 1


def test_what_the_program_drops_and_no_call_can_make_is_held_for_the_run():
    tape = Tape()
    x = tape.alloc(100)
    (a,) = tape.call([x], [10], 1.0)
    handle = tape.save(a)
    tape.free(x, a)
    tape.alloc(5)
    tape.backward([handle])
    tape.step()
    played, _ = _play(tape, dropped={0})
    assert played.peak_bytes == 100 + 5 + 10  # x could not be let go of


def test_running_in_place_again_takes_no_memory_of_its_own():
    tape = Tape()
    x = tape.alloc(1)
    (a,) = tape.call([x], [10], 3.0)
    tape.call([], [], 1.0, "aten.relu_.default", writes=a)
    handle = tape.save(a)
    tape.free(a)
    tape.backward([handle])
    tape.step()
    played, plan = _play(tape, dropped={1})
    assert [unit for _, unit in plan.schedule.runs] == [0, 1]
    assert played.peak_bytes == 1 + 10
    assert played.recompute_seconds == 4.0
    assert played.live_bytes[-1] == 1
