"""What our probe writes, against real msProbe on the same programs; and whether msProbe's compare reads our dumps.

    python -m benchmarks.probe.msprobe_parity PYTHON              run both, print every difference
    python -m benchmarks.probe.msprobe_parity PYTHON --golden     also update tests/probe/golden/

PYTHON is a Python that has torch of the same version and msProbe (`pip install mindstudio-probe==26.2.0`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __package__ in (None, ""):  # run by the other Python, as a file
    sys.path.insert(0, str(ROOT))

from tests.probe.parity.arithmetic import fingerprint  # noqa: E402
from tests.probe.parity.cases import CASES, extract, file_name, run_case  # noqa: E402

GOLDEN = ROOT / "tests" / "probe" / "golden"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("msprobe", nargs="?", help="a Python with msProbe")
    parser.add_argument("--golden", action="store_true", help="update the extracts the tests compare with")
    parser.add_argument("--child", choices=["msprobe", "windtunnel"], help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args(argv)
    names = [name for name in CASES if args.only in name]
    if args.child:
        return run_all(args.child, names, args.folder)
    if not args.msprobe:
        parser.error("name a Python that has msProbe")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="parity-"))
    for tool, python in (("msprobe", args.msprobe), ("windtunnel", sys.executable)):
        command = [
            python,
            str(Path(__file__)),
            "--child",
            tool,
            "--folder",
            str(folder / tool),
            "--only",
            args.only,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return report(names, folder, args.msprobe, args.golden)


def run_all(tool: str, names: list[str], folder: Path) -> int:
    """Run the cases with one tool, each in a separate process: msProbe has one debugger per process."""
    import torch

    torch.set_num_threads(1)
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger
    else:
        from windtunnel.pytorch import PrecisionDebugger
    for name in names:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                case_folder = folder / file_name(name).removesuffix(".json")
                case_folder.mkdir(parents=True, exist_ok=True)
                (case_folder / "arithmetic").write_text(fingerprint(CASES[name]))
                run_case(CASES[name], case_folder, PrecisionDebugger)
                status = 0
            finally:
                sys.stderr.flush()
                # msProbe writes its last files at exit
                sys.exit(status) if status == 0 else os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            print(f"{tool}: case {name!r} failed with status {status}", file=sys.stderr)
    return 0


def report(names: list[str], folder: Path, python: str, renews_golden: bool) -> int:
    """Print the differences of each case, update the extracts, and have msProbe compare our dumps."""
    from tests.probe.parity.side import differences

    total: Counter[str] = Counter()
    for name in names:
        stem = file_name(name).removesuffix(".json")
        theirs = extract(folder / "msprobe" / stem / "dump", CASES[name].keeps)
        ours = extract(folder / "windtunnel" / stem / "dump", CASES[name].keeps)
        if renews_golden:
            write_golden(name, theirs, (folder / "msprobe" / stem / "arithmetic").read_text())
        found = differences(CASES[name], theirs, ours)
        total["values compared"] += found.n_compared
        total["differences"] += len(found.wrong)
        total["intended"] += len(found.intended)
        print(
            f"{name:24} {found.n_compared:6} compared, {len(found.wrong)} differ, {len(found.intended)} intended"
        )
        for line in found.wrong:
            print(f"    {line}")
        kinds = Counter(line.partition(":")[0] for line in found.intended)
        for kind, n in kinds.items():
            print(f"    intended ({n}): {kind}")
    print(dict(total))
    for name in {"mix md5 mlp", "mix tensor mlp"}.intersection(names):
        print(compare_with_msprobe(python, folder, file_name(name).removesuffix(".json")))
    return 1 if total["differences"] else 0


def write_golden(name: str, extracted: dict, arithmetic: str) -> None:
    """One entry per line: readable, and small in a diff."""
    import torch

    GOLDEN.mkdir(exist_ok=True)
    made = {"msprobe": "26.2.0", "torch": torch.__version__, "arithmetic": arithmetic}
    lines = ["{", f' "made_with": {json.dumps(made)},']
    for step, content in extracted.items():
        lines.append(f' "{step}": {{')
        for key, value in content.items():
            comma = "," if key != list(content)[-1] else ""
            if key == "data":
                rows = [f"   {json.dumps(entry)}: {json.dumps(body)}" for entry, body in value.items()]
                lines.append('  "data": {\n' + ",\n".join(rows) + "\n  }" + comma)
            else:
                lines.append(f"  {json.dumps(key)}: {json.dumps(value)}{comma}")
        lines.append(" }" + ("," if step != list(extracted)[-1] else ""))
    (GOLDEN / file_name(name)).write_text("\n".join([*lines, "}", ""]))


def compare_with_msprobe(python: str, folder: Path, case: str) -> str:
    """msProbe's own compare tool on our dump against itself, and on our dump against msProbe's."""
    lines = []
    sides = {"ours with ours": ("windtunnel", "windtunnel"), "ours with msProbe's": ("windtunnel", "msprobe")}
    for title, (left, right) in sides.items():
        one, other = (next((folder / side / case / "dump" / "step0").iterdir()) for side in (left, right))
        out = folder / f"compare_{case}_{left}_{right}"
        out.mkdir(exist_ok=True)
        lines.append(f"msprobe compare, {case}, {title}: {run_compare(python, one, other, out)}")
    return "\n".join(lines)


def run_compare(python: str, one: Path, other: Path, out: Path) -> dict[str, int]:
    """Run `msprobe compare` on two rank folders; how often each result appears in its table."""
    command = [str(Path(python).with_name("msprobe")), "compare"]
    command += ["-tp", str(one / "dump.json"), "-gp", str(other / "dump.json"), "-o", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    tables = sorted(out.glob("*.csv")) + sorted(out.glob("**/*.csv"))
    if not tables:
        return {f"no table, exit {run.returncode}: {(run.stdout + run.stderr)[-300:]!r}": 1}
    with tables[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    return dict(Counter(row.get("Result", "?") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
