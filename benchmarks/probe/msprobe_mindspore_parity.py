"""What our probe writes for MindSpore, against real msProbe on the same programs; and what each costs.

    python -m benchmarks.probe.msprobe_mindspore_parity PYTHON              run both, print every difference
    python -m benchmarks.probe.msprobe_mindspore_parity PYTHON --golden     also update tests/mindspore/probe/golden/
    python -m benchmarks.probe.msprobe_mindspore_parity PYTHON --race       the CPU time of a step, bare and under each tool
    ... --race --blocking                                             the same without MindSpore's pipeline of threads

PYTHON is a Python that has MindSpore of the same version and msProbe (`pip install mindstudio-probe==26.2.0 'numpy<2'
'pandas<3'`). msProbe fails on a CPU unless `mint.norm` is replaced first; that is done for it here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __package__ in (None, ""):  # run by the other Python, as a file
    sys.path.insert(0, str(ROOT))

GOLDEN = ROOT / "tests" / "mindspore" / "probe" / "golden"
KEPT = ("L0 transformer", "L1 md5 mint", "mix cnn", "mix mlp", "debug mlp", "segment")  # as golden files
RACES = (("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("mix", "md5"), ("mix", "tensor"))
N_STEPS = 6


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("msprobe", nargs="?", help="a Python with msProbe")
    parser.add_argument("--golden", action="store_true", help="update the extracts the tests compare with")
    parser.add_argument("--race", action="store_true", help="measure the cost of a step instead")
    parser.add_argument("--blocking", action="store_true", help="race with launch_blocking() at the top")
    parser.add_argument("--child", choices=["msprobe", "windtunnel", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args(argv)
    if args.child:
        return (
            race_child(args.child, args.only, args.folder, args.blocking)
            if args.race
            else run_all(args.child, args.only, args.folder)
        )
    if not args.msprobe:
        parser.error("name a Python that has msProbe")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="parity-"))
    if args.race:
        return race(args.msprobe, folder, ["--race", *(["--blocking"] if args.blocking else [])])
    for tool, python in (("msprobe", args.msprobe), ("windtunnel", sys.executable)):
        run_child(python, tool, folder / tool, args.only)
    return report(args.only, folder, args.golden)


def run_child(python: str, tool: str, folder: Path, only: str, *more: str) -> str:
    """Run this file under another Python and return its output."""
    command = [python, __file__, "--child", tool, "--folder", str(folder), "--only", only, *more]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def debugger_of(tool: str) -> type:
    if tool == "msprobe":
        from mindspore import mint, ops
        from msprobe.mindspore import PrecisionDebugger

        mint.norm = ops.norm  # it has no kernel on a CPU
    else:
        from windtunnel.mindspore import PrecisionDebugger
    return PrecisionDebugger


def run_all(tool: str, only: str, folder: Path) -> int:
    """Run the cases with one tool, each in a separate process: msProbe has one debugger per process."""
    from tests.mindspore.probe.arithmetic import Nobody, fingerprint
    from tests.mindspore.probe.parity_cases import CASES, file_name, run_case, run_program, use_cpu

    for name in CASES:
        if only not in name:
            continue
        child = os.fork()
        if child == 0:
            status = 1
            try:
                use_cpu()
                case_folder = folder / file_name(name).removesuffix(".json")
                case_folder.mkdir(parents=True, exist_ok=True)
                (case_folder / "arithmetic").write_text(fingerprint(run_program(CASES[name], Nobody())))
                run_case(CASES[name], case_folder, debugger_of(tool))
                status = 0
            finally:
                sys.stderr.flush()
                # msProbe writes its last files at exit
                sys.exit(status) if status == 0 else os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            print(f"{tool}: case {name!r} failed with status {status}", file=sys.stderr)
    return 0


def report(only: str, folder: Path, renews_golden: bool) -> int:
    """Print the differences of each case, and update the extracts."""
    from tests.mindspore.probe.parity import differences
    from tests.mindspore.probe.parity_cases import CASES, extract, file_name

    total: Counter[str] = Counter()
    for name, case in CASES.items():
        if only not in name:
            continue
        stem = file_name(name).removesuffix(".json")
        theirs, ours = (extract(folder / tool / stem / "dump") for tool in ("msprobe", "windtunnel"))
        if renews_golden and name in KEPT:
            write_golden(file_name(name), theirs, (folder / "msprobe" / stem / "arithmetic").read_text())
        found = differences(case, theirs, ours)
        total["values compared"] += found.n_compared
        total["differences"] += len(found.wrong)
        total["intended"] += len(found.intended)
        print(
            f"{name:20} {found.n_compared:6} compared, {len(found.wrong)} differ, {len(found.intended)} intended"
        )
        for line in found.wrong:
            print(f"    {line}")
        for kind, n in Counter(line.partition(":")[0] for line in found.intended).items():
            print(f"    intended ({n}): {kind}")
    print(dict(total))
    return 1 if total["differences"] else 0


def write_golden(name: str, extracted: dict, arithmetic: str) -> None:
    """One entry per line: readable, and small in a diff."""
    import mindspore

    GOLDEN.mkdir(exist_ok=True)
    made = {"msprobe": "26.2.0", "mindspore": mindspore.__version__, "arithmetic": arithmetic}
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
    (GOLDEN / name).write_text("\n".join([*lines, "}", ""]))


def race(python: str, folder: Path, options: list[str]) -> int:
    """CPU seconds of a step of the transformer: bare, under msProbe, under ours."""
    print("CPU milliseconds of a step, median (times the bare step)")
    for level, kind in RACES:
        found = {}
        for tool in ("bare", "msprobe", "windtunnel"):
            interpreter = python if tool == "msprobe" else sys.executable
            out = run_child(interpreter, tool, folder / f"{tool}_{level}_{kind}", f"{level} {kind}", *options)
            found[tool] = float(out.strip().splitlines()[-1])
        ratios = [f"{tool} {found[tool] * 1e3:.1f} ({found[tool] / found['bare']:.2f} x)" for tool in found]
        print(f"{level:4} {kind:10} {', '.join(ratios)}")
    return 0


def race_child(tool: str, what: str, folder: Path, is_blocking: bool) -> int:
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn

    from tests.mindspore.probe.models import Program, Transformer, train_step
    from tests.mindspore.probe.parity_cases import use_cpu

    use_cpu()
    if is_blocking:
        ms.runtime.launch_blocking()
    level, kind = what.split()
    task = "tensor" if kind == "tensor" else "statistics"
    summary = "md5" if kind == "md5" else "statistics"
    config = {"task": task, "level": level, "dump_path": str(folder / "dump"), "rank": [], "step": []}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {task: {"summary_mode": summary}}))
    debugger = None if tool == "bare" else debugger_of(tool)(config_path=str(folder / "config.json"))
    ms.set_seed(1)
    network = Transformer(128, 4, 4)
    draw = np.random.RandomState(0)
    tokens = Tensor(draw.randint(0, 11, (8, 64)).astype(np.int32))
    labels = Tensor(draw.randint(0, 11, 8 * 64).astype(np.int32))
    step = train_step(Program(network, (tokens,), labels, nn.CrossEntropyLoss()))
    times = []
    for _ in range(N_STEPS):
        began = time.process_time()
        if debugger is not None:
            debugger.start(network)
        step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        times.append(time.process_time() - began)
    print(statistics.median(times[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
