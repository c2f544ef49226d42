"""Run one simulated rank in this process (internal: `windtunnel run` starts it).

    python -m windtunnel.commands.rank TASK.json PROGRESS_FD
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.capture.task import RankTask
from windtunnel.errors import WindtunnelError
from windtunnel.events.file import RecordingWriter
from windtunnel.frameworks import load
from windtunnel.memory import Allocator
from windtunnel.memory.live import LiveMemory

__all__ = ["main", "simulate_rank"]


def simulate_rank(task: RankTask, program: Callable[[], Any] | None, on_step: Callable[[int], None] | None) -> int:
    """Simulate a rank; returns 0 if the program ended well, 3 if it failed, 130 if it was interrupted."""

    def make_counters(writer: RecordingWriter, path: Path) -> LiveMemory:
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator, conf=task.allocator_conf))

    outcome = load("capture", "rank", "torch").run_rank(task, make_counters, program, on_step)
    return {"ok": 0, "interrupted": 130}.get(outcome["status"], 3)


def main(argv: list[str]) -> int:
    task = RankTask.from_json(Path(argv[0]).read_text(encoding="utf-8"))
    progress = int(argv[1])

    def on_step(n_steps: int) -> None:
        os.write(progress, f"{n_steps}\n".encode())

    try:
        return simulate_rank(task, None, on_step)
    except WindtunnelError as error:
        print(f"windtunnel: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing of the simulated torch needs a tidy shutdown, and it can take seconds
