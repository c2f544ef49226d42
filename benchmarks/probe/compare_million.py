"""Time and memory of comparing two dumps of a million values each, on one core.

    python benchmarks/probe/compare_million.py [N_VALUES]

Both layouts: one entry per line with sketches, as windtunnel writes, and indented without, as msProbe does; one rank,
many ranks, and one extra call near the front of B, which shifts the call numbers of everything behind it.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_VALUES = 1_000_000
VALUES_PER_CALL = 4
RANKS = 16
LIMIT_S, LIMIT_MB = 60, 2000

_COMPARE = """
import resource, sys, time
from windtunnel.commands.main import main
started = time.perf_counter()
code = main(["compare", *sys.argv[1:]])
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"RESULT {code} {time.perf_counter() - started:.1f} {time.process_time():.1f} {peak_mb:.0f}")
"""


def main() -> None:
    n_values = int(sys.argv[1]) if len(sys.argv) > 1 else N_VALUES
    print(f"{'case':42} {'values':>10} {'MB read':>8} {'seconds':>8} {'of CPU':>7} {'peak MB':>8}  verdict")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name, layout, ranks, extra in (
            ("one rank, our layout", "ours", 1, False),
            (f"{RANKS} ranks, our layout", "ours", RANKS, False),
            ("one rank, our layout, one extra call in B", "ours", 1, True),
            ("one rank, msProbe's layout", "msprobe", 1, False),
        ):
            a, b = root / "a", root / "b"
            n_bytes = write_dump(a, n_values, layout, ranks, False) + write_dump(
                b, n_values, layout, ranks, extra
            )
            seconds, cpu_seconds, peak_mb, verdict = compare(a, b)
            figures = f"{n_bytes / 1e6:8.0f} {seconds:8.1f} {cpu_seconds:7.1f} {peak_mb:8.0f}"
            print(f"{name:42} {n_values:10,} {figures}  {verdict}", flush=True)
            subprocess.run(["rm", "-r", str(a), str(b)], check=True)
    print(f"limits: {LIMIT_S} s, {LIMIT_MB} MB")


def compare(a: Path, b: Path) -> tuple[float, float, float, str]:
    """Run the command in a process of its own, on one core."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, str(a), str(b)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    match = re.search(r"RESULT (\d+) ([\d.]+) ([\d.]+) (\d+)", done.stdout)
    assert match is not None, done.stdout
    return float(match[2]), float(match[3]), float(match[4]), done.stdout.splitlines()[0]


def write_dump(root: Path, n_values: int, layout: str, ranks: int, extra: bool) -> int:
    """A dump of random statistics, the same for the same arguments; returns its size in bytes."""
    draw = random.Random(0)
    n_bytes = 0
    for rank in range(ranks):
        folder = root / "step0" / f"rank{rank}"
        folder.mkdir(parents=True)
        n_calls = n_values // ranks // VALUES_PER_CALL
        with open(folder / "dump.json", "w", encoding="utf-8") as file:
            tail = ', "windtunnel": "0.1.0"' if layout == "ours" else ""
            file.write(
                f'{{\n "task": "statistics", "level": "L1", "framework": "pytorch"{tail},\n "data": {{'
            )
            for call in range(n_calls + extra):
                body = _body(draw, layout) if not (extra and call == 3) else _body(random.Random(1), layout)
                entry = f"Functional.linear.{call}.forward"
                text = (
                    json.dumps(body) if layout == "ours" else json.dumps(body, indent=1).replace("\n", "\n  ")
                )
                file.write(f'{"," if call else ""}\n  "{entry}": {text}')
            file.write("\n }\n}\n")
            n_bytes += file.tell()
    return n_bytes


def _body(draw: random.Random, layout: str) -> dict:
    return {
        "input_args": [_tensor(draw, layout) for _ in range(VALUES_PER_CALL - 1)],
        "input_kwargs": {},
        "output": [_tensor(draw, layout)],
    }


def _tensor(draw: random.Random, layout: str) -> dict:
    found = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [8, 128, 256],
        "Max": draw.random() * 5,
        "Min": -draw.random() * 5,
        "Mean": draw.random() * 0.01,
        "Norm": draw.random() * 500,
        "requires_grad": True,
    }
    if layout == "ours":
        found["sketch"] = [round((draw.random() - 0.5) * 300, 6) for _ in range(8)]
    return found


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"(all in {time.perf_counter() - started:.0f} s, this process {own_mb:.0f} MB)")
