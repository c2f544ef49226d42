"""The command line as a user has it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["COMMAND", "PATIENCE_S", "SCRIPTS", "environment", "read_json", "windtunnel"]

COMMAND = [sys.executable, "-c", "import sys; from windtunnel.commands.main import main; sys.exit(main())"]
PATIENCE_S = 900  # with what hangs: no test depends on it, so it is many times what the slowest takes on a busy machine
SCRIPTS = Path(__file__).parent / "scripts"
_OURS = ("MS_", "RANK", "WORLD_SIZE", "LOCAL_", "PYTORCH_", "MASTER_")


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return kept | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"} | more


def windtunnel(*args, cwd, env=None, timeout=PATIENCE_S, **more):
    """Run `windtunnel args…`; stdin is an open pipe nobody writes to, as in a job of a cluster."""
    return subprocess.run(
        [*COMMAND, *map(str, args)],
        cwd=cwd,
        env=environment(**(env or {})),
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        **more,
    )


def read_json(folder):
    return json.loads((Path(folder) / "report.json").read_text())
