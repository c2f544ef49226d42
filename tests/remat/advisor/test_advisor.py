"""All ways on the same program: which points there are, and which one is best."""

from __future__ import annotations

import pytest

from tests.remat.handmade import Tape, chain
from windtunnel.events.model import Phase
from windtunnel.remat.advisor.advisor import Advice, Point, advise, choose_budgets, lowest_possible
from windtunnel.remat.advisor.solver import Problem
from windtunnel.remat.evict_and_recompute import Settings

MB = 1 << 20
BLOCKS = [range(i, i + 3) for i in range(0, 12, 3)]
EVERYTHING = Settings(minimum_size=1)


@pytest.fixture(scope="module")
def case():
    return chain([10 * MB] * 12, [1.0] * 12, BLOCKS).program()


@pytest.fixture(scope="module")
def advice(case):
    return advise(*case, 90 * MB, settings=EVERYTHING, is_cuda=False)


def test_nothing_dropped_comes_first(advice):
    assert advice.nothing == advice.points[0]
    assert (advice.nothing.way, advice.nothing.slowdown) == ("nothing", 1.0)
    assert advice.nothing.peak_bytes == 1 + 130 * MB


def test_blocks_are_checkpointed_one_more_at_a_time(advice):
    assert advice.blocks == "4 blocks, layers.0 to layers.3"
    found = [(p.n_blocks, p.slowdown) for p in advice.points if p.way == "blocks"]
    assert found == [(1, 27 / 24), (2, 30 / 24), (3, 33 / 24), (4, 36 / 24)]
    assert advice.every_block.label == "checkpoint every block"


def test_a_fixed_set_keeps_every_budget_and_is_never_slower_than_checkpointing_at_its_peak(advice):
    fixed = advice.of("fixed set")
    assert fixed
    assert all(p.peak_bytes <= p.budget_bytes for p in fixed)
    at_same_peak = advice.best(("fixed set",), advice.every_block.peak_bytes)
    assert at_same_peak.seconds <= advice.every_block.seconds
    assert at_same_peak.gap == 0.0


def test_more_memory_is_never_slower(advice):
    slowdowns = [p.slowdown for p in advice.of("fixed set")]
    assert slowdowns == sorted(slowdowns)


def test_dtr_is_tried_at_every_budget(advice):
    assert [p.budget_bytes for p in advice.points if p.way == "dtr"] == list(advice.budgets)
    assert advice.room_bytes == int(90 * MB * 0.95)
    assert advice.room_bytes in advice.budgets
    assert advice.every_block.peak_bytes in advice.budgets


def test_what_a_set_drops_is_reported_by_operator(advice):
    tightest = advice.of("fixed set")[-1]
    assert [d.operator for d in tightest.dropped] == ["aten.exp.default"]
    assert tightest.dropped[0].n_bytes == tightest.dropped[0].n_calls * 10 * MB
    assert tightest.dropped[0].seconds == tightest.seconds - advice.nothing.seconds


def test_budgets_lie_between_what_is_always_in_use_and_the_peak(case):
    problem = Problem(*case)
    lowest = lowest_possible(problem)
    # the largest operator: what it reads and makes, or a gradient beside what is wanted
    assert lowest == 1 + 20 * MB
    budgets = choose_budgets(problem, 500 * MB, None)
    assert len(budgets) == 7
    assert all(lowest < budget < problem.kept.peak_bytes for budget in budgets)


def test_budgets_that_are_asked_for_are_used(case):
    seen = []
    advice = advise(
        *case, 90 * MB, [100 * MB], 5.0, lambda text, share: seen.append(share), settings=EVERYTHING, is_cuda=False
    )  # fmt: skip
    assert advice.budgets == (100 * MB,)
    assert [p.budget_bytes for p in advice.points if p.way == "fixed set"] == [100 * MB]
    assert seen == sorted(seen)


def test_a_program_without_blocks_is_advised_all_the_same():
    advice = advise(*chain([MB] * 4, [1.0] * 4).program(), 4 * MB, settings=EVERYTHING, is_cuda=False)
    assert (advice.blocks, advice.n_blocks, advice.every_block) == ("no repeated blocks", 0, None)
    assert advice.best(("fixed set",), 4 * MB) is not None


def test_the_best_is_the_fastest_that_fits_and_of_equals_the_smallest():
    def point(way, seconds, peak):
        return Point(way, way, seconds, peak, seconds)

    points = (
        point("nothing", 1.0, 100),
        point("blocks", 2.0, 50),
        point("dtr", 2.0, 40),
        point("dtr", 3.0, 30),
    )
    advice = Advice(60, (), points, "", 0, 0, 0)
    assert advice.best(("blocks", "dtr"), 60) is points[2]
    assert advice.best(("blocks",), 40) is None
    assert advice.best(("nothing", "dtr"), 100) is points[0]


def test_a_block_that_runs_for_every_micro_batch_is_one_block():
    tape = Tape()
    for _ in range(3):
        handles = []
        x = tape.alloc(MB)
        for i in range(2):
            tape.enter(f"layers.{i}")
            (a,) = tape.call([x], [8 * MB])
            handles.append(tape.save(a))
            (y,) = tape.call([a], [MB])
            tape.free(a, x)
            tape.exit()
            x = y
        tape.free(x)
        for handle in reversed(handles):
            tape.backward([handle], MB)
        tape.phase = Phase.FORWARD
    tape.step()
    advice = advise(*tape.program(), 8 * MB, settings=EVERYTHING, is_cuda=False)
    assert (advice.n_blocks, advice.blocks) == (2, "2 blocks, layers.0 to layers.1")
    slowdowns = [p.slowdown for p in advice.points if p.way == "blocks"]
    assert slowdowns == [(18 + 3) / 18, (18 + 6) / 18]


def test_a_program_with_nothing_to_drop_is_told_so():
    tape = Tape()
    x = tape.alloc(4 * MB)
    tape.backward([tape.save(x)], MB)
    tape.step()
    advice = advise(*tape.program(), 4 * MB, settings=EVERYTHING, is_cuda=False)
    assert advice.lowest_bytes == advice.nothing.peak_bytes == 5 * MB
    assert advice.best(("nothing", "blocks", "fixed set", "dtr"), 4 * MB) is None


def test_checkpointing_that_no_call_could_replay_counts_as_the_best_set():
    """Every call is one that is never run again by itself; torch runs whole blocks all the same."""
    tape = Tape()
    x = tape.alloc(1)
    handles = []
    for i in range(3):
        tape.enter(f"layers.{i}")
        (a,) = tape.call([x], [8 * MB], 1.0, "aten.nonzero.default")
        handles.append(tape.save(a))
        (x,) = tape.call([a], [1], 1.0, "aten.nonzero.default")
        tape.free(a)
        tape.exit()
    for handle in reversed(handles):
        tape.backward([handle], MB)
    tape.step()
    advice = advise(*tape.program(), 12 * MB, settings=EVERYTHING, is_cuda=False)
    best = advice.best(("fixed set",), 12 * MB)
    assert (best.label, best.seconds) == ("checkpoint every block", advice.every_block.seconds)
    assert best.gap == float("inf")
