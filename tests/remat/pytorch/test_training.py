"""Whole models, ten steps: the same bits under every threshold, and the peak where it was asked for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.remat.memory_events import largest_operator, watched
from tests.remat.models import MODELS, make, state_of
from tests.remat.pytorch.training import METER, bits, live_bytes, runtime
from windtunnel.remat.evict_and_recompute import BY_ADDRESS
from windtunnel.remat.policy import POLICIES
from windtunnel.remat.pytorch.recipe import LiveValue, generator_state

STEPS = 10
WATCHED = (0, 4)  # steps in which memory is measured: with sizes still unknown, and with all of them known
SHARES = (0.75, 0.5, 0.3)


@dataclass(frozen=True)
class Run:
    bits: list[str]  # losses, weights, buffers, the last gradients, the generator
    static: int  # bytes between steps, over those in use before: weights and optimizer state
    peaks: list[int]  # of the steps watched

    @property
    def peak(self) -> int:
        return self.peaks[-1]


def _train(name: str, steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> Run:
    before = live_bytes()
    task = make(name)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3)
    losses, peaks, static = [], [], 0
    for step in range(steps):
        optimizer.zero_grad()
        static = METER.live_bytes() - before
        with watched() if step in WATCHED else nullcontext() as usage:
            loss = task.loss(task.model, step)
            loss.backward()
            optimizer.step()
        if usage is not None:
            peaks.append(static + usage.peak)
        losses += bits([loss])
        del loss
        after_step()
    state = [tensor for _, tensor in state_of(task.model)]
    return Run(losses + bits([*state, torch.default_generator.get_state()]), static, peaks)


_plain = cache(_train)


@cache
def _largest(name: str) -> int:
    task = make(name)
    return largest_operator(lambda: task.loss(task.model, 0).backward())[0]


def _threshold(plain: Run, share: float) -> int:
    return live_bytes() + int(plain.static + share * (plain.peak - plain.static))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_within_the_memory_asked_for(name):
    plain, largest = _plain(name), _largest(name)
    for share in SHARES:
        before, threshold = live_bytes(), _threshold(plain, share)
        with runtime(threshold) as live:
            found = _train(name)
        assert found.bits == plain.bits, f"{name} at {share:.0%}"
        assert live.engine.statistics.rematerialisations > 0
        for peak in found.peaks:
            assert before + peak <= threshold + largest, f"{name} at {share:.0%}"


@pytest.mark.parametrize("policy", [*POLICIES, BY_ADDRESS])
@pytest.mark.parametrize("is_sampling", [False, True])
def test_every_policy_gives_the_same_bits(policy, is_sampling):
    plain = _plain("mlp", 3)
    with runtime(_threshold(_plain("mlp"), 0.5), policy=policy, is_sampling=is_sampling) as live:
        assert _train("mlp", 3).bits == plain.bits
    assert live.engine.statistics.rematerialisations > 0


# -- memory when nothing is evicted, and afterwards ---------------------------------------------------------------


@pytest.mark.parametrize(("name", "n_seeded"), [("resnet50", 0), ("mlp", 8)])
def test_no_more_memory_than_without_it(name, n_seeded):
    """To the byte; but the host generator's state is kept for every operator that draws from it."""
    plain = _plain(name)
    with runtime(_threshold(plain, 1.2)) as live:
        found = _train(name, 5)
    assert live.engine.statistics.evictions == 0
    assert found.peak == plain.peak + n_seeded * generator_state(torch.device("cpu")).nbytes
    assert found.static == plain.static


def test_nothing_is_left_after_a_step():
    plain = _plain("gpt")
    levels = []

    def look():
        assert [each for each in gc.get_objects() if isinstance(each, LiveValue)] == []
        assert live.engine.candidates() == []
        levels.append(live.meter.live_bytes())

    with runtime(_threshold(plain, 0.4)) as live:
        _train("gpt", 6, after_step=look)
    assert live.engine.statistics.evictions > 0
    assert len(set(levels)) == 1


# -- thresholds that cannot be held -------------------------------------------------------------------------------


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.n_operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n_operators += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gpt", "resnet50", "cnn"])
def test_an_unreachable_threshold_does_not_thrash(name):
    task = make(name)
    with _Counter() as counter:
        task.loss(task.model, 0).backward()
    del task
    plain = _plain(name, 6)
    counts = [0]
    with runtime(live_bytes() + plain.static // 2) as live:
        found = _train(name, 6, lambda: counts.append(live.engine.statistics.rematerialisations))
    assert found.bits == plain.bits
    assert max(b - a for a, b in pairwise(counts)) <= 2 * counter.n_operators
    statistics = live.engine.statistics
    assert statistics.least_reached_bytes > live.settings.threshold
    assert statistics.peak_live_bytes >= statistics.least_reached_bytes
