"""Pipelines with equal stages take what their closed forms say.

p stages, m micro-batches, v chunks of the model on each rank; a chunk takes f forwards, b backwards for its input and w
for its weights. Work is m v (f + b + w); the rest is bubble: (p - 1)(f + b + w) for GPipe and 1F1B, with v chunks a
v-th of it (Narayanan et al., 2021), and (p - 1)(f + b - w) if weights are left for later (Qi et al., 2023, ZB-H1).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cluster.programs import kernel, program, receive, send, step
from tests.commands.cli import windtunnel
from windtunnel.cluster.program import StepProgram
from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.cluster.timeline import WorldTimeline, replay_world
from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind

F, B, I, W = "F", "B", "I", "W"  # forward; backward whole, for the input, for the weights  # noqa: E741
Action = tuple[str, int, int]  # what, chunk of the rank, micro-batch
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pipeline_programs" / "torch_schedule.py"


def gpipe(rank: int, p: int, m: int) -> list[Action]:
    return [(F, 0, i) for i in range(m)] + [(B, 0, i) for i in range(m)]


def one_f_one_b(rank: int, p: int, m: int) -> list[Action]:
    return interleaved(rank, p, m, v=1)


def interleaved(rank: int, p: int, m: int, v: int) -> list[Action]:
    """Micro-batches in blocks of p, a block through one chunk after the other."""
    n = m * v
    warm_up = min(n, (p - rank - 1) * (1 if v == 1 else 2) + (v - 1) * p)
    forward = [(F, i // p % v, i // (p * v) * p + i % p) for i in range(n)]
    backward = [(B, v - 1 - chunk, micro) for _, chunk, micro in forward]
    steady = [each for pair in zip(forward[warm_up:], backward, strict=False) for each in pair]
    return forward[:warm_up] + steady + backward[n - warm_up :]


def zero_bubble(rank: int, p: int, m: int) -> list[Action]:
    """1F1B, whose stage r leaves the weights of r micro-batches for later."""
    found: list[Action] = []
    for what, _, i in one_f_one_b(rank, p, m):
        if what == F:
            found.append((F, 0, i))
        else:
            found += [(I, 0, i)] + ([(W, 0, i - rank)] if i >= rank else [])
    return found + [(W, 0, i) for i in range(m - rank, m)]


def stage_program(rank: int, p: int, v: int, actions: list[Action], seconds: dict[str, float]) -> StepProgram:
    """Data are received right before they are used, and sent right after they are there."""
    last = p * v - 1
    steps = []
    for what, chunk, _ in actions:
        stage = chunk * p + rank
        before, after = (rank - 1) % p, (rank + 1) % p
        is_back = what in (B, I)
        comes = (before if stage else None) if what == F else (after if is_back and stage < last else None)
        goes = (after if stage < last else None) if what == F else (before if is_back and stage else None)
        # forwards and backwards are groups of their own, so that they need not take turns
        steps += [receive(comes, int(is_back))] if comes is not None else []
        steps.append(kernel(seconds[what]))
        steps += [send(goes, int(is_back))] if goes is not None else []
    return program(rank, [*steps, step()], [tuple(range(p)), tuple(range(p))])


def play(order, p: int, v: int, f: float, b: float, w: float) -> WorldTimeline:
    seconds = {F: f, B: b + w, I: b, W: w}
    programs = {rank: stage_program(rank, p, v, order(rank), seconds) for rank in range(p)}
    return replay_world(programs, {rank: rank for rank in programs}, p)


def step_seconds(world: WorldTimeline) -> float:
    assert world.n_unmet == world.n_alone == 0
    return max(float(rank.step_ends[-1]) for rank in world.ranks.values())


SIZES = [(2, 4), (4, 8), (4, 16), (8, 32)]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
def test_gpipe_and_1f1b(order, p, m):
    f, b, w = 1.0, 1.5, 0.75
    world = play(lambda rank: order(rank, p, m), p, 1, f, b, w)
    assert step_seconds(world) == (m + p - 1) * (f + b + w)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved_1f1b(p, m, v):
    f, b, w = 1.0, 1.5, 0.75
    world = play(lambda rank: interleaved(rank, p, m, v), p, v, f, b, w)
    assert step_seconds(world) == m * v * (f + b + w) + (p - 1) * (f + b + w)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(("f", "b", "w"), [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75)])
def test_zero_bubble(p, m, f, b, w):
    world = play(lambda rank: zero_bubble(rank, p, m), p, 1, f, b, w)
    assert step_seconds(world) == m * (f + b + w) + (p - 1) * (f + b - w)


def test_a_stage_of_1f1b_stands_still_as_long_as_the_bubble():
    """The last stage waits for its first input, and between no two micro-batches."""
    world = play(lambda rank: one_f_one_b(rank, 4, 8), 4, 1, 1.0, 1.0, 1.0)
    last = world.ranks[3].stalls
    assert list(zip(last.start.tolist(), last.end.tolist(), strict=True)) == [(0.0, 3.0)]
    first = world.ranks[0].stalls
    assert (first.end - first.start).sum() == 9.0


def test_a_schedule_of_torch_as_it_runs(tmp_path):
    """torch's own zero-bubble schedule, recorded: matrix products take a second, everything else nothing."""
    p, v, m = 2, 2, 4
    done = windtunnel(
        "run", "--device", "a100-80gb", "--world-size", p, "--ranks", "all", "--out", tmp_path / "out", SCRIPT,
        "--schedule", "InterleavedZeroBubble", "--micro-batches", m, "--chunks", v, "--steps", 2, "--clip", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    programs = {}
    for rank in range(p):
        recording = read_recording(tmp_path / "out" / f"rank{rank}" / "recording.arrows")
        columns = recording.columns
        product = [i for i, s in enumerate(recording.signatures) if s.name.startswith("aten.mm")]
        is_product = (columns["kind"] == Kind.OP) & np.isin(columns["value"], product)
        durations = Durations(is_product.astype(float), np.zeros(len(recording)), {})
        programs[rank] = program_of(recording, rank, durations)
    world = replay_world(programs, {rank: rank for rank in range(p)}, p)
    assert world.n_unmet == world.n_alone == 0
    # The first step tells shapes as well; f = b = w = 1.
    steps = [float(np.diff(rank.step_ends)[0]) for rank in world.ranks.values()]
    assert steps == [m * v * 3 + (p - 1)] * p
