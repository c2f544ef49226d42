"""The tests that depend on torch, in a virtual environment for each version: what `make matrix` runs.

    PAIRS ──> python3.X from PATH or pyenv ──> .venv-torch2.Y-py3.X ──> pytest of CORE ──> a table

`python -m tests.matrix` runs all pairs, `python -m tests.matrix 2.12 2.15` those versions of torch. An environment is
made once; torch comes as pip finds it, so PIP_INDEX_URL or PIP_EXTRA_INDEX_URL decide whether that is a CPU build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Every torch and every Python once, the newest torch also with the Python most people have.
PAIRS = (("2.12", "3.10"), ("2.13", "3.11"), ("2.14", "3.12"), ("2.15", "3.11"), ("2.15", "3.13"))

# A real core of the suite: whatever a new torch, Python or numpy can break. Ranks, DDP, FSDP and DTensor are in tests/capture.
CORE = """
    tests/cluster tests/events tests/memory tests/timing tests/report/json tests/report/results tests/report/terminal
    tests/report/trace tests/session/test_run_time.py
    tests/capture tests/commands/test_run_scripts.py tests/commands/test_run_from_python.py
    tests/probe/pytorch/test_collectives.py tests/probe/pytorch/test_custom_apis.py tests/probe/pytorch/test_debugger.py
    tests/probe/pytorch/test_kernels.py tests/probe/pytorch/test_nothing_changes.py tests/probe/pytorch/test_true_gradients.py
    tests/remat/test_rerunnable.py tests/remat/pytorch/test_changes.py tests/remat/pytorch/test_hard_cases.py
    tests/remat/pytorch/test_graphs.py tests/remat/pytorch/test_memory_limit.py tests/remat/pytorch/test_training.py
    tests/test_cpu_exactness.py tests/test_dtr.py tests/test_torch_compatibility.py tests/test_torch_custom_saves.py
""".split()

PACKAGES = ("pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "transformers>=4.57,<6", "accelerate>=1")


def main(wanted: list[str]) -> int:
    rows, is_broken = [], False
    for torch, python in PAIRS:
        if wanted and torch not in wanted:
            continue
        interpreter = find_python(python)
        if interpreter is None:
            rows.append((torch, python, f"skipped: there is no python{python} on PATH or in pyenv"))
            continue
        print(f"torch {torch}, Python {python}", flush=True)
        environment = ROOT / f".venv-torch{torch}-py{python}"
        outcome = make(environment, interpreter, torch) or run(environment)
        is_broken |= not outcome.startswith("passed")
        rows.append((installed(environment) or torch, python, outcome))
    print(f"\n{'torch':<16} {'python':<8} core suite")
    for torch, python, outcome in rows:
        print(f"{torch:<16} {python:<8} {outcome}")
    return int(is_broken)


def find_python(version: str) -> str | None:
    """An interpreter that runs: a shim of pyenv may be on PATH for a version that is not chosen."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [
        shutil.which(f"python{version}"),
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}"))),
    ]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def make(environment: Path, interpreter: str, torch: str) -> str:
    """Make the virtual environment if there is none; returns what went wrong."""
    ready = environment / ".ready"
    if ready.exists():
        return ""
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    for command in (
        [interpreter, "-m", "venv", str(environment)],
        [*pip, f"torch=={torch}.*", "numpy"],
        [*pip, "-e", f"{ROOT}[plot,plan]", *PACKAGES],
    ):
        if subprocess.run(command, check=False).returncode:
            return f"not installed: {' '.join(command[1:5])} … failed"
    ready.touch()
    return ""


def run(environment: Path) -> str:
    """The last line of pytest, after the word passed or failed."""
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-n", "2", *CORE]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        sys.stdout.write(line)
        last = line.strip() or last
    word = "failed" if process.wait() else "passed"
    return f"{word}: {re.sub('=+', '', last).strip()}"


def installed(environment: Path) -> str:
    name = "import importlib.metadata as m; print(m.version('torch'))"
    python = environment / "bin" / "python"
    if not python.exists():
        return ""
    return subprocess.run([python, "-c", name], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
