"""Checkpointed blocks as predicted from a dry run, against torch.utils.checkpoint in real training on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.simulated import run_plainly, simulate
from tests.remat.memory_events import watched
from tests.remat.models import make
from windtunnel.devices import find_device
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.blocks import find_blocks
from windtunnel.remat.advisor.checkpointing import CheckpointPlan
from windtunnel.remat.simulated.program import read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts

GENERATOR_BYTES = 5056  # of the host's generator, whose state checkpoint keeps for each block


def _train(name, paths=()):
    task = make(name)
    for path in paths:
        block = task.model.get_submodule(path)
        block.forward = _checkpointed(block.forward)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    for step in range(2):
        task.loss(task.model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def _checkpointed(forward):
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


@pytest.mark.parametrize("name", ["gpt", "qwen2", "resnet50"])
def test_the_peak_is_the_profilers(name):
    def dry():
        _train(name)

    program = read_program(simulate(dry, "cpu", is_recording_saves=True).recording)
    blocks = find_blocks(program)
    paths = list(dict.fromkeys(block.path for block in blocks))
    assert len(paths) >= 4
    costs = ProgramCosts(program, find_device("cpu"))

    def real(wrapped):
        with watched() as usage:
            _train(name, wrapped)
        return usage.peak

    plain, wrapped = run_plainly(lambda: real([])), run_plainly(lambda: real(paths))
    predicted = play(program, costs, CheckpointPlan(program, costs, blocks)).peak_bytes
    assert play(program, costs).peak_bytes == pytest.approx(plain, rel=1e-3)
    assert predicted == pytest.approx(wrapped, rel=2e-3, abs=2 * GENERATOR_BYTES * len(paths))
    assert predicted < 0.8 * play(program, costs).peak_bytes
