"""The curve and its best point: a hand-made program, and hand-made outcomes."""

from __future__ import annotations

import pytest

from tests.remat.chains import N_BYTES, write_chain
from tests.remat.points import point
from windtunnel.devices import find_device
from windtunnel.memory import Allocator
from windtunnel.remat.simulated.curve import Curve, Question, has_backward, trace_curve
from windtunnel.remat.simulated.program import read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.units import GIB, MIB


def _question(tmp_path, usable_bytes, n_values=8):
    program = read_program(write_chain(tmp_path / "chain.arrows", n_values, n_steps=3))
    costs = ProgramCosts(program, find_device("2080ti-11gb"))
    return Question(
        program, costs, lambda n_bytes: Allocator.named("cpu", device_bytes=n_bytes), usable_bytes
    )


def test_the_lower_the_threshold_the_lower_the_peak_and_the_more_is_computed_again(tmp_path):
    curve = trace_curve(_question(tmp_path, GIB), ["dtr"], [n * MIB for n in (20, 24, 28, 32, 36, 40)])
    assert [p.step.rematerialisations for p in curve.points] == [5, 3, 2, 1, 0, 0]
    assert [p.peak_live_bytes // MIB for p in curve.points] == [24, 28, 32, 36, 40, 40]
    times = [p.step_seconds for p in curve.points]
    assert times == sorted(times, reverse=True)
    assert times[-1] == curve.without.step_seconds


def test_without_rematerialisation_the_need_is_told_even_if_it_does_not_fit(tmp_path):
    curve = trace_curve(_question(tmp_path, 24 * MIB), ["dtr"], [16 * MIB])
    assert not curve.without.fits
    assert curve.without.peak_live_bytes == 10 * N_BYTES
    assert curve.without.threshold is None
    assert curve.points[0].fits
    assert trace_curve(_question(tmp_path, 40 * MIB), ["dtr"], [16 * MIB]).without.fits


def test_thresholds_that_do_not_fit_say_where_they_fail(tmp_path):
    curve = trace_curve(_question(tmp_path, 24 * MIB), ["dtr"], [16 * MIB, 24 * MIB])
    assert [p.fits for p in curve.points] == [True, False]
    failure = curve.points[1].out_of_memory
    assert (failure.step, failure.operator, failure.requested_bytes) == (1, "aten.mul.Tensor", N_BYTES)
    assert curve.fits
    assert curve.best is curve.points[0]


def test_a_card_too_small_for_what_cannot_be_evicted_has_no_best(tmp_path):
    curve = trace_curve(_question(tmp_path, 8 * MIB), ["dtr"], [4 * MIB, 8 * MIB])
    assert (curve.fits, curve.best) == (False, None)
    assert curve.floor_bytes == 3 * N_BYTES  # the input, what an operator reads, what it makes


def test_thresholds_of_our_own_lie_between_too_low_and_needless(tmp_path):
    curve = trace_curve(_question(tmp_path, GIB), ["dtr"])
    sizes = [p.threshold for p in curve.points]
    assert 8 <= len(sizes) <= 12
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (curve.floor_bytes, curve.without.peak_live_bytes)


def test_every_policy_is_asked_for_every_threshold(tmp_path):
    seen = []
    curve = trace_curve(
        _question(tmp_path, GIB), ["dtr", "lru"], [20 * MIB, 24 * MIB], lambda *done: seen.append(done)
    )
    found = [(p.policy, p.threshold // MIB) for p in curve.points]
    assert found == [("dtr", 20), ("dtr", 24), ("lru", 20), ("lru", 24)]
    assert curve.policies == ("dtr", "lru")
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_a_program_without_backward_keeps_nothing(tmp_path):
    assert has_backward(read_program(write_chain(tmp_path / "a.arrows", 2)))
    assert not has_backward(read_program(write_chain(tmp_path / "b.arrows", 2, is_training=False)))


# -- which point is best --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "best"),
    [
        ([point(4, 1.5, 50), point(5, 1.2, 60), point(6, 1.1, 90)], 2),  # the fastest that leaves 5 % free
        ([point(4, 1.5, 50), point(5, 1.2, 60), point(6, 1.1, 96)], 1),  # 96 of 100 is too close
        ([point(4, 1.5, 96), point(5, 1.2, 99)], 0),  # nothing leaves 5 %: what leaves most
        ([point(4, 1.1, 60), point(5, 1.1, 50)], 1),  # as fast: the lower peak
        ([point(4, 1.104, 50), point(5, 1.1, 60)], 0),  # half a percent is as fast
        ([point(4, 1.11, 50), point(5, 1.1, 60)], 1),
        ([point(4, 1.5, 50), point(5, 1.0, 60, n_retries=3)], 0),  # it had to struggle for room
        ([point(4, 1.5, 50), point(5, 1.0, 60, fits=False)], 0),
        ([point(4, 1.5, 50, fits=False)], None),
    ],
)
def test_the_best_is_the_fastest_with_room_to_spare(points, best):
    curve = Curve(point(None, 1.0, 200, fits=False), tuple(points), 3 * GIB, 100 * GIB)
    assert curve.best is (None if best is None else points[best])


def test_peaks_are_of_the_whole_run_and_times_of_its_last_step():
    found = point(5, 1.2, 60, first_peak_gib=70, first_slowdown=2.0)
    assert found.peak_reserved_bytes == 70 * GIB
    assert found.step_seconds == pytest.approx(1.2)
