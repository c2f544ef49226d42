"""Small programs for traces, written call by call; and a checker of trace files that forgives nothing."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cluster.program import RankTimeline, StepProgram, Work
from windtunnel.cluster.timeline import replay_world
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    NO_NAME,
    Collective,
    Event,
    Frame,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Recording,
    Signature,
    Step,
    Sync,
    TensorSpec,
    Wait,
)
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import ROLES

US = 1e-6
BAD = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"  # as a module may be called
FRAMES = (Frame("/home/me/train.py", 41, "main"),)


@dataclass
class Script:
    """A rank's program and its recording, grown together."""

    rank: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    group_names: tuple[str, ...] = ()
    is_synchronous: bool = False
    events: list[Event] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    modules: list[int] = field(default_factory=list)

    def enter(self, name: str) -> None:
        self.modules.append(self._name(name))
        self.events.append(ModuleEnter(self.modules[-1], self.phase))

    def leave(self) -> None:
        self.events.append(ModuleExit(self.modules.pop(), self.phase))

    def kernel(
        self,
        name: str = "aten.mm.default",
        us: float = 10,
        host: float = 1,
        stream: int = 0,
        module: str | None = None,
    ) -> None:
        at = self._name(module) if module is not None else (self.modules or [NO_NAME])[-1]
        self._ask(Work.KERNEL, us, host, stream)
        self.events.append(
            Op(len(self.events), self._signature(name), (), (), at, self.phase, stream, 0, frame=0)
        )

    def collective(
        self, us: float = 20, group: int = 0, is_async: bool = False, name: str = "c10d.all_reduce"
    ) -> int:
        id = self._ask(Work.COLLECTIVE, us, 1, 0, group=group, is_async=is_async)
        self._call(name, id, group)
        return id

    def send(self, peer: int, us: float = 5, group: int = 0) -> None:
        self._call("c10d.send", self._ask(Work.SEND, us, 1, 0, group=group, peer=peer, is_async=True), group)

    def receive(self, peer: int, us: float = 5, group: int = 0) -> None:
        self._call("c10d.recv", self._ask(Work.RECEIVE, us, 1, 0, group=group, peer=peer), group)

    def wait(self, collective: int) -> None:
        self._ask(Work.WAIT, 0, 0, 0, subject=collective)
        self.events.append(Wait(collective))

    def sync(self) -> None:
        self._ask(Work.SYNC, 0, 0, -1)
        self.events.append(Sync())

    def step(self) -> None:
        number = 1 + sum(isinstance(event, Step) for event in self.events)
        self._ask(Work.STEP, 0, 0, 0, subject=number)
        self.events.append(Step(number))
        self.phase = Phase.FORWARD

    def recording(self) -> Recording:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r.arrows"
            record_events(path, self.events, self.names, self.signatures, FRAMES)
            return read_recording(path)

    def program(self) -> StepProgram:
        types = {
            "row": np.int64, "work": np.uint8, "stream": np.int32, "subject": np.int64, "seconds": float,
            "host_seconds": float, "group": np.int32, "peer": np.int32, "sequence": np.int64, "is_async": bool,
        }  # fmt: skip
        columns = {name: np.array([row[name] for row in self.rows], kind) for name, kind in types.items()}
        names = self.group_names or tuple(f"group {i}" for i in range(len(self.groups)))
        return StepProgram(
            rank=self.rank,
            **columns,
            groups=self.groups,
            group_names=names,
            is_synchronous=self.is_synchronous,
        )

    def played(self) -> tuple[Recording, RankTimeline]:
        return play(self)[0]

    def _ask(self, work: Work, us: float, host: float, stream: int, **more: Any) -> int:
        row = {
            "row": len(self.events), "work": work, "stream": stream, "subject": len(self.events), "seconds": us * US,
            "host_seconds": host * US, "group": -1, "peer": -1, "sequence": 0, "is_async": False,
        } | more  # fmt: skip
        if row["group"] >= 0:
            row["sequence"] = sum(
                all(row[name] == other[name] for name in ("work", "group", "peer")) for other in self.rows
            )
        self.rows.append(row)
        return row["subject"]

    def _call(self, name: str, id: int, group: int) -> None:
        self.events.append(
            Collective(
                id, self._signature(name), group, module=(self.modules or [NO_NAME])[-1], phase=self.phase
            )
        )

    def _name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def _signature(self, name: str) -> int:
        found = [i for i, signature in enumerate(self.signatures) if signature.name == name]
        if not found:
            spec = TensorSpec((4, 8), (8, 1), "bfloat16")
            self.signatures.append(Signature(name, (spec,), (spec,), ""))
        return found[0] if found else len(self.signatures) - 1


def play(*scripts: Script) -> list[tuple[Recording, RankTimeline]]:
    """All of them on one clock."""
    programs = {script.rank: script.program() for script in scripts}
    world = replay_world(programs, {rank: rank for rank in programs}, max(programs) + 1)
    return [(script.recording(), world.ranks[script.rank]) for script in scripts]


def two_layers(n_steps: int = 1, rank: int = 0) -> Script:
    """Forward and backward of two layers and a norm, and an optimizer, `n_steps` times."""
    script = Script(rank)
    for _ in range(n_steps):
        script.enter("net")
        for layer in ("layers.0", "layers.1"):
            script.enter(layer)
            script.enter(f"{layer}.mlp")
            script.kernel("aten.mm.default", 30)
            script.leave()
            script.kernel("aten.add.Tensor", 5)
            script.leave()
        script.leave()
        script.phase = Phase.BACKWARD
        for layer in ("layers.1", "layers.0"):
            script.kernel("aten.neg.default", 5, module=layer)
            script.kernel("aten.mm.default", 60, module=f"{layer}.mlp")
        script.phase = Phase.OPTIMIZER
        script.kernel("aten.add_.Tensor", 7)
        script.step()
    return script


def two_ranks() -> list[tuple[Recording, RankTimeline]]:
    """Three steps of data parallel training, the second rank slower, with a module that has a bad name."""
    scripts = []
    for rank, us in ((0, 40), (1, 90)):
        script = Script(rank, groups=((0, 1),), group_names=("dp <b>",))
        for _ in range(3):
            script.enter("net")
            script.enter(BAD)
            script.kernel("aten.mm.default", us=us, host=4)
            script.leave()
            script.kernel("aten.layer_norm.default", us=15, host=4)
            script.leave()
            script.phase = Phase.BACKWARD
            script.kernel("aten.mm_backward.default", us=2 * us, host=4, module=BAD)
            script.collective(us=30)
            script.phase = Phase.OPTIMIZER
            script.kernel("aten.adam.default", us=12, host=4)
            script.step()
        scripts.append(script)
    return play(*scripts)


def some_memory(n_rows: int) -> Timeline:
    """Bytes over a program of so many rows."""
    live = np.array([1, 4, 2, 6, 3]) << 20
    return Timeline(
        np.linspace(0, n_rows, 5).astype(int), np.ones(5), live, live + (1 << 20), np.zeros((5, len(ROLES)))
    )


def read_checked(path: Path) -> list[dict[str, Any]]:
    """The events of a file, after every rule was checked."""
    events = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    assert isinstance(events, list)
    slices: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    named: set[tuple[str, int, int]] = set()
    for event in events:
        assert event["ph"] in {"X", "M", "C", "s", "f"}
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            start = ns(event["ts"])
            slices[event["pid"], event["tid"]].append((start, start + ns(event["dur"]), event["name"]))
        elif event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
    for (pid, tid), track in slices.items():
        assert ("process_name", pid, 0) in named
        assert {("thread_name", pid, tid), ("thread_sort_index", pid, tid)} <= named
        assert track == sorted(track, key=lambda each: each[0]), "in order of time"
        _check_nesting(track)
    _check_arrows(events, slices)
    _check_counters(events)
    return events


def tracks_of(events: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Slices by the name of their track (and rank, where there are several)."""
    is_name = [event for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    ranks = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    found = {}
    for event in is_name:
        place = (event["pid"], event["tid"])
        name = event["args"]["name"] if len(ranks) == 1 else f"{ranks[event['pid']]}: {event['args']['name']}"
        found[name] = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == place]
    return found


def spans(track: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(name, start, end) in microseconds."""
    return [(e["name"], e["ts"], round(e["ts"] + e["dur"], 3)) for e in track]


def ns(us: float) -> int:
    return round(us * 1000)


def _check_nesting(track: list[tuple[int, int, str]]) -> None:
    around: list[int] = []  # ends; what holds others stands before them in the file
    for start, end, name in track:
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], f"{name} at {start} ends after what it lies in"
        around.append(end)


def _check_arrows(
    events: list[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[int, int, str]]]
) -> None:
    ends: dict[tuple[str, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            pair = ends[event["cat"], event["id"]]
            assert event["ph"] not in pair, "one start and one end"
            pair[event["ph"]] = event
            at = ns(event["ts"])
            track = slices[event["pid"], event["tid"]]
            assert any(start <= at <= end for start, end, _ in track), "an arrow ends in a slice"
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        assert pair["s"]["ts"] <= pair["f"]["ts"]
        assert pair["s"]["name"] == pair["f"]["name"]
        assert pair["f"]["bp"] == "e"


def _check_counters(events: list[dict[str, Any]]) -> None:
    last: dict[tuple[int, str], float] = {}
    for event in events:
        if event["ph"] == "C":
            key = event["pid"], event["name"]
            assert event["ts"] > last.get(key, -1.0)
            assert all(isinstance(value, int) for value in event["args"].values())
            last[key] = event["ts"]


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")
