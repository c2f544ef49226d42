"""A fixed choice as predicted from a dry run, against the same choice in real training on the CPU.

torch stops running a checkpointed function again at its last save, so a function that ends in a linear layer drops
just what comes before that layer: a choice of single calls.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.simulated import run_plainly, simulate
from tests.remat.memory_events import watched
from windtunnel.devices import find_device
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.lineage import trace_lineage
from windtunnel.remat.advisor.static_plan import Choice, StaticPlan
from windtunnel.remat.simulated.program import read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts

WIDTH, ROWS, DEPTH = 64, 1024, 6
GENERATOR_BYTES = 5056


class Block(nn.Module):
    def __init__(self, drops):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drops = drops

    def forward(self, x):
        if self.drops == {"gelu"}:
            return x + checkpoint(lambda h: self.down(F.gelu(h)), self.up(self.norm(x)), use_reentrant=False)
        if self.drops == {"gelu", "up"}:
            return x + checkpoint(lambda n: self.down(F.gelu(self.up(n))), self.norm(x), use_reentrant=False)
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _train(drops):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(drops) for _ in range(DEPTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(ROWS, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("drops", [set(), {"gelu"}, {"gelu", "up"}], ids=["nothing", "gelu", "gelu and up"])
def test_the_peak_is_the_profilers(drops):
    def dry():
        _train(set())

    program = read_program(simulate(dry, "cpu", is_recording_saves=True).recording)
    costs = ProgramCosts(program, find_device("cpu"))
    lineage = trace_lineage(program, costs)

    def is_dropped(unit):
        is_up = program.place(unit.row).startswith(tuple(f"{i}.up" for i in range(DEPTH)))
        return ("gelu" in drops and unit.name == "aten.gelu.default") or ("up" in drops and is_up)

    dropped = frozenset(i for i, unit in enumerate(lineage.units) if is_dropped(unit))
    assert len(dropped) == 2 * DEPTH * len(drops)  # in two steps
    played = play(program, costs, StaticPlan(program, lineage, Choice(dropped)))

    def real():
        with watched() as usage:
            _train(drops)
        return usage.peak

    assert played.peak_bytes == pytest.approx(run_plainly(real), rel=2e-3, abs=2 * GENERATOR_BYTES * DEPTH)
    seconds = sum(lineage.units[i].seconds for i in dropped) / 2
    assert played.recompute_seconds == pytest.approx(seconds)
