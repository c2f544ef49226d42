"""Memory by phase of a step: what each phase needs, and what it leaves to the next."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import windtunnel
from tests.capture.pytorch.simulated import simulate
from windtunnel.events.model import Kind

MIB = 1 << 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 1024, bias=False, device="cuda")  # 4 MiB

    def forward(self, x):
        return self.layer(x)

    @torch.no_grad()
    def generate(self, x, n):
        for _ in range(n):
            x = self(x)
        return x


def _rlhf():
    policy, reference = Policy(), Policy().requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.rand(2048, 1024, device="cuda")  # 8 MiB
        x = policy.generate(x, 3)
        with torch.no_grad():
            target = reference(x)
        torch.cuda.empty_cache()
        (policy(x) - target).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x, target


def test_rollout_reference_and_update_are_phases():
    parts = simulate(_rlhf).memory.parts
    assert [(part.part, part.times) for part in parts] == [
        ("building", 1),
        ("generate Policy", 2),
        ("inference Policy (2)", 2),
        ("training", 2),
    ]
    building, rollout, reference, update = parts
    assert building.left_bytes == 16 * MIB  # two models, and the prompts
    assert rollout.peak_bytes == (8 + 8 + 2 * 8) * MIB  # models, prompts, two hidden states
    assert reference.left_bytes >= 24 * MIB
    assert update.peak_bytes > reference.peak_bytes
    for part in parts:
        assert part.left_bytes <= part.peak_bytes <= part.peak_with_fragments_bytes
        assert part.left_bytes <= part.left_with_fragments_bytes <= part.peak_with_fragments_bytes


def test_the_roles_of_a_frozen_reference_and_of_an_average():
    def program():
        policy, reference = Policy(), Policy().requires_grad_(False)
        average = {name: p.detach().clone() for name, p in policy.state_dict().items()}
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        features = torch.rand(256, 1024).cuda()
        for _ in range(2):
            (policy(features) - reference(features)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for name, p in policy.state_dict().items():
                average[name].lerp_(p, 0.1)

    held = simulate(program).memory.at_peak
    assert (held.weights, held.frozen, held.copies, held.inputs) == (4 * MIB, 4 * MIB, 4 * MIB, MIB)


def test_phases_that_the_user_names_come_first():
    def program():
        policy = Policy()
        with windtunnel.phase("rollout"):
            policy.generate(torch.rand(8, 1024, device="cuda"), 1)
        policy(torch.rand(8, 1024, device="cuda")).sum().backward()

    assert [part.part for part in simulate(program).memory.parts] == [
        "building",
        "rollout",
        "between",
        "training",
    ]


def test_a_plain_training_loop_has_no_phases():
    def program():
        policy = Policy()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        policy(torch.rand(8, 1024, device="cuda")).sum().backward()
        optimizer.step()

    run = simulate(program)
    assert run.memory.parts == ()
    assert run.count(Kind.PART) == 0


def test_a_phase_does_nothing_in_a_real_run():
    tokens = []
    with windtunnel.phase("rollout"):
        tokens.append(1)
    assert tokens == [1]
    with pytest.raises(KeyError), windtunnel.phase("rollout"):
        raise KeyError
