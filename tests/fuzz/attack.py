"""Run a reader on mutated files and say how it fared.

    python -m tests.fuzz.attack "dump.json" 300 1     reader, mutations, first seed ──> one line of JSON

As a program it allows itself 1 GiB more memory than it has after its imports, and 10 seconds of work for each file.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.readers import READERS
from windtunnel.errors import WindtunnelError

__all__ = ["Outcome", "attack"]

_SECONDS = 10
_PATIENCE_S = 300
_MORE_BYTES = 1 << 30
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Outcome:
    reader: str
    n_read: int = 0
    n_refused: int = 0
    faults: list[str] = field(default_factory=list)  # seed and the end of the traceback
    worst_seconds: float = 0.0
    more_bytes: int = 0  # of resident memory at its highest, beyond what there was before


class TooSlow(BaseException):
    """A reader took longer than anyone waits."""


def attack(name: str, n: int, first_seed: int, folder: Path) -> Outcome:
    """Every reader either reads a mutated file or refuses it in one sentence, and prints no control characters."""
    reader = READERS[name]
    reader.files(folder)
    victim = folder / reader.victim
    valid = victim.read_bytes()
    outcome = Outcome(name)
    before = _peak_bytes()
    for seed in range(first_seed, first_seed + n):
        victim.write_bytes(reader.mutated(valid, Random(seed)))
        shown = io.StringIO()
        started = time.process_time()
        try:
            with redirect_stdout(shown), redirect_stderr(shown):
                code = reader.read(folder)
            refused = code == 2
            if "Traceback" in shown.getvalue():
                raise AssertionError(shown.getvalue()[-500:])
        except WindtunnelError as error:
            refused = True
            if "\n" in str(error):
                outcome.faults.append(f"seed {seed}: several lines: {str(error)[:200]}")
        except (Exception, TooSlow):
            refused = False
            outcome.faults.append(f"seed {seed}: {traceback.format_exc()[-600:]}")
        outcome.n_refused += refused
        outcome.n_read += not refused
        outcome.worst_seconds = max(outcome.worst_seconds, time.process_time() - started)
        if found := _CONTROLS.search(shown.getvalue()):
            outcome.faults.append(f"seed {seed}: prints {found.group()!r}")
    victim.write_bytes(valid)
    outcome.more_bytes = max(0, _peak_bytes() - before)
    return outcome


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    name, n, first_seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def too_slow(number: int, frame: object) -> None:
        raise TooSlow(f"more than {_SECONDS} s")

    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        reader.files(Path(folder))
        reader.read(Path(folder))  # what is imported and reserved on first use is not the file's doing
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # Time of this process, for a busy neighbour is not the reader's doing; and for what waits, a time that is long anywhere.
    signal.signal(signal.SIGPROF, too_slow)
    signal.signal(signal.SIGALRM, too_slow)
    total = Outcome(name)
    for seed in range(first_seed, first_seed + n):
        with tempfile.TemporaryDirectory() as folder:
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
            try:
                one = attack(name, 1, seed, Path(folder))
            except TooSlow:
                one = Outcome(name, faults=[f"seed {seed}: more than {_SECONDS} s"])
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
        total.n_read += one.n_read
        total.n_refused += one.n_refused
        total.faults += one.faults
        total.worst_seconds = max(total.worst_seconds, one.worst_seconds)
        total.more_bytes += one.more_bytes
    print(json.dumps(asdict(total)))


if __name__ == "__main__":
    main()
