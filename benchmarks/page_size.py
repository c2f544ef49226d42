"""How large is the page of a long run, and how long until a browser shows it?

    python -m benchmarks.page_size [MILLIONS_OF_EVENTS ...]

Two training runs, by `windtunnel run`: Qwen2.5-7B, whose steps repeat, and one whose every step is different. With more
events than a page can show, it must say what it left out. Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.report.browser import complaints, open_browser
from windtunnel.events.file import read_recording
from windtunnel.memory.allocation_list import rank_detail
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.report.page.rank_detail import detail_document

LIMIT_MB, LIMIT_S = 15, 3
_PATIENCE_S = 20
MILLIONS = (1.0, 3.0)
_ROOT = Path(__file__).parents[1]
_PROGRAMS = {
    "qwen25_7b.py": (str(_ROOT / "examples" / "qwen25_7b.py"), "--batch-size", "1"),
    "varied_steps.py": (str(_ROOT / "benchmarks" / "varied_steps.py"),),
}
# Which programs are run at which length: three million events of the larger one take long and add no information.
_LONGEST_OF = {"qwen25_7b.py": 1.5, "varied_steps.py": 100.0}

_READY = """
const [patience, done] = arguments;
setTimeout(() => done([null, ""]), patience);
(async () => {
  while (!window.windtunnel) await new Promise((next) => setTimeout(next, 2));
  await windtunnel.ready();
  done([performance.now(), document.querySelector("main").innerText]);
})();
"""


@dataclass(frozen=True)
class Found:
    program: str
    n_events: int
    run_s: float
    detail_s: float
    page_mb: float
    overview_s: float
    memory_s: float
    left_out: str

    def is_within(self) -> bool:
        return self.page_mb < LIMIT_MB and max(self.overview_s, self.memory_s) < LIMIT_S


def main(arguments: Sequence[str] = ()) -> int:
    if shutil.which("chromedriver") is None:
        print("the size of a page is not measured: no chromedriver here; as root, `make test` installs it")
        return 0
    millions = [float(word) for word in arguments] or list(MILLIONS)
    heads = f"{'run s':>6} {'detail s':>8} {'page MB':>8} {'overview s':>10} {'memory s':>8}"
    print(f"{'program':16} {'events':>10} {heads}  left out")
    found = []
    for n_millions in millions:
        for program, longest in _LONGEST_OF.items():
            if n_millions <= longest:
                one = measure(program, n_millions)
                found.append(one)
                times = f"{one.run_s:6.0f} {one.detail_s:8.1f} {one.page_mb:8.2f} {one.overview_s:10.2f} {one.memory_s:8.2f}"
                print(f"{one.program:16} {one.n_events:10,} {times}  {one.left_out or 'nothing'}", flush=True)
    print(f"limits: {LIMIT_MB} MB, {LIMIT_S} s until a view is ready, from the start of the navigation")
    return 0 if all(one.is_within() for one in found) else 1


def measure(program: str, n_millions: float) -> Found:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        short, _ = run(program, 3, folder)
        longer, _ = run(program, 5, folder)
        n_steps = 3 + round((n_millions * 1e6 - short) / ((longer - short) / 2)) + 1
        n_events, run_s = run(program, n_steps, folder)
        page = folder / "report.html"
        overview_s, _ = open_page(page, "overview")
        memory_s, text = open_page(page, "memory")
        sentence = re.search(r"[\d,]+ of [\d,]+ allocations", text)
        return Found(
            program,
            n_events,
            run_s,
            detail(folder),
            page.stat().st_size / 1e6,
            overview_s,
            memory_s,
            sentence[0] if sentence else "",
        )


def run(program: str, n_steps: int, folder: Path) -> tuple[int, float]:
    """Number of recorded events, and seconds for the whole command."""
    script, *options = _PROGRAMS[program]
    command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--device", "a100-80gb", "--force"]
    started = time.perf_counter()
    command += ["--out", str(folder), script, *options, "--steps", str(n_steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if not (folder / "report.html").exists():
        raise SystemExit(f"{program} left no page: {done.stderr[-2000:]}")
    return len(read_recording(folder / "rank0" / "recording.arrows")), seconds


def detail(folder: Path) -> float:
    """Seconds to describe every allocation: the larger part of writing a page."""
    recording = read_recording(folder / "rank0" / "recording.arrows")
    started = time.perf_counter()
    recorded = RecordedMemory(recording, lambda limit: Allocator.from_spec("cuda", device_bytes=limit), True)
    detail_document(rank_detail(recorded))
    return time.perf_counter() - started


def open_page(page: Path, view: str) -> tuple[float, str]:
    """Seconds from the start of the navigation until the view is drawn, and its text."""
    with open_browser(1280, 900) as driver:
        driver.get(f"file://{os.path.abspath(page)}#{view}")
        milliseconds, text = driver.execute_async_script(_READY, _PATIENCE_S * 1000)
        said = complaints(driver) + ([f"not ready within {_PATIENCE_S} s"] if milliseconds is None else [])
    if said:
        raise SystemExit(f"the {view} of {page} complains: {said[0]}")
    return milliseconds / 1000, text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
