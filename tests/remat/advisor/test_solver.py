"""The best fixed choice: what the solver finds against everything there is, played."""

from __future__ import annotations

import sys
from itertools import chain as join
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remat.handmade import Tape, chain
from windtunnel.errors import MissingFramework
from windtunnel.remat.advisor import solver
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.advisor import lowest_possible
from windtunnel.remat.advisor.blocks import find_blocks
from windtunnel.remat.advisor.checkpointing import CheckpointPlan
from windtunnel.remat.advisor.solver import Problem, select
from windtunnel.remat.advisor.solver_model import check_solver
from windtunnel.remat.advisor.static_plan import Choice

LONG = 30.0  # seconds the solver may take; it never does


def test_a_budget_that_holds_everything_drops_nothing():
    problem = Problem(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    found = select(problem, 141, LONG)
    assert found.choice == Choice()
    assert (found.played.seconds, found.gap) == (14.0, 0.0)


def test_the_cheapest_result_that_is_large_enough_goes():
    problem = Problem(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    found = select(problem, 121, LONG)
    assert found.choice.dropped == {1}  # 20 bytes for 2 seconds: 10 bytes are too few, 30 dearer
    assert (found.played.seconds, found.played.peak_bytes, found.gap) == (16.0, 121, 0.0)


def test_what_comes_back_early_is_known_to_be_in_the_way():
    """Without 10 and 20, 30 cannot be wanted: with them back there is no room for its gradient."""
    problem = Problem(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    found = select(problem, 91, LONG)
    assert found.choice.dropped == {1, 2}
    assert (found.played.seconds, found.played.peak_bytes, found.gap) == (19.0, 91, 0.0)


@pytest.mark.parametrize("most_exact", [60, 0])
def test_neighbours_that_would_come_back_together_are_not_both_dropped(monkeypatch, most_exact):
    """30 and 40 are the cheapest 70 bytes; but 40 needs 30, and with both back its gradient has no room."""
    monkeypatch.setattr(solver, "_EXACT_UNITS", most_exact)
    problem = Problem(*chain([20, 30, 40, 40], [6, 2, 3, 3]).program())
    found = select(problem, 111, LONG)
    assert found.choice.dropped == {0, 2}
    assert (found.played.recompute_seconds, found.played.peak_bytes, found.gap) == (9.0, 111, 0.0)
    cheapest = problem.play(Choice(frozenset({1, 2})))
    assert (cheapest.recompute_seconds, cheapest.peak_bytes) == (5.0, 131)


def test_a_budget_below_one_operator_is_impossible():
    problem = Problem(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    found = select(problem, 80, LONG)
    assert found.played is None
    assert found.is_impossible


def test_a_result_nobody_saves_is_held_if_running_from_it_is_cheaper():
    """What a cast makes is saved, 4 times as large as what it is made from, which took long."""
    tape = Tape()
    x = tape.alloc(1)
    handles = []
    for _ in range(3):
        (small,) = tape.call([x], [10], 100.0)
        (large,) = tape.call([small], [40], 1.0)
        handles.append(tape.save(large))
        (x_next,) = tape.call([small], [1], 1.0)
        tape.free(small, large)
        x = x_next
    for handle in reversed(handles):
        tape.backward([handle], 4)
    tape.step()
    problem = Problem(*tape.program())
    found = select(problem, 100, LONG)
    assert problem.kept.peak_bytes > 100
    assert (found.played.recompute_seconds, found.gap) == (2.0, 0.0)
    assert len(found.choice.held) == 2


def test_without_scipy_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    error = ModuleNotFoundError("No module named 'scipy'", name="scipy")

    class NoScipy:
        def find_spec(self, name, *_):
            if name.partition(".")[0] == "scipy":
                raise error

    for name in [name for name in sys.modules if name.startswith("scipy.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "scipy")
    monkeypatch.setattr(sys, "meta_path", [NoScipy(), *sys.meta_path])
    with pytest.raises(MissingFramework, match=r"scipy is not installed.*windtunnel\[plan\]"):
        check_solver()


@st.composite
def programs(draw, most=7):
    """A few calls in two blocks; each reads recent results and mostly saves one of them, or what it makes."""
    n_calls = draw(st.integers(4, most))
    tape = Tape()
    first = tape.alloc(1)
    alive, nodes = [first], []
    half = n_calls // 2
    for i in range(n_calls):
        if i in (0, half):
            tape.enter(f"layers.{0 if i == 0 else 1}")
        reads = draw(st.lists(st.sampled_from(alive), min_size=1, max_size=2, unique=True))
        saved = [tape.save(read) for read in reads if read != first and draw(st.integers(0, 3))]
        cost = float(draw(st.integers(1, 9)))
        (made,) = tape.call(reads, [draw(st.integers(5, 60))], cost, scratch=draw(st.sampled_from([0, 0, 9])))
        if draw(st.booleans()):
            saved.append(tape.save(made))
        nodes.append((saved, draw(st.integers(1, 9))))
        alive.append(made)
        if i + 1 in (half, n_calls):
            tape.exit()
        if len(alive) > 3:
            tape.free(alive.pop(1))
    tape.free(*alive[1:])
    for saved, grad in reversed(nodes):
        tape.backward(saved, grad)
    tape.step()
    return tape.program()


def _budget(problem, share):
    """Between what is in use whatever is dropped, and the peak of plain training."""
    lowest = lowest_possible(problem)
    return int(lowest + share * (problem.kept.peak_bytes - lowest))


def _every_choice(problem):
    units = sorted(problem.droppable)
    passing = sorted(problem.holdable)
    for dropped in join.from_iterable(combinations(units, n) for n in range(len(units) + 1)):
        for held in join.from_iterable(combinations(passing, n) for n in range(len(passing) + 1)):
            yield Choice(frozenset(dropped), frozenset(held))


@settings(max_examples=150, deadline=None)
@given(programs(), st.floats(0.0, 1.0))
def test_nothing_beats_what_the_solver_finds(case, share):
    problem = Problem(*case)
    budget = _budget(problem, share)
    found = select(problem, budget, LONG)
    all_played = [problem.play(choice) for choice in _every_choice(problem)]
    within = [played.seconds for played in all_played if played.peak_bytes <= budget]
    if found.played is None:
        assert not within or not found.is_impossible
        return
    assert found.played.peak_bytes <= budget
    assert found.bound_seconds <= min(within) + 1e-6  # the bound is one
    assert found.played.seconds >= min(within) - 1e-6
    if found.gap == 0:
        assert found.played.seconds == pytest.approx(min(within))


@settings(max_examples=60, deadline=None)
@given(programs(most=9), st.floats(0.0, 1.0))
def test_the_budget_is_kept_and_the_time_is_that_of_the_calls(case, share):
    problem = Problem(*case)
    budget = _budget(problem, share)
    found = select(problem, budget, LONG)
    if found.played is not None:
        assert found.played.peak_bytes <= budget
        assert found.played.seconds >= problem.kept.seconds
        assert problem.play(found.choice).live_bytes.tolist() == found.played.live_bytes.tolist()


@settings(max_examples=60, deadline=None)
@given(programs(most=8))
def test_a_proven_choice_is_not_slower_than_checkpointing_every_block_at_its_peak(case):
    program, seconds = case
    problem = Problem(program, seconds)
    every = play(program, seconds, CheckpointPlan(program, seconds, find_blocks(program)))
    found = select(problem, every.peak_bytes, LONG)
    if found.played is not None and found.gap == 0:
        assert found.played.seconds <= every.seconds + 1e-6


def test_how_often_the_solver_is_sure():
    """Chains of equal layers, every budget: proven optimal each time, and checkpointing is never better."""
    program, seconds = chain([10] * 12, [1.0] * 12, [range(i, i + 3) for i in range(0, 12, 3)]).program()
    problem = Problem(program, seconds)
    peaks = []
    for budget in range(60, problem.kept.peak_bytes + 1, 10):
        found = select(problem, budget, LONG)
        if found.played is not None:
            assert found.gap == 0.0
            peaks.append((found.played.peak_bytes, found.played.recompute_seconds))
    assert peaks == sorted(peaks, key=lambda pair: (pair[0], -pair[1]))
    assert len(peaks) > 5
