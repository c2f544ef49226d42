"""DistributedDataParallel of models that people train, in jobs of 2, 8 and 64 ranks: do they run, and are all ranks equal?

fourteen vision models, one of 1,000 and one of 17,000 parameter tensors ──> peak of every simulated rank, CPU time
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["main"]

_SCRIPTS = Path(__file__).parents[1] / "tests" / "capture" / "scripts"
_WORLDS = (2, 8, 64)
_LAYERS = ("layers:500", "layers:8500")


def main() -> None:
    names = [
        *re.findall(r'"(\w+)": (?:lambda|[a-zA-Z])', (_SCRIPTS / "vision_models.py").read_text()),
        *_LAYERS,
    ]
    found = {world: _run(world, names) for world in _WORLDS}
    print(
        "\nDDP, batch 4 per rank, one step of SGD with momentum: MiB live at the peak, the same on every rank\n"
    )
    print(
        f"{'model':<20} {'tensors':>8} {'MiB':>8}" + "".join(f"{f'{world} ranks':>12}" for world in _WORLDS)
    )
    for name in names:
        facts = found[_WORLDS[0]][1][name]
        peaks = "".join(f"{found[world][1][name]['peak'] / 2**20:>12,.1f}" for world in _WORLDS)
        print(f"{name:<20} {facts['tensors']:>8,} {facts['bytes'] / 2**20:>8,.1f}{peaks}")
    print(f"{'ranks simulated':<38}" + "".join(f"{found[world][2]:>12}" for world in _WORLDS))
    print(f"{'CPU seconds':<38}" + "".join(f"{found[world][0]:>12.1f}" for world in _WORLDS))


def _run(world: int, names: list[str]) -> tuple[float, dict[str, dict[str, int]], int]:
    """CPU seconds, what rank 0 printed for each model, and how many ranks were simulated; all must print the same."""
    before = _cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--no-html", "--out", str(out)]
        done = subprocess.run(
            [*command, "--world-size", str(world), str(_SCRIPTS / "ddp_models.py"), *names],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(
                f"{done.stdout[-2000:]}\nthe job of {world} ranks ended with exit code {done.returncode}"
            )
        logs = [path.read_text() for path in sorted(out.glob("rank*/run.log"))]
    said = [
        {name: json.loads(text) for name, text in re.findall(r"^(\S+) (\{.*\})$", log, re.M)} for log in logs
    ]
    if any(each != said[0] for each in said):
        raise SystemExit(f"the ranks of a job of {world} differ")
    return _cpu_seconds() - before, said[0], len(logs)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
