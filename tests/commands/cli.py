"""The command line as a user has it: in a process of its own, most often one that was forked with everything imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.commands.warm import run_warm

__all__ = ["COMMAND", "PATIENCE_S", "SCRIPTS", "environment", "read_json", "windtunnel"]

COMMAND = [sys.executable, "-c", "import sys; from windtunnel.commands.main import main; sys.exit(main())"]
PATIENCE_S = 900  # with what hangs: no test depends on it, so it is many times what the slowest takes on a busy machine
SCRIPTS = Path(__file__).parent / "scripts"
# Read before our first line, or when torch and numpy are imported.
_READ_AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "PATH",
    "LD_",
    "TZ",
    "OMP_",
    "MKL_",
    "ATEN_",
    "TORCH",
    "KMP_",
    "OPENBLAS_",
)
_OURS = ("MS_", "RANK", "WORLD_SIZE", "LOCAL_", "PYTORCH_", "MASTER_")


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return kept | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"} | more


def windtunnel(*args, cwd, env=None, timeout=PATIENCE_S, is_fresh=False, **more):
    """Run `windtunnel args…`; stdin is an open pipe nobody writes to, as in a job of a cluster.

    In a fresh interpreter where that matters: `is_fresh`, variables that an interpreter reads when it starts, or
    options of subprocess.run.
    """
    if not (is_fresh or more or any(name.startswith(_READ_AT_START) for name in env or ())):
        return run_warm([*map(str, args)], cwd, environment(**(env or {})), timeout)
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
