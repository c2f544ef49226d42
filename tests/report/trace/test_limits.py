"""Traces that are too large: what is merged, what is dropped, and that it is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.report.trace.traces import Script, play, read_checked, spans, tracks_of, two_layers
from windtunnel.events.model import Phase
from windtunnel.report.trace.chrome_file import write_merged_trace, write_trace
from windtunnel.report.trace.rank import full_trace
from windtunnel.report.trace.thin import count_events, thin


def test_beyond_the_limit_the_last_step_is_kept_whole(tmp_path):
    recording, timeline = two_layers(n_steps=4).played()
    everything = full_trace(recording, timeline).trace
    last = full_trace(recording, timeline, step=4).trace
    file = write_trace(tmp_path / "t.json", recording, timeline, max_events=count_events(last))
    events = read_checked(tmp_path / "t.json")
    assert spans(tracks_of(events)["steps and phases"])[0][0] == "step 4"
    assert file.n_events == count_events(last) + 2  # that something is left out is said, twice
    assert file.n_left_out == len(everything.slices) - len(last.slices)
    assert file.left_out == ("only step 4, the last complete one, is shown",)
    (said,) = [e for e in events if e["name"] == "left_out"]
    assert said["args"] == {"slices": file.n_left_out, "what": list(file.left_out)}


def test_short_neighbours_are_merged_and_long_ones_stay():
    script = Script()
    for _ in range(40):
        script.kernel("aten.small.default", us=2, host=1)
    script.kernel("aten.large.default", us=500, host=1)
    for _ in range(40):
        script.kernel("aten.small.default", us=3, host=1)
    script.kernel("aten.middle.default", us=9, host=1)
    trace = full_trace(*script.played()).trace
    thinned = thin(trace, 110)
    stream = [i for i, track in enumerate(thinned.tracks) if track.name == "stream 0"]
    slices = thinned.slices
    at = np.flatnonzero(np.isin(slices.track, stream))
    names = [thinned.labels[label].name for label in slices.label[at]]
    assert "aten.large" in names
    assert "aten.middle" in names
    assert int(slices.n_merged[at].sum()) == 82  # nothing is lost, only shown together
    assert int(slices.busy_ns[at].sum()) == 709_000
    assert thinned.n_left_out == len(trace.slices) - len(slices)
    assert "merged with their neighbours" in thinned.left_out[0]


def test_of_equal_slices_none_is_merged_more_than_needed():
    script = Script()
    for _ in range(300):
        script.kernel(us=10, host=10)
    whole = full_trace(*script.played()).trace
    trace = thin(whole, 400)
    stream = next(i for i, track in enumerate(trace.tracks) if track.name == "stream 0")
    assert trace.slices.n_merged[trace.slices.track == stream].max() <= 4
    assert 350 <= count_events(trace) <= 410


def test_gaps_are_not_bridged_while_there_is_room():
    script = Script()
    for _ in range(100):
        script.kernel(us=1, host=0)
    script.kernel(us=1, host=300)
    for _ in range(100):
        script.kernel(us=1, host=0)
    trace = thin(full_trace(*script.played()).trace, 120)
    stream = next(i for i, track in enumerate(trace.tracks) if track.name == "stream 0")
    at = np.flatnonzero(trace.slices.track == stream)
    ends, starts = trace.slices.end_ns[at], trace.slices.start_ns[at]
    assert (starts[1:] - ends[:-1]).max() == 200_000  # the stream did nothing from 100 us to 300 us


def test_a_small_trace_is_left_alone():
    trace = full_trace(*two_layers().played()).trace
    assert thin(trace, count_events(trace)) is trace


def test_the_file_of_a_merged_slice_says_how_many_it_stands_for(tmp_path):
    script = Script()
    for _ in range(400):
        script.kernel(us=2, host=1)
    file = write_trace(tmp_path / "t.json", *script.played(), max_events=200)
    events = read_checked(tmp_path / "t.json")
    merged = [e for e in events if e["ph"] == "X" and "slices" in e["args"]]
    assert merged
    assert all(e["name"] == "aten.mm and others" for e in merged)
    assert all(e["args"]["busy_us"] <= e["dur"] + 1e-9 for e in merged)
    assert file.n_events <= 220
    assert file.n_left_out > 0


NAMES = st.one_of(
    st.sampled_from(["net", "layers.0", "layers.0.mlp", "layers.1", "layers.1.mlp", ""]), st.text(max_size=5)
).map(lambda text: text.encode("utf-8", "replace").decode())
ACTIONS = st.one_of(
    st.tuples(st.just("enter"), NAMES),
    st.tuples(st.just("leave")),
    st.tuples(
        st.just("kernel"), st.floats(0, 100), st.sampled_from([0, 0.0004, 1]), st.sampled_from([0, 0, 3]),
        st.one_of(st.none(), NAMES),
    ),
    st.tuples(st.just("collective"), st.floats(0, 50), st.booleans()),
    st.tuples(st.just("phase"), st.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])),
    st.tuples(st.just("sync")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("step")),
)  # fmt: skip


def _perform(script, actions, slower):
    calls = []
    for kind, *details in actions:
        if kind == "enter":
            script.enter(details[0])
        elif kind == "leave" and script.modules:
            script.leave()
        elif kind == "kernel":
            us, host, stream, module = details
            script.kernel(us=us * slower, host=host, stream=stream, module=module)
        elif kind == "collective":
            calls.append(script.collective(details[0], is_async=details[1]))
        elif kind == "phase":
            script.phase = details[0]
        elif kind == "sync":
            script.sync()
        elif kind == "wait" and calls:
            script.wait(calls.pop())
        elif kind == "step":
            script.step()
    return script


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, max_size=40), st.sampled_from([110, 150, 10_000]), st.booleans())
def test_whatever_a_program_does_its_trace_keeps_the_rules(tmp_path, actions, max_events, is_synchronous):
    scripts = [
        _perform(Script(rank, groups=((0, 1),), is_synchronous=is_synchronous), actions, slower)
        for rank, slower in ((0, 1.0), (1, 1.7))
    ]
    ranks = play(*scripts)
    file = write_trace(tmp_path / "t.json", *ranks[0], max_events=max_events)
    events = read_checked(tmp_path / "t.json")
    assert file.n_events == len(events)
    if not file.left_out:
        n_kernels = sum(kind == "kernel" for kind, *_ in actions)
        assert sum(e["ph"] == "X" and e["cat"] == "kernel" for e in events) == n_kernels
    write_merged_trace(tmp_path / "m.json", ranks, max_events=max_events)
    read_checked(tmp_path / "m.json")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_whatever_a_timeline_says_its_trace_keeps_the_rules(tmp_path, actions, random):
    """Times that no replay would give: overlapping, out of order, missing."""
    recording, timeline = _perform(Script(groups=((0, 1),)), actions, 1.0).played()
    n = len(timeline.start)
    start = np.array([random.choice([float("nan"), random.random() * 1e-4]) for _ in range(n)])
    end = start + np.array([random.random() * 5e-5 for _ in range(n)])
    ready = start - np.array([random.choice([0.0, 1e-5]) for _ in range(n)])
    write_trace(tmp_path / "t.json", recording, replace(timeline, start=start, end=end, ready=ready))
    read_checked(tmp_path / "t.json")
