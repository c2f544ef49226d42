"""Memory over time in characters."""

from __future__ import annotations

import numpy as np

from tests.report.runs import timeline
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import ROLES
from windtunnel.report.text_graph import ASCII, UNICODE, draw_memory
from windtunnel.units import GIB


def _flat(events, live, reserved=None):
    live = np.array(live)
    reserved = live if reserved is None else np.array(reserved)
    return Timeline(
        np.array(events), np.ones(len(live), int), live, reserved, np.zeros((len(live), len(ROLES)), int)
    )


def test_columns_rise_with_the_live_bytes():
    lines = draw_memory(_flat([0, 1, 2, 3], [0, 8, 16, 32]), 0, ASCII, width=4, height=4)
    assert lines == (
        "32 B |   #",
        "     |   #",
        "     |  ##",
        "     | ###",
        "     +----",
        "",  # no room for "step 1" in four columns
    )


def test_reserved_stands_behind_live():
    lines = draw_memory(_flat([0, 1], [16, 16], [32, 32]), 0, ASCII, width=2, height=2)
    assert lines[:2] == ("32 B |..", "     |##")


def test_the_capacity_is_drawn_where_it_is_and_left_out_when_far_away():
    near = draw_memory(timeline(), 79 * GIB, ASCII)
    assert near[0].startswith("79.00 GiB |-----")
    assert not any("79.00" in line for line in draw_memory(timeline(), 790 * GIB, ASCII))


def test_a_gap_between_points_continues_the_value_before_it():
    lines = draw_memory(_flat([0, 9], [8, 0]), 0, ASCII, width=10, height=1)
    assert lines[0] == "8 B |#########"


def test_steps_are_written_where_they_begin():
    lines = draw_memory(timeline(points=60), 0, UNICODE, width=60)
    assert lines[-1].split() == ["step", "1", "2", "3"]
    assert lines[-1].index("2") - lines[-1].index("s") == 20


def test_an_empty_timeline_draws_nothing():
    assert draw_memory(_flat([], []), 0, ASCII) == ()
