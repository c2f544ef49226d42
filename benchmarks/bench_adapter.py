"""windtunnel's probe for benchmark scripts that time tools through a common interface.

    Adapter(level, task, summary, folder, extra) ──> start(model), stop(), step(), close()

For example: bench_msprobe.py L1 statistics statistics --tool benchmarks.bench_adapter:Adapter
"""

from __future__ import annotations

import json
from pathlib import Path

from windtunnel.pytorch import PrecisionDebugger

__all__ = ["Adapter", "Off"]


class Adapter:
    """Collects every step."""

    steps: tuple[int, ...] = ()

    def __init__(self, level: str, task: str, summary: str, folder: str, extra: dict) -> None:
        config = {
            "task": task,
            "dump_path": folder,
            "rank": [],
            "step": [*self.steps],
            "level": level,
            **extra,
        }
        config[task] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        self.debugger = PrecisionDebugger(config_path=str(path))

    def start(self, model) -> None:
        self.debugger.start(model=model)

    def stop(self) -> None:
        self.debugger.stop()

    def step(self) -> None:
        self.debugger.step()

    def close(self) -> None:
        self.debugger.close()


class Off(Adapter):
    """Installed, but no step is collected."""

    steps = (999_999,)
