"""Replay of op logs: exact numbers on programs small enough to follow, properties on random ones, published figures."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dtr import logs as dtr_logs
from benchmarks.dtr.reference.foresight import Foresight, Setting, plan
from benchmarks.dtr.reference.log_replay import Outcome, Replay, Stored, recorded_step, replay
from benchmarks.dtr.reference.op_log import Compute, OpLog, Pin
from tests.remat.reference.written_log import call, constant, log, mutate, release, view
from windtunnel.remat.policy import POLICIES, dtr, largest, lru

# x -> a -> b -> c, then d reads c and a, and only d is wanted: a (100 ns) has to wait for it.
CHAIN = (
    constant("x", 10),
    call("a", "x", 100, 10),
    call("b", "a", 20, 10),
    call("c", "b", 30, 10),
    release("b"),
    call("d", "c a", 40, 10),
    release("a", "c"),
)


def test_the_program_alone_frees_all_it_lets_go_of():
    step = recorded_step(log(*CHAIN))
    assert (step.compute_ns, step.peak_bytes) == (190, 40)
    assert recorded_step(log(constant("x", 10), release("x"), call("a", "", 1, 4))).peak_bytes == 10


def test_with_room_nothing_is_forgotten_or_computed_again():
    assert replay(log(*CHAIN), 40, dtr) == Replay(Outcome.DONE, 190, 190, 0, 0, 40)


def test_what_was_forgotten_is_computed_again():
    # Room for three: c pushes out a, the longest unused; d needs it, and by then b is gone.
    done = replay(log(*CHAIN), 40 - 1, lru)
    assert done == Replay(Outcome.OUT_OF_MEMORY, 190, 190 - 40 + 100, 1, 1, 30)  # d, c, a and x need four
    wide = (*CHAIN[:4], call("e", "c", 5, 10), release("c", "b"), call("d", "e a", 40, 10), release("a", "e"))
    assert replay(log(*wide), 40, lru) == Replay(Outcome.DONE, 195, 295, 1, 1, 40)


def test_a_forgotten_storage_takes_its_views_along_and_making_them_again_costs():
    program = (
        constant("x", 10),
        call("a", "x", 100, 10),
        view("v", "a", 3),
        release("a"),
        call("b", "x", 20, 10),
        call("c", "b", 20, 10),  # no room beside x, b: a goes, and v with it
        release("b"),
        call("d", "v c", 40, 10),  # a and v again
        release("v", "c"),
    )
    assert replay(log(*program), 40, dtr).total_ns == 183
    assert replay(log(*program), 39, lru).outcome is Outcome.OUT_OF_MEMORY
    roomy = (*program[:6], release("b"), release("c"), call("d", "v", 40, 10), release("v"))
    assert replay(log(*roomy), 30, lru) == Replay(Outcome.DONE, 183, 183 + 103, 1, 2, 30)


def test_room_is_made_for_all_outputs_though_one_of_them_is_there():
    program = (
        constant("x", 1),
        call("a b", "x", 50, 10, 10),
        call("c", "x", 1, 10),  # 31 with a and b: a goes, it is the last that came
        release("c"),
        call("d", "a", 1, 1),  # a again, and for a moment a second b: the first has to go
        release("a", "b", "d"),
    )
    assert replay(log(*program), 30, largest) == Replay(Outcome.DONE, 52, 102, 2, 1, 22)
    assert replay(log(*program), 31, largest).total_ns == 52


def test_a_mutation_holds_the_old_and_the_new_bytes_at_once():
    program = (constant("x", 1), call("a", "x", 5, 10), mutate("a", [0], 5))
    assert replay(log(*program), 21, dtr) == Replay(Outcome.DONE, 10, 10, 0, 0, 21)
    assert replay(log(*program), 20, dtr).outcome is Outcome.OUT_OF_MEMORY


def test_of_equal_scores_the_last_that_came_goes_first():
    program = [constant("x", 1)]
    for name, cost in (("a", 1), ("b", 10), ("c", 100)):
        program.append(call(name, "x", cost, 10))
    program += [call("d", "x", 1000, 10), release("d")]  # pushes out c
    done = replay(log(*program), 31, largest)
    assert (done.total_ns, done.n_recomputed) == (1111 + 100, 1)


def test_a_score_of_zero_ends_the_search():
    program = [constant("x", 1)]
    for name, cost in (("a", 1), ("b", 10), ("c", 100)):
        program.append(call(name, "x", cost, 10))
    program += [call("d", "x", 1000, 10), release("d")]  # pushes out a
    assert replay(log(*program), 31, lambda value, now: 0).total_ns == 1111 + 1


def test_the_results_of_the_step_are_there_at_its_end():
    program = (constant("x", 1), call("a", "x", 5, 10), call("b", "x", 7, 10))
    assert replay(log(*program), 20, dtr) == Replay(Outcome.OUT_OF_MEMORY, 12, 17, 2, 1, 11)


def test_more_time_for_computing_again_than_for_the_program_is_thrashing():
    program = [constant("x", 1), call("a", "x", 100, 10)]
    for i in range(4):
        program += [call(f"b{i}", "x", 1, 10), release(f"b{i}"), call(f"c{i}", "a", 1, 1), release(f"c{i}")]
    done = replay(log(*program, release("a")), 11 + 1, dtr)
    assert (done.outcome, done.n_recomputed, done.total_ns) == (Outcome.THRASHING, 2, 303)
    patient = replay(log(*program, release("a")), 12, dtr, most=5.0)
    assert (patient.outcome, patient.n_recomputed, patient.total_ns) == (Outcome.DONE, 4, 508)


def test_a_long_chain_of_forgotten_values_needs_no_deep_stack():
    n = 5000
    program = [constant("x", 1), call("a0", "x", 1, 1)]
    for i in range(1, n):
        program += [call(f"a{i}", f"a{i - 1}", 1, 1), release(f"a{i - 1}")]
    program += [call("big", "x", 0, 10), release("big"), call("end", f"a{n - 1}", 1, 1)]
    assert replay(log(*program), 11, dtr).total_ns == 2 * n + 1


def test_a_recorded_step_knows_the_time_the_need_and_the_readers():
    step = recorded_step(log(*CHAIN))
    assert step.began_ns == (0, 0, 100, 120, 150, 190)
    assert step.used_bytes == (10, 20, 30, 40, 40)
    assert step.uses == (
        (1, 1, 5),
        (2, 4),
        (3,),
        (4,),
        (5,),
    )  # the constant is pinned at once, results at the end


def test_foresight_keeps_what_is_needed_next():
    """a and b differ only in their next use; without foresight the one that was idle longer is evicted."""
    program = (
        constant("x", 1),
        call("a", "x", 50, 10),
        call("b", "x", 50, 10),
        call("c", "x", 1, 10),  # pushes out a or b
        call("d", "a", 1, 1),  # if a has to come back, b has to go after all
        release("a", "c", "d"),
        call("e", "b", 1, 1),
        release("b", "e"),
    )
    written = log(*program)
    foresight = Foresight(recorded_step(written), 30, Setting())
    assert replay(written, 30, dtr).total_ns == 103 + 50 + 50
    seen = replay(written, 30, foresight, foresight)
    assert (seen.total_ns, foresight.evictees) == (103 + 50, [2])


def test_foresight_first_forgets_what_is_not_needed_any_more():
    program = (
        constant("x", 1),
        call("a", "x", 50, 10),
        call("b", "a", 1, 10),
        release("a"),
        call("c", "x", 9, 20),  # pushes out b
        release("c"),
        call("d", "b", 1, 1),  # computes a and b again
        call("f", "x", 9, 18),  # pushes out b, which is cheap, or a, which nobody needs
        release("f"),
        call("e", "b", 1, 1),
        release("b", "e"),
    )
    assert replay(log(*program), 30, dtr).total_ns == 71 + 51 + 1
    assert plan(log(*program), 30).replay.total_ns == 71 + 51


def test_a_plan_with_enough_room_is_the_program_alone():
    found = plan(log(*CHAIN), 40)
    assert (found.replay.overhead, found.replay.n_evictions, found.bias) == (1.0, 0, {})
    assert plan(log(), 0).replay == Replay(Outcome.DONE, 0, 0, 0, 0, 0)


def test_a_plan_for_too_little_memory_says_so():
    assert plan(log(*CHAIN), 29).replay.outcome is Outcome.OUT_OF_MEMORY


# -- properties on random programs -------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> OpLog:
    n_constants = draw(st.integers(1, 2))
    steps = [line for i in range(n_constants) for line in constant(f"k{i}", draw(st.integers(0, 3)))]
    alive = [f"k{i}" for i in range(n_constants)]
    droppable: list[str] = []
    for i in range(draw(st.integers(1, 14))):
        args = draw(st.lists(st.sampled_from(alive), min_size=1, max_size=3))
        match draw(st.sampled_from(["call", "call", "pair", "view", "mutate"])):
            case "call":
                steps += call(f"t{i}", " ".join(args), draw(st.integers(0, 9)), draw(st.integers(0, 5)))
            case "pair":
                sizes = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
                steps += call(f"t{i} u{i}", " ".join(args), draw(st.integers(0, 9)), *sizes)
                alive.append(f"u{i}")
                droppable.append(f"u{i}")
            case "view":
                steps += call(f"t{i}", " ".join(args), draw(st.integers(0, 2)), (0, 0))
            case "mutate":
                if not droppable:
                    continue
                steps += mutate(" ".join([*args, draw(st.sampled_from(droppable))]), [len(args)], 2)
                continue
        alive.append(f"t{i}")
        droppable.append(f"t{i}")
        if droppable and draw(st.booleans()):
            name = draw(st.sampled_from(droppable))
            droppable.remove(name)
            alive.remove(name)
            steps += release(name)
    return log(steps)


class _Witness:
    """Keeps all storages, to look at after a replay."""

    def __init__(self) -> None:
        self.all: list[Stored] = []

    def made(self, stored: Stored) -> None:
        self.all.append(stored)

    def ran(self, touched: object) -> None:
        pass

    def evicted(self, stored: Stored) -> None:
        assert not stored.is_pinned
        assert stored.pins == 0


@given(programs(), st.floats(0.2, 1.0), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=300, deadline=None)
def test_a_replay_keeps_its_budget_and_ends_with_all_results(written, ratio, policy):
    base = recorded_step(written)
    budget = int(base.peak_bytes * ratio)
    witness = _Witness()
    done = replay(written, budget, POLICIES[policy], witness)
    assert done.peak_bytes <= budget
    if done.outcome is Outcome.DONE:
        assert done.total_ns >= done.base_ns == base.compute_ns
        wanted = {_storage_of(written)[step.tensor] for step in written.steps if isinstance(step, Pin)}
        assert all(witness.all[number].is_resident for number in wanted)
        resident = sum(stored.n_bytes for stored in witness.all if stored.is_resident)
        assert resident <= budget
    else:
        assert ratio < 1.0


@given(programs(), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=100, deadline=None)
def test_with_all_the_memory_of_the_program_the_overhead_is_one(written, policy):
    base = recorded_step(written)
    assert replay(written, base.peak_bytes, POLICIES[policy]) == Replay(
        Outcome.DONE, base.compute_ns, base.compute_ns, 0, 0, base.peak_bytes
    )


@given(programs(), st.floats(0.2, 1.0))
@settings(max_examples=40, deadline=None)
def test_a_plan_keeps_its_budget_repeats_and_is_never_worse_than_dtr(written, ratio):
    budget = int(recorded_step(written).peak_bytes * ratio)
    found = plan(written, budget)
    assert found == plan(written, budget)
    assert found.replay.peak_bytes <= budget
    without = replay(written, budget, dtr)
    if without.outcome is Outcome.DONE:
        assert found.replay.outcome is Outcome.DONE
        assert found.replay.total_ns <= without.total_ns


@cache
def _storage_of(written: OpLog) -> list[int]:
    """The number of the storage under each tensor."""
    numbers: list[int] = []
    count = 0
    for step in written.steps:
        if isinstance(step, Compute):
            for alias in step.aliases:
                numbers.append(count if alias < 0 else numbers[step.inputs[alias]])
                count += alias < 0
    return numbers


# -- published figures -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not dtr_logs.LOGS.exists(), reason="the op logs are not here")
@pytest.mark.parametrize("model", ["U-Net", "ResNet-32"])
def test_the_published_overheads_are_met(model):
    for row in dtr_logs.published():
        if row.model == model:
            for ratio, said in row.cells.items():
                done = dtr_logs.replayed(model, row.policy, ratio)
                assert dtr_logs.cell(done) == said, (row.policy, ratio)


@pytest.mark.skipif(not dtr_logs.LOGS.exists(), reason="the op logs are not here")
@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_a_plan_is_no_worse_than_the_best_published_policy(ratio):
    assert dtr_logs.planned("U-Net", ratio).overhead <= dtr_logs.best_published("U-Net", ratio)
