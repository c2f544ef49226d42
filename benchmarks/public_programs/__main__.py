"""Public PyTorch scripts, unmodified, through `windtunnel run --level 1`: which run, and why the others do not.

    python -m benchmarks.public_programs SOURCES [--only WORD …] [--cache FOLDER] [--results FILE]

    SOURCES: a folder with what was fetched, by the name of its repository (examples, nanoGPT, …); a repository that is
    missing is passed over. Packages that a repository needs in versions of its own are looked for in
    SOURCES/nanoGPT-packages and so on, for `pip install --target`

    a case ──> its repository, copied, with data made here ──> `windtunnel run` ──> report.json, exit code ──> a row

Run with an interpreter that has what the scripts import: docs/programs.md lists the packages. No file of a repository is
edited; data that it reads and does not have are put beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.public_programs.case import Case
from benchmarks.public_programs.cases import CASES
from benchmarks.public_programs.data import data_folder

_FAILED = re.compile(r"^(?:windtunnel: )?Failed: (.*)", re.MULTILINE)
_LAST = 6000  # characters of output that are kept
_RAN = (0, 4)  # 4: it ran and does not fit


@dataclass
class Row:
    """What became of one case."""

    repository: str
    script: str
    mode: str
    expected: str
    exit_code: int | None
    peak_bytes: int | None
    steps: int
    seconds: float
    sentence: str
    said: str

    @property
    def ran(self) -> bool:
        return self.exit_code in _RAN

    @property
    def as_expected(self) -> bool:
        return self.ran != bool(self.expected)


@dataclass(frozen=True)
class Places:
    """Where things are."""

    sources: Path
    cache: Path
    work: Path
    seconds: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="folder of the fetched repositories")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name contains one of these words")
    parser.add_argument("--cache", type=Path, help="folder for the data that are made, to be used again")
    parser.add_argument(
        "--results", type=Path, help="append a JSON line for every case; those in it are not run again"
    )
    parser.add_argument("--seconds", type=int, default=300, help="a case that takes longer has failed")
    args = parser.parse_args()
    sources = args.sources.absolute()
    chosen = [
        case
        for case in CASES
        if (sources / case.repository).is_dir()
        and (not args.only or any(word in case.name for word in args.only))
    ]
    if not chosen:
        parser.error(f"no case was found in {sources}: fetch the repositories into folders of their names")
    known = _earlier(args.results)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        cache = args.cache.absolute() if args.cache else Path(work) / "data"
        cache.mkdir(parents=True, exist_ok=True)
        places = Places(sources, cache, Path(work), args.seconds)
        for number, case in enumerate(chosen, 1):
            if case.name in known:
                rows.append(known[case.name])
                continue
            print(f"[{number}/{len(chosen)}] {case.name} …", end=" ", flush=True)
            row = run_case(case, places)
            print("ran" if row.ran else f"failed: {row.sentence[:160]}", f"({row.seconds:.0f} s)", flush=True)
            rows.append(row)
            if args.results is not None:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    print("\n" + table(rows))
    return int(any(not row.as_expected for row in rows))


def _earlier(results: Path | None) -> dict[str, Row]:
    """What earlier runs found, by the name of the case."""
    if results is None or not results.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    return {f"{row.repository} {row.script} [{row.mode}]": row for row in rows}


def run_case(case: Case, places: Places) -> Row:
    """Run it to its end, or to the end of its time."""
    folder, out = _fresh(case, places), places.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    options = ("--level", "1", "--force", "--no-html", "--no-advise", "--out", str(out), *case.options)
    command = [sys.executable, "-m", "windtunnel", "run", *options, *case.words]
    begin = time.monotonic()
    exit_code, said = _run(
        command, folder / case.start_in, _environment(case, folder, places), places.seconds
    )
    seconds = time.monotonic() - begin
    peak, steps = None, 0
    if (out / "report.json").exists():
        ranks = json.loads((out / "report.json").read_text(encoding="utf-8")).get("ranks", [])
        peak = max((rank.get("peak_with_fragments_bytes") or 0 for rank in ranks), default=None)
        steps = max((rank.get("steps") or 0 for rank in ranks), default=0)
    sentence = ""
    if exit_code not in _RAN:
        found = _FAILED.search(said)
        last = said.strip().splitlines()[-1:] or [""]
        sentence = (
            found[1]
            if found
            else last[0]
            if exit_code is not None
            else f"did not end within {places.seconds} s"
        )
    return Row(
        case.repository, _shown(case), case.mode, case.fails, exit_code, peak, steps, round(seconds, 1),
        sentence.replace(str(folder), "").strip()[:400], said[-_LAST:],
    )  # fmt: skip


def _shown(case: Case) -> str:
    return case.script if case.start_in == "." else f"{case.start_in}/{case.script}"


def _environment(case: Case, folder: Path, places: Places) -> dict[str, str]:
    own = {name: value.replace("{data}", str(places.cache)) for name, value in case.variables.items()}
    for value in case.variables.values():
        if value.startswith("{data}/"):
            data_folder(places.cache, value.removeprefix("{data}/"))
    paths = [
        *(str(data_folder(places.cache, name)) for name in case.packages),
        *(str(folder / path) for path in case.paths),
        str(places.sources / f"{case.repository}-packages"),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | own
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    home = places.work / "home"  # nothing that this user has downloaded is found
    home.mkdir(exist_ok=True)
    environment["HOME"] = str(home)
    return environment


def _run(
    command: list[str], folder: Path, environment: dict[str, str], seconds: int
) -> tuple[int | None, str]:
    started = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGINT)
        try:
            said, _ = started.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            said, _ = started.communicate()
        return None, said
    return started.returncode, said


def _fresh(case: Case, places: Places) -> Path:
    """A copy of the repository, with its data beside it: the fetched sources stay as they are."""
    folder = places.work / case.repository
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        places.sources / case.repository,
        folder,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", "records"),
    )
    for place, what in case.data.items():
        _link(folder / case.start_in / place, data_folder(places.cache, what))
    return folder


def _link(target: Path, source: Path) -> None:
    """A folder that the repository has gets the files that it lacks."""
    target = Path(os.path.normpath(target))
    if target.is_dir() and source.is_dir():
        for child in source.iterdir():
            if not child.name.startswith("."):
                _link(target / child.name, child)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def table(rows: list[Row]) -> str:
    """As docs/programs.md has it."""
    lines = [
        "| repository | script | mode | exit | steps | peak, MiB | seconds | sentence |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.1f}"
        code = "time" if row.exit_code is None else str(row.exit_code)
        cells = (
            row.repository,
            f"`{row.script}`",
            row.mode,
            code,
            str(row.steps),
            peak,
            f"{row.seconds:.0f}",
            row.sentence.replace("|", "\\|"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    n_ran = sum(row.ran for row in rows)
    unexpected = [row for row in rows if not row.as_expected]
    lines.append(f"\n{len(rows)} cases, {n_ran} ran; {len(unexpected)} otherwise than expected")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
