"""Public MindSpore programs, unmodified: windtunnel's peaks next to those of MindSpore's own dry run, in bytes.

    python -m benchmarks.mindspore_runs.public_programs SOURCES [--only WORD …] [--results FILE]

    SOURCES (or WINDTUNNEL_MINDSPORE_SOURCES): a folder with what was fetched, by the name of its repository (docs,
    mindcv, mindformers); a repository that is missing is passed over. Packages that it needs and this environment lacks
    are looked for in SOURCES/mindformers-packages and so on, for `pip install --target`

    a program ──> its folder, copied, with data made here ──> `windtunnel run` ──────────> report.json     ──┐
                                                          └─> python, MS_SIMULATION_LEVEL=1 ──> memory_block.csv ──> a row

Run with the interpreter that has MindSpore. MindSpore's own dry run is the plain program in MindSpore's own process, with
our loader stubs in place of CANN; the bytes are those that its memory tracker notes (the log has whole MiB only). Its threads
race, so its own figures can differ from one run to the next; where one is not ours, MindSpore runs once more with one operator
after the other, as windtunnel has it (MS_DEV_LAUNCH_BLOCKING=1), marked *.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.mindspore_runs.public_cases import PROGRAMS, Program
from benchmarks.mindspore_runs.public_data import make_data
from windtunnel.capture.mindspore.cann.stub_cache import stubs_for
from windtunnel.frameworks import location_of

_SECONDS = 900
_MIB = 1 << 20
_ENDED_WELL = (
    "exit code 0",
    "exit code 5",
)  # 5: pytest has no tests in a file that trains when it is imported
_USED = re.compile(r"Used peak memory usage \(without fragments\): (\d+)M")
_FAILED = re.compile(r"^Failed: (.*)", re.MULTILINE)


@dataclass(frozen=True)
class Peaks:
    """Bytes of one rank."""

    used: int
    with_fragments: int


@dataclass(frozen=True)
class Places:
    """Where things are."""

    sources: Path
    data: Path
    work: Path


@dataclass
class Row:
    """What became of one program."""

    name: str
    verdict: str = ""  # "equal", "differs", "failed", "failed in both"
    ours: dict[int, Peaks] = field(default_factory=dict)
    own: dict[int, Peaks] = field(default_factory=dict)
    steps: int = 0
    why: str = ""
    in_order: dict[int, Peaks] = field(default_factory=dict)  # MindSpore's own, one operator after the other

    def reference(self, rank: int) -> tuple[Peaks, str]:
        """MindSpore's own figures to compare with, and the mark of a run in order."""
        peaks = self.in_order.get(rank)
        return (self.own[rank], "") if peaks is None else (peaks, "*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="?", default=os.environ.get("WINDTUNNEL_MINDSPORE_SOURCES"))
    parser.add_argument(
        "--only", nargs="*", default=[], help="programs whose name contains one of these words"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="append a JSON line for every program; MindSpore's own figures in it are used again",
    )
    parser.add_argument("--data", type=Path, help="folder for the data that is made, to be used again")
    args = parser.parse_args()
    if args.sources is None:
        parser.error("name the folder of the fetched sources")
    sources = Path(args.sources).absolute()
    chosen = [
        program
        for program in PROGRAMS
        if (sources / program.folder).is_dir()
        and (not args.only or any(word in program.name for word in args.only))
    ]
    if not chosen:
        sys.exit(f"no program was found in {sources}: fetch the repositories into folders of their names")
    known = _own_figures(args.results)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        data = make_data(args.data.absolute() if args.data else Path(work) / "data")
        for number, program in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {program.name} …", end=" ", flush=True)
            places = Places(sources, data, Path(work))
            row, said = _compare(program, places, known.get(program.name, {}))
            print(f"{row.verdict} {row.why}", flush=True)
            rows.append(row)
            if args.results is not None:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row) | {"said": said}) + "\n")
    _print_table(rows)
    if any(row.verdict == "differs" for row in rows):
        sys.exit("a used peak is not MindSpore's own")


def _own_figures(results: Path | None) -> dict[str, dict[int, Peaks]]:
    """What earlier runs found."""
    if results is None or not results.exists():
        return {}
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {row["name"]: {int(rank): Peaks(**peaks) for rank, peaks in row["own"].items()} for row in rows}


def _compare(program: Program, places: Places, known: dict[int, Peaks]) -> tuple[Row, dict[str, str]]:
    row, said = Row(program.name, own=dict(known)), {}
    out = places.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    done = _run(_windtunnel(program, out), program, places, {})
    said["ours"] = done[-6000:]
    if (out / "report.json").exists():
        document = json.loads((out / "report.json").read_text(encoding="utf-8"))
        for rank in document["ranks"]:
            if rank["status"] == "ok" and rank["rank"] in program.ranks:
                row.ours[rank["rank"]] = Peaks(rank["peak_bytes"], rank["peak_with_fragments_bytes"])
                row.steps = rank["steps"]
    for rank in set(program.ranks) - set(row.own):
        own, text = _mindspore(program, rank, places, {})
        said[f"own {rank}"] = text[-6000:]
        if own is not None:
            row.own[rank] = own
    for rank in set(row.ours) & set(row.own):
        if row.ours[rank] != row.own[rank]:
            again, _ = _mindspore(program, rank, places, {"MS_DEV_LAUNCH_BLOCKING": "1"})
            row.in_order |= {} if again is None else {rank: again}
    used = [
        row.ours[rank].used == row.reference(rank)[0].used
        for rank in program.ranks
        if rank in row.ours and rank in row.own
    ]
    if len(used) == len(program.ranks):
        row.verdict = "equal" if all(used) else "differs"
    elif row.own or row.ours:
        row.verdict = "failed" if row.own else "MindSpore's own failed"
    else:
        row.verdict = "failed in both"
    if row.verdict != "equal":
        failed = _FAILED.search(said["ours"])
        row.why = failed[1][:200] if failed else ""
    return row, said


def _windtunnel(program: Program, out: Path) -> list[str]:
    ranks = ["--ranks", ",".join(map(str, program.ranks))] if program.n_devices > 1 else []
    size = ["--world-size", str(program.n_devices)] if program.n_devices > 1 and not program.typed else []
    typed = program.typed or program.words
    return [
        sys.executable, "-m", "windtunnel.commands.main", "run", "--force", "--no-html", "--no-advise", "--out", str(out),
        *size, *ranks, *typed,
    ]  # fmt: skip


def _mindspore(program: Program, rank: int, places: Places, more: dict[str, str]) -> tuple[Peaks | None, str]:
    """What MindSpore's own dry run of one rank says, and its output."""
    tracker = places.work / "tracker"
    home = location_of("mindspore")
    assert home is not None, "run this with the interpreter that has MindSpore"
    shutil.rmtree(tracker, ignore_errors=True)
    variables = {
        "MS_SIMULATION_LEVEL": "1",
        "MS_ALLOC_CONF": f"memory_tracker:True,memory_tracker_path:{tracker}",
    } | more
    if program.n_devices > 1:
        number = str(program.n_devices)
        variables |= {
            "RANK_SIZE": number,
            "RANK_ID": str(rank),
            "MS_WORKER_NUM": number,
        }  # as msrun sets them
    text = _run([sys.executable, *program.words], program, places, stubs_for(home).environment() | variables)
    found = next(iter(tracker.rglob("memory_block.csv")), None)
    printed = _USED.search(text)
    if found is None or printed is None or not text.endswith(_ENDED_WELL):
        return None, text
    with found.open(encoding="utf-8") as file:
        rows = [
            (int(row["actual_used_memory"]), int(row["actual_peak_memory"])) for row in csv.DictReader(file)
        ]
    peaks = Peaks(max(used for used, _ in rows), max(actual for _, actual in rows))
    assert peaks.used // _MIB == int(printed[1]), "its table and its log disagree"
    return peaks, text


def _run(command: list[str], program: Program, places: Places, variables: dict[str, str]) -> str:
    """Run to the end, and return what was printed."""
    folder = _fresh(program, places)
    found = {name: value.replace("{folder}", str(folder)) for name, value in program.variables.items()}
    environment = os.environ | found | variables
    repository = program.folder.partition("/")[0]
    packages = places.sources / f"{repository}-packages"
    paths = [variables.get("PYTHONPATH"), str(folder), str(packages), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    try:
        done = subprocess.run(
            command, cwd=folder / program.start_in, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return f"{error.stdout or ''}\nFailed: did not end within {_SECONDS} s"
    return f"{done.stdout}\nexit code {done.returncode}"


def _fresh(program: Program, places: Places) -> Path:
    """A copy of the program's folder, with its data beside it: the fetched sources stay as they are."""
    folder = places.work / "program"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(places.sources / program.folder, folder, ignore=shutil.ignore_patterns(".git"))
    for place, what in program.data.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(places.data / what)
    return folder


def _print_table(rows: list[Row]) -> None:
    print("\n| program | rank | steps | used, bytes | MindSpore's own | with fragments | MindSpore's own |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        for rank in sorted(set(row.ours) & set(row.own)):
            ours, (own, mark) = row.ours[rank], row.reference(rank)
            cells = [row.name, str(rank), str(row.steps), f"{ours.used:,}", f"{own.used:,}{mark}",
                     f"{ours.with_fragments:,}", f"{own.with_fragments:,}{mark}"]  # fmt: skip
            print("| " + " | ".join(cells) + " |")
    n_equal = sum(row.verdict == "equal" for row in rows)
    compared = [row for row in rows if row.verdict in ("equal", "differs")]
    same = sum(all(row.reference(rank)[0] == ours for rank, ours in row.ours.items()) for row in compared)
    print(
        f"\n{len(rows)} programs, {len(compared)} compared: used peak equal to the byte in {n_equal}, "
        f"with fragments too in {same}"
    )


if __name__ == "__main__":
    main()
