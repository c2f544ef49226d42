"""The published curve of MegEngine's DTR keeps its shape: one dry run of ResNet-50, every threshold simulated."""

from __future__ import annotations

import pytest

from benchmarks.dtr.curve import DEVICE, PUBLISHED, instructions_in, megengine_curve, record, turns_of
from benchmarks.dtr.reference.megengine import MegEngineCard
from windtunnel.devices import find_device
from windtunnel.units import GIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curve") / "run"
    return folder, record(folder)


@pytest.fixture(scope="module")
def curve(folder):
    return megengine_curve(instructions_in(folder[0]), MegEngineCard(find_device(DEVICE).usable_bytes))


def test_the_curve_turns_where_it_was_published_to(curve):
    found = turns_of(curve)
    assert abs(found.fastest - PUBLISHED.fastest) <= 1
    assert abs(found.slower_from - PUBLISHED.slower_from) <= 1
    assert abs(found.out_of_memory_from - PUBLISHED.out_of_memory_from) <= 1


def test_time_falls_up_to_the_fastest_threshold(curve):
    times = [curve[gb].step_seconds for gb in range(2, turns_of(curve).fastest + 1)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 2 * times[1]


def test_peaks_are_about_8_and_then_near_the_card(curve):
    usable = find_device(DEVICE).usable_bytes
    assert curve[2].peak_reserved_bytes > curve[3].peak_reserved_bytes
    assert all(8 * GIB < curve[gb].peak_reserved_bytes < 9 * GIB for gb in (3, 4, 5))
    assert all(curve[gb].peak_reserved_bytes > 0.93 * usable for gb in (6, 7, 8, 9))


def test_our_own_runtime_needs_less_time_at_every_threshold_both_can_hold(folder, curve):
    for point in folder[1]["points"]:
        gb = point["threshold_bytes"] // GIB
        if point["fits"] and curve[gb].fits:
            assert point["step_seconds"] < curve[gb].step_seconds
