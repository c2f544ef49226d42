"""Where the seconds of a step go, on programs short enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.programs import kernel, program, receive, reduce_all, send
from windtunnel.cluster.program import Work
from windtunnel.cluster.step_time import RankTime, step_window, time_of
from windtunnel.cluster.timeline import replay_world

STEP = (Work.STEP, {})
PAIR = (0, 1)


def host(seconds):
    return Work.HOST, {"host_seconds": seconds}


def wait(collective, stream=0):
    return Work.WAIT, {"subject": collective, "stream": stream}


def record(event, stream=0):
    return Work.RECORD_EVENT, {"subject": event, "stream": stream}


def wait_event(event, stream=0):
    return Work.WAIT_EVENT, {"subject": event, "stream": stream}


def sync(stream=-1):
    return Work.SYNC, {"stream": stream}


def play(*ranks, groups=(PAIR,), **more):
    if len(ranks) == 1:
        groups = ()
    programs = {i: program(i, steps, groups, **more) for i, steps in enumerate(ranks)}
    return replay_world(programs, {i: i for i in programs}, len(ranks))


def booked(time: RankTime) -> float:
    exposed, peers = sum(time.exposed_seconds.values()), sum(time.peers_seconds.values())
    return (
        time.compute_seconds
        + exposed
        + peers
        + time.bubble_seconds
        + time.streams_seconds
        + time.host_seconds
    )


def only(times):
    (seconds,) = times.values()
    return seconds


def test_kernels_that_follow_each_other_are_all_there_is():
    time = time_of(play([kernel(2), kernel(3), STEP]))
    assert (time.step_seconds, time.warm_up_seconds, time.all_steps) == (5, None, (5,))
    assert time.ranks[0] == RankTime(0, 5, 5)


def test_a_device_that_waits_for_the_program_is_booked_on_the_host():
    rank = time_of(play([kernel(1, host=4), kernel(1, host=4), STEP])).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds, rank.host_seconds) == (9, 2, 7)


def test_reading_a_value_lets_the_device_run_dry():
    rank = time_of(play([kernel(3, host=1), sync(), kernel(2, host=1), STEP])).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds, rank.host_seconds) == (7, 5, 2)


def test_a_collective_is_exposed_where_nothing_else_runs():
    steps = [kernel(2), reduce_all(5), kernel(1), STEP]
    rank = time_of(play(steps, steps)).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds) == (8, 3)
    assert rank.exposed_seconds == rank.network_seconds == {"2 ranks, 1 apart": 5}
    assert (rank.peers_seconds, rank.host_seconds) == ({}, 0)


def test_what_runs_beside_a_collective_hides_it():
    steps = [kernel(1), reduce_all(5, is_async=True, id=7), kernel(3), wait(7), kernel(1), STEP]
    rank = time_of(play(steps, steps)).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds) == (7, 5)
    assert only(rank.exposed_seconds) == 2
    assert only(rank.network_seconds) == 5


def test_waiting_for_a_slower_rank_is_not_the_network():
    world = play([kernel(2), reduce_all(5), STEP], [kernel(6), reduce_all(5), STEP])
    fast, slow = time_of(world).ranks.values()
    assert (only(fast.peers_seconds), only(fast.exposed_seconds), fast.compute_seconds) == (4, 5, 2)
    assert (slow.peers_seconds, only(slow.exposed_seconds), slow.compute_seconds) == ({}, 5, 6)
    assert time_of(world).slowest is not None
    assert time_of(world).slowest.rank == 1
    assert (fast.waiting_for_others, slow.waiting_for_others) == (4, 0)


def test_a_stage_that_waits_for_the_one_before_is_in_a_bubble():
    world = play([kernel(4), send(1, seconds=1), STEP], [receive(0, seconds=1), kernel(3), STEP])
    time = time_of(world)
    first, second = time.ranks[0], time.ranks[1]
    assert (first.step_seconds, first.bubble_seconds) == (5, 0)
    assert (second.step_seconds, second.bubble_seconds, second.compute_seconds) == (8, 4, 3)
    assert only(second.exposed_seconds) == 1
    assert second.peers_seconds == {}
    assert time.bubble_share == 4 / 13


def test_a_stage_that_is_done_first_waits_in_a_bubble_too():
    """At the norm of all gradients the last stage waits until backward has come to the first."""
    first = [kernel(1), send(1), receive(1), kernel(4), reduce_all(1), STEP]
    last = [receive(0), kernel(2), send(0), reduce_all(1), STEP]
    time = time_of(play(first, last))
    assert [(r.bubble_seconds, r.peers_seconds) for r in time.ranks.values()] == [(2, {}), (1 + 4, {})]
    assert time.bubble_share == 7 / 16


def test_a_rank_that_only_waits_is_not_called_slow_at_programming():
    """It has no kernel of its own: its time goes to its peers and the network."""
    rank = time_of(play([kernel(4), reduce_all(2), STEP], [reduce_all(2), STEP])).ranks[1]
    assert (only(rank.peers_seconds), only(rank.exposed_seconds), rank.host_seconds) == (4, 2, 0)


def test_waiting_for_another_stream():
    steps = [
        kernel(1),
        kernel(3, stream=1),
        kernel(3, stream=1),
        record(9, 1),
        wait_event(9),
        kernel(8),
        STEP,
    ]
    rank = time_of(play(steps)).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds, rank.streams_seconds) == (14, 9, 5)


def test_time_is_booked_on_the_stream_that_works_most():
    rank = time_of(play([kernel(1), kernel(6, stream=3), STEP])).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds) == (6, 6)


def test_data_that_another_stream_waited_for_is_still_the_network():
    """The copy stream waits for the collective and works 2 s on it; the main stream waits for that."""
    collective = (Work.COLLECTIVE, {"seconds": 5, "group": 0, "stream": 1, "subject": 0})
    steps = [kernel(1), collective, kernel(2, stream=1), record(9, 1), wait_event(9), kernel(9), STEP]
    rank = time_of(play(steps, steps)).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds) == (16, 10)
    assert (only(rank.exposed_seconds), rank.streams_seconds) == (4, 2)


def test_on_a_cpu_the_program_itself_waits():
    steps = [kernel(2, host=1), reduce_all(5), kernel(1), STEP]
    rank = time_of(play(steps, steps, is_synchronous=True)).ranks[0]
    assert (rank.step_seconds, rank.compute_seconds, rank.host_seconds) == (9, 3, 1)
    assert only(rank.exposed_seconds) == 5


def test_the_first_step_is_distinguished_and_the_rest_is_a_median():
    steps = [kernel(9), STEP, kernel(2), STEP, kernel(4), STEP, kernel(3), STEP]
    time = time_of(play(steps))
    assert (time.step_seconds, time.warm_up_seconds, time.all_steps) == (3, 9, (9, 2, 4, 3))
    assert time.ranks[0].step_seconds == 3


def test_what_follows_the_last_step_is_no_part_of_it():
    world = play([kernel(9), STEP, kernel(2), STEP, kernel(100)])
    assert time_of(world).step_seconds == 2
    assert step_window(world.ranks[0]) == (9, 11)


def test_a_program_without_an_optimizer_is_one_step():
    world = play([kernel(2), kernel(3, host=1)])
    time = time_of(world)
    assert (time.step_seconds, time.warm_up_seconds, time.all_steps) == (5, None, (5,))
    assert step_window(world.ranks[0]) == (0, 5)


@pytest.mark.parametrize("steps", [[], [STEP], [host(0), STEP]])
def test_a_program_that_does_nothing_takes_no_time(steps):
    time = time_of(play(steps))
    assert time.step_seconds == 0
    assert time.bubble_share == 0
    assert booked(time.ranks[0]) == 0


def test_ranks_with_different_numbers_of_steps_are_compared_as_far_as_both_go():
    time = time_of(
        play([kernel(1), STEP, kernel(1), STEP, kernel(1), STEP], [kernel(3), STEP, kernel(2), STEP])
    )
    assert time.all_steps == (3, 2)


SECONDS = st.integers(0, 8).map(float)
STREAMS = st.integers(0, 2)
ELEMENTS = st.one_of(
    st.builds(kernel, SECONDS, STREAMS, SECONDS),
    st.builds(host, SECONDS),
    st.builds(record, st.integers(0, 3), STREAMS),
    st.builds(wait_event, st.integers(0, 3), st.integers(-1, 2)),
    st.builds(sync, st.integers(-1, 0)),
    st.just(STEP),
    st.tuples(st.sampled_from(["all_reduce", "to_right", "to_left"]), SECONDS, st.booleans(), STREAMS),
)


def _of_rank(rank, drawn, delays):
    """Both ranks make the same calls, with kernels of different lengths between them."""
    steps, n = [kernel(0.0)], 0
    for element, delay in zip(drawn, delays, strict=True):
        if isinstance(element[0], Work):
            work, fields = element
            steps.append((work, fields | {"seconds": delay} if work == Work.KERNEL else fields))
            continue
        what, seconds, is_async, stream = element
        if what == "all_reduce":
            work, fields = reduce_all(seconds, is_async=is_async, id=n)
        elif (what == "to_right") == (rank == 0):
            work, fields = send(1 - rank, seconds=seconds)
        else:
            work, fields = receive(1 - rank, seconds=seconds)
        steps.append((work, fields | {"stream": stream, "subject": n}))
        if is_async:
            steps += [kernel(delay, stream), wait(n, stream)]
        n += 1
    return steps


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_second_of_a_step_is_booked_once(data):
    drawn = data.draw(st.lists(ELEMENTS, max_size=25))
    delays = st.lists(SECONDS, min_size=len(drawn), max_size=len(drawn))
    is_synchronous = data.draw(st.booleans())
    ranks = [_of_rank(rank, drawn, data.draw(delays)) for rank in PAIR]
    world = play(*ranks, is_synchronous=is_synchronous)
    assert world.n_unmet == 0
    time = time_of(world)
    for rank in time.ranks.values():
        assert booked(rank) == pytest.approx(rank.step_seconds, abs=1e-9)
        parts = [rank.compute_seconds, rank.bubble_seconds, rank.streams_seconds, rank.host_seconds]
        assert min(parts) >= 0
        for axis, seconds in rank.exposed_seconds.items():
            assert seconds <= rank.network_seconds[axis] + 1e-9
        first, last = step_window(world.ranks[rank.rank])
        assert last - first == rank.step_seconds
    assert np.isfinite(time.all_steps).all()
