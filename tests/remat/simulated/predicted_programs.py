"""One program, dry once and for real under three thresholds; run as a program of its own.

    python -m tests.remat.simulated.predicted_programs NAME ──> JSON: at each threshold, what was predicted and what was done

In an interpreter of its own because both are forked from it: a process that has run a backward before cannot fork one
that simulates a device.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.capture.pytorch.simulated import run_plainly
from tests.capture.pytorch.simulated import simulate as dry_run
from windtunnel.devices import find_device
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated.program import Call, read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import floor_bytes, simulate
from windtunnel.timing.cost import CostTable

MINIMUM = 4096
CPU = find_device("cpu")


def convolutions():
    """Batch norm, in-place ReLU and addition, dropout of channels."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 8, 16, 16)
        for layer in model:
            before, x = x, layer(x)
            x += before
            x = F.relu(x, inplace=True)
        F.dropout2d(x, 0.1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def attention():
    """Views, dropout, a mask, a kernel with several results, embeddings, AdamW."""
    torch.manual_seed(0)
    words = nn.Embedding(50, 64)
    layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3))
    parameters = [*words.parameters(), *layers.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(3):
        tokens = torch.randint(0, 50, (4, 32))
        x = words(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(32)
        for layer in layers:
            x = layer(x, src_mask=mask, is_causal=True)
        F.cross_entropy((x @ words.weight.t()).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulation():
    """Several backwards a step, a metric the program keeps, evaluation without gradients, autocast."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.GELU(), nn.LayerNorm(64))])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = []
    for _ in range(2):
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(torch.randn(64, 64))
            out.float().square().mean().backward()
            kept.append(out.detach().float() * 2)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(64, 64))


def _live(program, threshold: int, table: dict[str, float]) -> list[dict[str, int]]:
    """Cumulative statistics after each step of real training."""

    def run() -> list[dict[str, int]]:
        from windtunnel.remat.pytorch.costs import Costs
        from windtunnel.remat.pytorch.runtime import Runtime

        warnings.filterwarnings("ignore", "windtunnel.dtr")
        cpu = torch.device("cpu")
        runtime = Runtime(Settings(threshold=threshold, minimum_size=MINIMUM), cpu, Costs(cpu, table))
        found: list[dict[str, int]] = []
        register_optimizer_step_post_hook(lambda *_: found.append(asdict(runtime.engine.statistics)))
        runtime.start()
        program()
        runtime.stop()
        assert set(runtime.costs.table) <= set(table), "the dry run did not see these operators"
        return found

    return run_plainly(run)


def compare(make) -> list[dict[str, Any]]:
    program = read_program(dry_run(make, "cpu", is_recording_saves=True).recording)
    roofline = ProgramCosts(program, CPU)
    calls = [action for action in program.actions if isinstance(action, Call)]
    table = {roofline.key(call): roofline.call(call) for call in calls}
    costs = ProgramCosts(program, CPU, CostTable(table))
    floor, peak = floor_bytes(program, costs, Settings(minimum_size=MINIMUM), is_cuda=False)
    found = []
    for share in (
        0.7,
        0.2,
        -0.5,
    ):  # of the way from what cannot be evicted to the peak; the last cannot be held
        threshold = max(int(floor + share * (peak - floor)), 1)
        predicted = simulate(
            program, costs, Settings(threshold=threshold, minimum_size=MINIMUM), is_cuda=False
        )
        done = [sum(step.evictions for step in predicted.steps[: i + 1]) for i in range(len(predicted.steps))]
        live = _live(make, threshold, table)
        found.append(
            {
                "predicted": asdict(predicted.statistics) | {"evictions_by_step": done},
                "live": live[-1] | {"evictions_by_step": [step["evictions"] for step in live]},
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(compare(globals()[sys.argv[1]])))
