"""What the timeline of a whole cluster costs, once its ranks are recorded.

a 70 B model, TP 8 x PP 8, on 1,024 and 16,384 devices ──> recordings ──> costs, programs ──> one timeline: seconds, memory

The recorded steps are simulated one, two and all at a time: the cost is proportional to the events of the simulated
ranks. First with the classes that a run finds, then with every recorded rank as a class of its own, which is far more
than this job needs.
`python -m benchmarks.timeline_scale FOLDER CARDS` times an earlier run instead of making one.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from windtunnel.cluster.program import StepProgram, Work
from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.cluster.rank_communication import communication_of
from windtunnel.cluster.ranks_to_simulate import RankClasses
from windtunnel.cluster.step_time import time_of
from windtunnel.cluster.timeline import replay_world
from windtunnel.cluster.timeline_ranks import representatives_of
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.events.model import Recording
from windtunnel.session.operator_times import call_seconds
from windtunnel.timing.network.links import network_of
from windtunnel.timing.roofline.model import Roofline
from windtunnel.timing.row_costs import row_costs

__all__ = ["main"]

_JOB = Path(__file__).parent.parent / "examples" / "megatron" / "llama_70b.sh"
_DEVICE = "h100-80gb"
_CARDS_OF_NODE = 8


def main() -> None:
    if len(sys.argv) > 2:
        _print_world(Path(sys.argv[1]), int(sys.argv[2]))
        return
    for n_cards in (1024, 16384):
        with tempfile.TemporaryDirectory() as folder:
            _record(Path(folder) / "out", n_cards)
            _print_world(Path(folder) / "out", n_cards)


def _record(out: Path, n_cards: int) -> None:
    launch = f"{sys.executable} -m windtunnel.commands.main run --device {_DEVICE} --world-size {n_cards} --out {out}"
    env = {**os.environ, "CARDS": str(n_cards), "LAUNCH": launch, "ITERS": "4"}
    done = subprocess.run(["sh", str(_JOB)], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"the job on {n_cards} devices ended with exit code {done.returncode}:\n{done.stdout[-2000:]}"
        )


def _print_world(out: Path, n_cards: int) -> None:
    ranks = json.loads((out / "report.json").read_text(encoding="utf-8"))["ranks"]
    recorded = sorted(each["rank"] for each in ranks if each["same_as"] is None)
    started, cpu = time.monotonic(), time.process_time()
    classes, programs = RankClasses(n_cards), {}
    for rank in recorded:
        recording = read_recording(out / f"rank{rank}" / "recording.arrows")
        classes.learn(communication_of(recording, rank, n_cards), rank)
        programs[rank] = _program(recording, rank)
    print(
        f"\n{n_cards:,} cards, {len(programs)} ranks recorded: reading, comparing and costs"
        f" {time.monotonic() - started:.1f} s ({time.process_time() - cpu:.1f} s CPU)\n"
    )
    print(
        f"{'kinds':>5} {'steps':>5} {'ranks played':>13} {'their events':>13} {'wall s':>7} {'CPU s':>6} {'us an event':>12}"
        f" {'peak GiB':>9} {'step s':>7} {'unmet':>6}"
    )
    each_its_own = {e["rank"]: e["rank"] if e["same_as"] is None else e["same_as"] for e in ranks}
    n_steps = min(int((program.work == Work.STEP).sum()) for program in programs.values())
    for shown in (classes.representatives(), each_its_own):
        for n in sorted({1, 2, n_steps} & set(range(1, n_steps + 1))):
            cut = {rank: _first_steps(programs[rank], n) for rank in sorted(set(shown.values()))}
            _print_replay(n, cut, shown, n_cards)


def _print_replay(n: int, programs: dict[int, StepProgram], shown: dict[int, int], n_cards: int) -> None:
    gc.collect()
    n_events = sum(len(player.program) for player in representatives_of(programs, shown, n_cards).players)
    started, cpu = time.monotonic(), time.process_time()
    world = replay_world(programs, shown, n_cards)
    wall, cpu = time.monotonic() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(programs):>5} {n:>5} {len(world.ranks):>13,} {n_events:>13,} {wall:>7.1f} {cpu:>6.1f}"
        f" {1e6 * cpu / n_events:>12.2f} {peak:>9.2f} {time_of(world).step_seconds:>7.3f} {world.n_unmet:>6,}",
        flush=True,
    )


def _program(recording: Recording, rank: int) -> StepProgram:
    device = find_device(_DEVICE)
    costs = row_costs(recording, Roofline(device))
    calls = call_seconds(recording, network_of(device, _CARDS_OF_NODE))
    return program_of(recording, rank, Durations(costs.seconds, costs.host_seconds, calls))


def _first_steps(program: StepProgram, n: int) -> StepProgram:
    end = int(np.flatnonzero(program.work == Work.STEP)[n - 1]) + 1
    arrays = {f.name: getattr(program, f.name) for f in fields(program)}
    return replace(program, **{k: a[:end] for k, a in arrays.items() if isinstance(a, np.ndarray)})


if __name__ == "__main__":
    main()
