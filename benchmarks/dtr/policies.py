"""Which eviction policy should be the default? Extra time of each on real programs, simulated at five budgets.

dry run of each program ──> windtunnel.dtr simulated, every policy, activations cut to a share ──> extra time

A share of 0.3 leaves room for 30 % of what the activations take at the peak, above what is never evicted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.policy import POLICIES
from windtunnel.remat.simulated.program import read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import floor_bytes, simulate

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_PROGRAMS = {
    "Qwen2.5-7B, batch 4 x 4096": ("a100-80gb:mem=200GiB", "examples/qwen25_7b.py"),
    "ResNet-50, batch 200": ("a100-80gb", "examples/resnet50.py", "--batch", "200"),
}
SHARES = (0.8, 0.6, 0.45, 0.3, 0.2)


def main() -> None:
    console = Console(width=130)
    for title, (device, *command) in _PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            _record(folder, device, command)
            program = read_program(read_recording(Path(folder) / "out" / "rank0" / "recording.arrows"))
        console.print(_table(title, program, device))


def _record(folder: str, device: str, command: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "windtunnel.commands.main", "remat", "--thresholds", "50%", "--device", device,
         "--json", "--out", f"{folder}/out", *command],
        cwd=_ROOT, capture_output=True, check=False,
    )  # fmt: skip


def _table(title: str, program, device: str) -> Table:
    profile = find_device(device)
    costs = ProgramCosts(program, profile, None)
    floor, peak = floor_bytes(program, costs, Settings())
    table = Table(title=f"{title}: extra time (computed again)")
    table.add_column("policy")
    for share in SHARES:
        table.add_column(f"{share:.0%}", justify="right")
    for name in POLICIES:
        cells = []
        for share in SHARES:
            settings = replace(Settings(), threshold=int(floor + share * (peak - floor)), policy=name)
            outcome = simulate(program, costs, settings)
            step = outcome.steps[-1]
            mark = " *" if outcome.statistics.guarded_rounds else ""
            cells.append(f"{step.extra_seconds / step.base_seconds:+.1%} ({step.rematerialisations}){mark}")
        table.add_row(name, *cells)
    table.caption = "* too low to hold: the guard stopped evicting"
    return table


if __name__ == "__main__":
    main()
