"""One rank: when its host asks, and when its streams do it. Exact numbers on programs of a few lines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cluster.programs import (
    host,
    kernel,
    program,
    record_event,
    reduce_all,
    step,
    sync,
    wait,
    wait_event,
)
from windtunnel.cluster.program import LaneKind, RankTimeline
from windtunnel.cluster.timeline import replay_world


def play(*steps, groups=(), is_synchronous=False) -> RankTimeline:
    alone = program(0, steps, groups, is_synchronous=is_synchronous)
    return replay_world({0: alone}, {0: 0}, 1).ranks[0]


def spans(timeline: RankTimeline) -> list[tuple[float, float]]:
    known = ~np.isnan(timeline.start)
    return list(zip(timeline.start[known].tolist(), timeline.end[known].tolist(), strict=True))


def stalls(timeline: RankTimeline) -> list[tuple[int, int, float, float, int]]:
    s = timeline.stalls
    columns = (s.element, s.stream, s.start, s.end, s.cause)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_kernels_of_one_stream_follow_each_other_while_the_host_runs_ahead():
    timeline = play(kernel(4.0, host=1.0), kernel(2.0, host=1.0), kernel(2.0, host=1.0))
    assert timeline.issued.tolist() == [0.0, 1.0, 2.0]
    assert spans(timeline) == [(1.0, 5.0), (5.0, 7.0), (7.0, 9.0)]
    assert timeline.ready.tolist() == timeline.start.tolist()


def test_short_kernels_wait_for_a_slow_host():
    timeline = play(kernel(1.0, host=4.0), host(2.0), kernel(0.5, host=1.0), kernel(3.0, host=0.25))
    assert timeline.issued.tolist() == [0.0, 4.0, 6.0, 7.0]
    assert spans(timeline) == [(4.0, 5.0), (7.0, 7.5), (7.5, 10.5)]
    assert np.isnan(timeline.start[1])


def test_streams_work_beside_each_other():
    timeline = play(kernel(4.0), kernel(1.0, stream=7), kernel(1.0), kernel(2.0, stream=7))
    assert spans(timeline) == [(0.0, 4.0), (0.0, 1.0), (4.0, 5.0), (1.0, 3.0)]
    lanes = [(lane.kind, lane.name) for lane in timeline.lanes]
    assert lanes == [
        (LaneKind.HOST, "program"), (LaneKind.STREAM, "stream 0"), (LaneKind.STREAM, "stream 7"),
    ]  # fmt: skip
    assert timeline.lane.tolist() == [1, 2, 1, 2]


def test_a_stream_waits_for_an_event_of_another():
    timeline = play(kernel(4.0), record_event(1), wait_event(1, stream=7), kernel(1.0, stream=7), kernel(1.0))
    assert spans(timeline) == [(0.0, 4.0), (4.0, 5.0), (4.0, 5.0)]
    assert stalls(timeline) == [(2, 7, 0.0, 4.0, -1)]


def test_an_event_that_has_happened_holds_nobody_up():
    timeline = play(record_event(1), kernel(4.0, stream=7), wait_event(1, stream=7), kernel(1.0, stream=7))
    assert spans(timeline) == [(0.0, 4.0), (4.0, 5.0)]
    assert stalls(timeline) == []


def test_an_event_that_was_never_recorded_holds_nobody_up():
    timeline = play(wait_event(1), kernel(1.0), record_event(1))
    assert spans(timeline) == [(0.0, 1.0)]


def test_a_later_record_moves_an_event():
    timeline = play(
        kernel(1.0), record_event(1), kernel(3.0), record_event(1), wait_event(1, stream=7), kernel(1.0, stream=7)
    )  # fmt: skip
    assert spans(timeline)[-1] == (4.0, 5.0)


def test_an_event_behind_a_stream_that_itself_waits():
    """Stream 8 waits for 7, which waits for 0; the host is long through."""
    timeline = play(
        kernel(4.0), record_event(1),
        wait_event(1, stream=7), kernel(2.0, stream=7), record_event(2, stream=7),
        wait_event(2, stream=8), kernel(1.0, stream=8),
    )  # fmt: skip
    assert spans(timeline) == [(0.0, 4.0), (4.0, 6.0), (6.0, 7.0)]
    assert stalls(timeline) == [(2, 7, 0.0, 4.0, -1), (5, 8, 0.0, 6.0, -1)]


def test_the_host_waits_for_its_device():
    timeline = play(kernel(4.0), kernel(6.0, stream=7), sync(), kernel(1.0, host=0.5))
    assert timeline.issued.tolist() == [0.0, 0.0, 0.0, 6.0]
    assert spans(timeline)[-1] == (6.5, 7.5)


def test_the_host_waits_for_one_stream_only():
    timeline = play(kernel(4.0), kernel(6.0, stream=7), sync(stream=0), kernel(1.0, host=0.5))
    assert timeline.issued[3] == 4.0


def test_the_host_waits_for_an_event_and_not_for_what_came_after_it():
    timeline = play(kernel(4.0), record_event(1), kernel(6.0), wait_event(1, stream=-1), kernel(1.0))
    assert timeline.issued[4] == 4.0
    assert spans(timeline)[-1] == (10.0, 11.0)


def test_a_call_that_is_waited_for_holds_its_stream_up():
    pair = [(0, 1)]
    timeline = play(kernel(2.0), reduce_all(3.0), kernel(1.0), groups=pair)
    assert spans(timeline) == [(0.0, 2.0), (2.0, 5.0), (5.0, 6.0)]
    assert stalls(timeline) == [(1, 0, 2.0, 5.0, 1)]
    assert timeline.lanes[timeline.lane[1]].kind == LaneKind.COMMUNICATION


def test_kernels_overlap_a_call_until_its_wait():
    pair = [(0, 1)]
    timeline = play(
        kernel(2.0), reduce_all(5.0, is_async=True, id=9), kernel(3.0), wait(9), kernel(1.0), groups=pair
    )
    assert spans(timeline) == [(0.0, 2.0), (2.0, 7.0), (2.0, 5.0), (7.0, 8.0)]
    assert stalls(timeline) == [(3, 0, 5.0, 7.0, 1)]


def test_a_call_that_is_hidden_costs_nothing():
    pair = [(0, 1)]
    timeline = play(reduce_all(2.0, is_async=True, id=9), kernel(3.0), wait(9), kernel(1.0), groups=pair)
    assert spans(timeline) == [(0.0, 2.0), (0.0, 3.0), (3.0, 4.0)]
    assert stalls(timeline) == []


def test_calls_of_one_group_are_in_order_and_of_two_overlap():
    groups = [(0, 1), (0, 2)]
    calls = [
        reduce_all(4.0, 0, is_async=True, id=1), reduce_all(1.0, 0, is_async=True, id=2),
        reduce_all(3.0, 1, is_async=True, id=3),
    ]  # fmt: skip
    assert spans(play(*calls, groups=groups)) == [(0.0, 4.0), (4.0, 5.0), (0.0, 3.0)]


def test_a_device_sync_waits_for_calls_under_way():
    timeline = play(reduce_all(4.0, is_async=True, id=1), sync(), kernel(1.0), groups=[(0, 1)])
    assert timeline.issued[2] == 4.0


def test_the_cause_of_a_stall_is_known_behind_another_stream():
    """A stream that waits for a stream that waited for a call, waits for the call."""
    timeline = play(
        kernel(1.0, stream=7), reduce_all(5.0, stream=7), record_event(1, stream=7), wait_event(1), kernel(1.0),
        groups=[(0, 1)],
    )  # fmt: skip
    assert spans(timeline)[-1] == (6.0, 7.0)
    assert stalls(timeline) == [(1, 7, 1.0, 6.0, 1), (3, 0, 0.0, 6.0, 1)]


def test_a_cpu_does_one_thing_after_the_other():
    timeline = play(
        kernel(2.0, host=1.0), kernel(3.0, stream=7, host=1.0), reduce_all(4.0), kernel(1.0),
        groups=[(0, 1)], is_synchronous=True,
    )  # fmt: skip
    assert spans(timeline) == [(1.0, 3.0), (4.0, 7.0), (7.0, 11.0), (11.0, 12.0)]
    assert stalls(timeline) == [(2, 0, 7.0, 11.0, 2)]
    assert timeline.lane.tolist()[:2] == [0, 0]  # the program itself


def test_a_cpu_overlaps_a_call_it_holds_a_handle_of():
    timeline = play(
        reduce_all(4.0, is_async=True, id=1), kernel(3.0), wait(1), kernel(1.0),
        groups=[(0, 1)], is_synchronous=True,
    )  # fmt: skip
    assert spans(timeline) == [(0.0, 4.0), (0.0, 3.0), (4.0, 5.0)]
    assert stalls(timeline) == [(2, 0, 3.0, 4.0, 0)]


def test_a_step_ends_when_all_that_was_asked_for_before_it_is_done():
    timeline = play(kernel(4.0), kernel(9.0, stream=7), step(1), kernel(1.0), host(20.0), step(2))
    assert timeline.step_ends.tolist() == [9.0, 20.0]


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_an_empty_program(is_synchronous):
    timeline = play(is_synchronous=is_synchronous)
    assert len(timeline.start) == len(timeline.step_ends) == len(timeline.stalls.start) == 0


def test_a_program_of_calls_alone():
    timeline = play(reduce_all(1.0), reduce_all(2.0), step(), groups=[(0, 1)])
    assert spans(timeline) == [(0.0, 1.0), (1.0, 3.0)]
    assert timeline.step_ends.tolist() == [3.0]


def test_a_run_of_kernels_equals_kernels_one_by_one():
    """Runs are worked out at once; a sync of a stream without work breaks a run and changes nothing."""
    rng = np.random.default_rng(0)
    takes, asks = rng.integers(0, 9, 500) / 4, rng.integers(0, 9, 500) / 4
    kernels = [kernel(s, host=h) for s, h in zip(takes, asks, strict=True)]
    broken = [one for k in kernels for one in (k, record_event(1, stream=9))]
    whole, parts = play(*kernels), play(*broken)
    assert whole.start.tolist() == parts.start[::2].tolist()
    assert whole.end.tolist() == parts.end[::2].tolist()
    assert whole.issued.tolist() == parts.issued[::2].tolist()
    assert (whole.start[1:] >= whole.end[:-1]).all()
