"""trace_view.json: its contents, to the nanosecond, for programs written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.report.trace.traces import Script, play, read_checked, spans, tracks_of, two_layers
from windtunnel.events.model import Load, Op, Phase, Save
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import ROLES
from windtunnel.report.trace.chrome_file import write_merged_trace, write_trace


def _written(tmp_path, script, **options):
    path = tmp_path / "trace_view.json"
    file = write_trace(path, *script.played(), **options)
    events = read_checked(path)
    assert (file.n_events, file.n_bytes) == (len(events), path.stat().st_size)
    return events, file


def _arrows(events, category):
    """(name and start of the slice it leaves, of the slice it reaches)."""
    slices = [e for e in events if e["ph"] == "X"]

    def around(end):
        inside = [
            e for e in slices
            if (e["pid"], e["tid"]) == (end["pid"], end["tid"]) and e["ts"] <= end["ts"] <= e["ts"] + e["dur"] + 1e-6
        ]  # fmt: skip
        return max(inside, key=lambda e: e["ts"])["name"]

    ends = {(e["ph"], e["id"]): e for e in events if e["ph"] in "sf" and e["cat"] == category}
    ids = sorted(id for ph, id in ends if ph == "s")
    return [(around(ends["s", i]), ends["s", i]["ts"], around(ends["f", i]), ends["f", i]["ts"]) for i in ids]


def test_the_host_asks_and_the_stream_does(tmp_path):
    script = Script()
    script.kernel("aten.mm.default", us=10, host=1)
    script.kernel("aten.relu.default", us=2.5, host=1)
    events, file = _written(tmp_path, script)
    tracks = tracks_of(events)
    assert spans(tracks["host"]) == [("aten.mm", 0, 1), ("aten.relu", 1, 2)]
    assert spans(tracks["stream 0"]) == [("aten.mm", 1, 11), ("aten.relu", 11, 13.5)]
    assert _arrows(events, "launch") == [("aten.mm", 0, "aten.mm", 1), ("aten.relu", 1, "aten.relu", 11)]
    assert (file.n_left_out, file.left_out) == (0, ())


def test_what_costs_the_host_nothing_was_issued_with_what_came_before(tmp_path):
    script = Script()
    script.kernel("aten.linear.default", us=10, host=4)
    script.kernel("aten.add.Tensor", us=2, host=0)
    script.enter("nothing")
    script.leave()
    events, _ = _written(tmp_path, script)
    tracks = tracks_of(events)
    assert spans(tracks["host"]) == [("aten.linear", 0, 4)]
    assert [(a, b) for a, _, b, _ in _arrows(events, "launch")] == [
        ("aten.linear", "aten.linear"), ("aten.linear", "aten.add"),
    ]  # fmt: skip
    assert "modules, as issued" not in tracks


def test_a_kernel_says_where_it_comes_from_and_what_it_reads(tmp_path):
    script = Script()
    script.enter("layers.3")
    script.kernel("aten.mm.default")
    events, _ = _written(tmp_path, script, flops=[512.0])
    (kernel,) = tracks_of(events)["stream 0"]
    assert kernel["args"] == {
        "module": "layers.3", "phase": "forward", "source": "train.py:41", "inputs": ["bfloat16[4, 8]"],
        "outputs": ["bfloat16[4, 8]"], "bytes": 128, "flops": 512.0,
    }  # fmt: skip


def test_a_wait_of_the_host_is_seen(tmp_path):
    script = Script()
    script.kernel(us=10, host=1)
    script.sync()
    script.kernel(us=2, host=1)
    events, _ = _written(tmp_path, script)
    assert spans(tracks_of(events)["host"]) == [
        ("aten.mm", 0, 1),
        ("synchronize", 1, 11),
        ("aten.mm", 11, 12),
    ]


def test_on_a_cpu_the_program_does_the_work_itself(tmp_path):
    script = Script(is_synchronous=True)
    script.kernel(us=10, host=1)
    script.kernel("aten.relu.default", us=4, host=1)
    events, _ = _written(tmp_path, script)
    tracks = tracks_of(events)
    assert spans(tracks["host"]) == [("aten.mm", 0, 11), ("aten.relu", 11, 16)]
    assert tracks["host"][0]["args"]["inputs"] == ["bfloat16[4, 8]"]
    assert _arrows(events, "launch") == []


def test_modules_are_nested_in_the_time_of_host_and_stream(tmp_path):
    events, _ = _written(tmp_path, two_layers())
    tracks = tracks_of(events)
    assert spans(tracks["modules, stream 0"]) == [
        ("net", 1, 71), ("layers.0", 1, 36), ("layers.0.mlp", 1, 31), ("layers.1", 36, 71), ("layers.1.mlp", 36, 66),
        ("layers.1", 71, 136), ("layers.1.mlp", 76, 136), ("layers.0", 136, 201), ("layers.0.mlp", 141, 201),
    ]  # fmt: skip
    assert spans(tracks["modules, as issued"])[:3] == [
        ("net", 0, 4),
        ("layers.0", 0, 2),
        ("layers.0.mlp", 0, 1),
    ]
    phases = [e["args"]["phase"] for e in tracks["modules, stream 0"]]
    assert phases == ["forward"] * 5 + ["backward"] * 4


def test_a_sum_of_gradients_does_not_end_the_backward_of_a_module(tmp_path):
    script = Script()
    for name in ("layers", "layers.0", "layers.1"):
        script.enter(name)
        script.leave()
    script.phase = Phase.BACKWARD
    script.kernel("aten.a.default", us=5, host=0, module="layers.1")
    script.kernel("aten.add_.Tensor", us=1, host=0)
    script.kernel("aten.b.default", us=5, host=0, module="layers.1")
    script.kernel("aten.add_.Tensor", us=1, host=0)
    script.kernel("aten.c.default", us=5, host=0, module="layers.0")
    script.kernel("aten.add_.Tensor", us=1, host=0)
    events, _ = _written(tmp_path, script)
    assert spans(tracks_of(events)["modules, stream 0"]) == [
        ("layers", 0, 17), ("layers.1", 0, 11), ("layers.0", 12, 17),
    ]  # fmt: skip


def test_a_backward_inside_a_call_belongs_to_the_call(tmp_path):
    script = Script()
    script.enter("net")
    script.phase = Phase.BACKWARD
    script.kernel(us=5, host=0, module="inner")
    script.leave()
    script.kernel(us=5, host=0, module="inner")
    events, _ = _written(tmp_path, script)
    assert spans(tracks_of(events)["modules, stream 0"]) == [("net", 0, 5), ("inner", 5, 10)]


def test_tracks_are_numbered_from_top_to_bottom(tmp_path):
    script = two_layers()
    script.kernel(stream=7)
    events, _ = _written(tmp_path, script)
    named = [e for e in events if e["name"] == "thread_name"]
    assert [e["args"]["name"] for e in sorted(named, key=lambda e: e["tid"])] == [
        "steps and phases", "host", "modules, as issued", "stream 0", "modules, stream 0", "stream 7",
    ]  # fmt: skip


def test_steps_hold_their_phases(tmp_path):
    events, _ = _written(tmp_path, two_layers(n_steps=2))
    assert spans(tracks_of(events)["steps and phases"]) == [
        ("step 1", 1, 208), ("forward", 1, 71), ("backward", 71, 201), ("optimizer", 201, 208),
        ("step 2", 208, 415), ("forward", 208, 278), ("backward", 278, 408), ("optimizer", 408, 415),
    ]  # fmt: skip


def test_one_step_can_be_chosen(tmp_path):
    events, file = _written(tmp_path, two_layers(n_steps=3), step=2)
    assert spans(tracks_of(events)["steps and phases"])[0] == ("step 2", 208, 415)
    assert len(tracks_of(events)["stream 0"]) == 9
    assert file.n_left_out == 0  # as asked


def test_the_last_operator_of_a_call_points_at_its_backward(tmp_path):
    events, _ = _written(tmp_path, two_layers())
    assert _arrows(events, "forward to backward") == [
        ("aten.mm", 1, "aten.mm", 141), ("aten.add", 31, "aten.neg", 136),
        ("aten.mm", 36, "aten.mm", 76), ("aten.add", 66, "aten.neg", 71),
    ]  # fmt: skip


def test_micro_batches_meet_their_backward_in_order(tmp_path):
    script = Script()
    for name in ("aten.a.default", "aten.b.default"):
        script.enter("net")
        script.kernel(name, host=0)
        script.leave()
    script.phase = Phase.BACKWARD
    for name in ("aten.a_backward.default", "aten.b_backward.default"):
        script.kernel(name, host=0, module="net")
        script.kernel("aten.add.Tensor", host=0, module="loss")
    events, _ = _written(tmp_path, script)
    pairs = [(a, b) for a, _, b, _ in _arrows(events, "forward to backward")]
    assert pairs == [("aten.a", "aten.a_backward"), ("aten.b", "aten.b_backward")]


def test_a_module_that_comes_up_twice_in_each_backward_has_one_arrow_for_each_call(tmp_path):
    script = Script()
    for name in ("aten.a.default", "aten.b.default"):
        script.enter("net")
        script.kernel(name, host=0)
        script.leave()
    script.phase = Phase.BACKWARD
    for name in ("aten.a1", "aten.a2", "aten.b1", "aten.b2"):
        script.kernel(f"{name}.default", host=0, module="net")
        script.kernel("aten.mm.default", host=0, module="other")
    events, _ = _written(tmp_path, script)
    pairs = [(a, b) for a, _, b, _ in _arrows(events, "forward to backward")]
    assert pairs == [("aten.a", "aten.a1"), ("aten.b", "aten.b1")]


def test_what_autograd_saved_and_loaded_ties_an_operator_to_its_backward(tmp_path):
    script = Script()
    script.kernel("aten.exp.default", host=0)
    script.events.append(Save(7, 1, is_result=True))
    script.events.append(Save(8, 1))
    script.kernel("aten.mm.default", host=0)
    script.phase = Phase.BACKWARD
    for handle, name in ((8, "aten.mm_backward.default"), (7, "aten.exp_backward.default")):
        script.events.append(Load(handle, 1))
        script.kernel(name, host=0)
    events, _ = _written(tmp_path, script)
    pairs = [(a, b) for a, _, b, _ in _arrows(events, "forward to backward")]
    assert pairs == [("aten.exp", "aten.exp_backward"), ("aten.mm", "aten.mm_backward")]


def test_a_forward_that_is_computed_again_is_distinguished(tmp_path):
    script = Script()
    script.enter("net")
    script.kernel("aten.first.default", host=0)
    script.leave()
    script.phase = Phase.BACKWARD
    script.kernel("aten.loss.default", host=0, module="loss")
    begin = len(script.events)
    script.phase = Phase.FORWARD
    script.enter("net")
    script.kernel("aten.again.default", host=0)
    script.leave()
    script.phase = Phase.BACKWARD
    script.kernel("aten.grad.default", host=0, module="net")
    recording, timeline = script.played()
    extra = recording.columns["extra"].copy()
    extra[[begin, begin + 2]] = 1
    recording = replace(recording, columns=recording.columns | {"extra": extra})
    write_trace(tmp_path / "t.json", recording, timeline)
    events = read_checked(tmp_path / "t.json")
    assert [name for name, _, _ in spans(tracks_of(events)["steps and phases"])] == [
        "step 1", "forward", "backward", "recompute", "backward",
    ]  # fmt: skip
    assert [(a, b) for a, _, b, _ in _arrows(events, "forward to backward")] == [("aten.again", "aten.grad")]


def test_time_spent_waiting_for_peers_is_a_slice_of_its_own(tmp_path):
    early, late = (Script(rank, groups=((0, 1),), group_names=("tp",)) for rank in (0, 1))
    for script, us in ((early, 10), (late, 50)):
        script.kernel(us=us, host=1)
        script.collective(us=20)
        script.kernel("aten.relu.default", us=3, host=1)
    ranks = play(early, late)
    write_trace(tmp_path / "t.json", *ranks[0])
    tracks = tracks_of(read_checked(tmp_path / "t.json"))
    assert spans(tracks["tp (2 ranks)"]) == [
        ("waiting for peers: all_reduce", 11, 51),
        ("all_reduce", 51, 71),
    ]
    args = tracks["tp (2 ranks)"][1]["args"]
    assert (args["kind"], args["group"], args["ranks"], args["bytes"]) == ("all_reduce", "tp", "0-1", 64)
    assert spans(tracks["stream 0"]) == [
        ("aten.mm", 1, 11), ("waiting for all_reduce", 11, 71), ("aten.relu", 71, 74),
    ]  # fmt: skip


def test_waiting_for_peers_begins_when_the_lane_is_free(tmp_path):
    script = Script(groups=((0, 1),))
    script.collective(is_async=True)
    script.collective(is_async=True)
    recording, timeline = script.played()
    times = {"start": [10, 50], "end": [30, 60], "ready": [5, 8]}
    timeline = replace(timeline, **{name: np.array(us) * 1e-6 for name, us in times.items()})
    write_trace(tmp_path / "t.json", recording, timeline)
    tracks = tracks_of(read_checked(tmp_path / "t.json"))
    assert spans(tracks["group 0 (2 ranks)"]) == [
        ("waiting for peers: all_reduce", 5, 10), ("all_reduce", 10, 30),
        ("waiting for peers: all_reduce", 30, 50), ("all_reduce", 50, 60),
    ]  # fmt: skip


def test_in_a_merged_trace_the_last_to_come_points_at_those_who_waited(tmp_path):
    scripts = [Script(rank, groups=((0, 1, 2),)) for rank in range(3)]
    for script, us in zip(scripts, (10, 50, 30), strict=True):
        script.kernel(us=us, host=1)
        script.collective(us=20)
    file = write_merged_trace(tmp_path / "t.json", play(*scripts))
    events = read_checked(tmp_path / "t.json")
    assert file.n_events == len(events)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1", "rank 2"]
    peers = [e for e in events if e.get("cat") == "peers"]
    assert sorted((e["ph"], e["pid"] - 100_000, e["ts"]) for e in peers) == [
        ("f", 0, 51), ("f", 2, 51), ("s", 1, 51), ("s", 1, 51),
    ]  # fmt: skip


def test_a_send_points_at_its_receive(tmp_path):
    first, second = (Script(rank, groups=((0, 1),)) for rank in (0, 1))
    for us in (10, 20):
        first.kernel(us=us, host=1)
        first.send(1)
        second.receive(0)
        second.kernel(us=4, host=1)
    write_merged_trace(tmp_path / "t.json", play(first, second))
    events = read_checked(tmp_path / "t.json")
    arrows = _arrows(events, "peers")
    assert [(a, b) for a, _, b, _ in arrows] == [("send", "recv")] * 2
    assert {e["pid"] for e in events if e["ph"] == "s" and e["cat"] == "peers"} == {100_000}


def test_memory_is_a_counter_in_program_time(tmp_path):
    script = Script()
    for _ in range(3):
        script.kernel(us=10, host=2)
    memory = Timeline(
        np.array([0, 1, 1, 2, 99]), np.ones(5, np.int64), np.array([1, 5, 3, 4, 0]), np.array([8, 8, 8, 8, 8]),
        np.zeros((5, len(ROLES)), np.int64),
    )  # fmt: skip
    events, _ = _written(tmp_path, script, memory=memory)
    points = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == "allocated"]
    assert points == [(0, 1), (2, 5), (2.001, 3), (4, 4), (6, 0)]
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "reserved"] == [8] * 5


def test_of_one_step_the_counter_begins_with_what_was_held_before(tmp_path):
    script = two_layers(n_steps=2)
    first = next(i for i, event in enumerate(script.events) if i > 5 and not isinstance(event, Op) and i > 20)
    memory = Timeline(
        np.array([0, 3, first + 4]),
        np.ones(3, np.int64),
        np.array([1, 7, 9]),
        np.array([8, 8, 9]),
        np.zeros((3, len(ROLES))),
    )
    events, _ = _written(tmp_path, script, memory=memory, step=2)
    points = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == "allocated"]
    assert [value for _, value in points] == [7, 9]
    assert points[0][0] == 9


def test_transfers_that_happen_at_once_get_tracks_of_their_own(tmp_path):
    script = Script(groups=((0, 1),))
    script.send(1, us=50)
    script.send(1, us=50)
    recording, timeline = script.played()
    timeline = replace(
        timeline, start=np.array([0.0, 10e-6]), end=np.array([50e-6, 60e-6]), ready=np.zeros(2)
    )
    write_trace(tmp_path / "t.json", recording, timeline)
    tracks = tracks_of(read_checked(tmp_path / "t.json"))
    lane = timeline.lanes[timeline.lane[0]].name
    assert spans(tracks[lane]) == [("send", 0, 50)]
    assert spans(tracks[f"{lane} (2)"]) == [("waiting for peers: send", 0, 10), ("send", 10, 60)]


def test_modules_stay_apart_where_a_lane_does_two_things_at_once(tmp_path):
    script = Script()
    for name in ("a", "b"):
        script.enter(name)
        script.kernel(host=0)
        script.leave()
    recording, timeline = script.played()
    timeline = replace(timeline, start=np.array([0.0, 10e-6]), end=np.array([50e-6, 60e-6]))
    write_trace(tmp_path / "t.json", recording, timeline)
    tracks = tracks_of(read_checked(tmp_path / "t.json"))
    assert spans(tracks["modules, stream 0"]) == [("a", 0, 10), ("b", 10, 60)]


def test_a_nanosecond_of_rounding_makes_no_second_track(tmp_path):
    script = Script()
    script.kernel(host=0)
    script.kernel(host=0)
    recording, timeline = script.played()
    timeline = replace(timeline, start=np.array([0.0, 10e-6]), end=np.array([10.001e-6, 20e-6]))
    write_trace(tmp_path / "t.json", recording, timeline)
    assert spans(tracks_of(read_checked(tmp_path / "t.json"))["stream 0"]) == [
        ("aten.mm", 0, 10),
        ("aten.mm", 10, 20),
    ]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b\\', "é\u2028\x00", "\ud800", "x" * 5000])
def test_names_may_contain_anything(tmp_path, name):
    script = Script(groups=((0, 1),), group_names=(name,))
    script.enter(name.encode("utf-8", "replace").decode())
    script.kernel(f"aten.{name}".encode("utf-8", "replace").decode())
    script.collective()
    events, _ = _written(tmp_path, script)
    assert tracks_of(events)["stream 0"]


def test_a_program_that_did_nothing_is_an_empty_trace(tmp_path):
    events, file = _written(tmp_path, Script())
    assert [e for e in events if e["ph"] != "M"] == []
    assert file.n_left_out == 0
    write_merged_trace(tmp_path / "none.json", [])
    assert (tmp_path / "none.json").read_text() == "[]\n"
