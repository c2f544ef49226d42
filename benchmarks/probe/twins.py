"""The same transformer in PyTorch and MindSpore, both run here: are their modules paired, and is a planted mistake found?

    python -m benchmarks.probe.twins PYTHON [--msprobe PYTHON]

PYTHON is one that has MindSpore and windtunnel; with --msprobe, one that has MindSpore and msProbe, which then collects
the MindSpore side once more. Every mistake is planted on either side, at every level.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tests.probe.twins.judged import judged
from tests.probe.twins.weights import PLANTS

ROOT = Path(__file__).parents[2]
LEVELS = ("L0", "L1", "mix")
PLANTED = ("", *PLANTS)
MODULES = 0.95  # at least this share has a partner


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mindspore", help="a Python with MindSpore and windtunnel")
    parser.add_argument("--msprobe", help="a Python with MindSpore and msProbe")
    args = parser.parse_args(argv)
    probes = {"windtunnel": args.mindspore} | ({"msprobe": args.msprobe} if args.msprobe else {})
    print(
        f"{'MindSpore by':14}{'level':7}{'planted':26}{'modules':>9}  first divergence, as PyTorch calls it"
    )
    with tempfile.TemporaryDirectory(prefix="twins-") as name:
        folder = Path(name)
        ours = {
            case: _dump(sys.executable, "torch", "windtunnel", folder, *case)
            for case in product(LEVELS, PLANTED)
        }
        wrong = 0
        for probe, python in probes.items():
            theirs = {
                case: _dump(python, "mindspore", probe, folder, *case) for case in product(LEVELS, PLANTED)
            }
            wrong += sum(_row(probe, *row) for row in _rows(ours, theirs))
    print(f"{wrong} rows are not as expected" if wrong else "all rows are as expected")
    return min(wrong, 1)


Dumps = dict[tuple[str, str], Path]


def _rows(ours: Dumps, theirs: Dumps) -> Iterator[tuple[str, str, str, Path, Path]]:
    for level, plant in product(LEVELS, PLANTED):
        if plant:
            yield level, plant, "PyTorch", ours[level, plant], theirs[level, ""]
        yield level, plant, "MindSpore", ours[level, ""], theirs[level, plant]


def _row(probe: str, level: str, plant: str, where: str, a: Path, b: Path) -> bool:
    """Print what compare finds; whether it is wrong."""
    findings, share = judged(a, b)
    first = findings.first.item if findings.first is not None else ""
    planted = f"{plant} in {where}" if plant else "nothing"
    modules = f"{share:9.0%}" if level != "L1" else f"{'-':>9}"
    shown = first or f"none, largest rounding {findings.max_rounding:.1e}"
    print(f"{probe:14}{level:7}{planted:26}{modules}  {shown}", flush=True)
    if not plant:
        return bool(first) or (level != "L1" and share < MODULES)
    # A module is named where functions are not: at L0, and where the two frameworks compute in different steps.
    return not first or (level != "L1" and (first not in PLANTS[plant] or share < MODULES))


def _dump(python: str, framework: str, probe: str, folder: Path, level: str, plant: str) -> Path:
    out = folder / f"{framework}-{probe}-{level}-{plant or 'honest'}"
    command = [
        python,
        "-m",
        f"tests.probe.twins.{framework}_twin",
        str(out),
        "--level",
        level,
        "--probe",
        probe,
    ]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [*command, *(["--plant", plant] if plant else [])],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return out


if __name__ == "__main__":
    sys.exit(main())
