"""What protecting the disk costs a run: CPU time to enter, for the script's writes, for the list and for the removal.

    python -m benchmarks.isolation_cost ──> one row for each protection available here

A whole run of a three-line script takes seconds, most of them importing torch, and its spread hides what is measured
here. So a forked child enters the protection, writes, replaces and removes a file, and does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

from windtunnel.isolation.entrance import enter
from windtunnel.isolation.layer import Isolation

REPEATS = 5
NOBODY = 65534
_SET_DUMPABLE = 4


def main() -> None:
    print(f"CPU seconds, the median of {REPEATS}: user + system time of the parent and of the process inside")
    _show("as the current user", "auto")
    _show("the guard", "guard")
    if os.geteuid() == 0:
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # as after the exec that a login does
            _show("as another user", "auto")
            os._exit(0)
        os.waitpid(child, 0)


def _show(name: str, kind: str) -> None:
    found = sorted(_cost(kind) for _ in range(REPEATS))
    seconds, protection = found[len(found) // 2]
    print(f"{name:<24} {seconds:6.3f} s   ({protection})", flush=True)


def _cost(kind: str) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "out").mkdir()
        for name in ("replaced", "removed"):
            (here / name).write_text("before")
        before = _cpu()
        isolation = Isolation([here / "out"], kind=kind)
        try:
            _run(isolation, lambda: _script(here))
            files = isolation.files()
        finally:
            isolation.remove()
        spent = _cpu() - before
        changed = [(change.what, Path(change.path).name) for change in files.changes if folder in change.path]
        if changed != [("removed", "removed"), ("replaced", "replaced"), ("written", "written")]:
            raise SystemExit(f"the list of changes is wrong: {changed}")
        return spent, files.sentence


def _script(here: Path) -> None:
    (here / "written").write_text("new")
    (here / "replaced").write_text("after")
    (here / "removed").unlink()


def _run(isolation: Isolation, script: Callable[[], None]) -> None:
    order = isolation.order()
    child = os.fork()
    if child == 0:
        try:
            enter(order)
            script()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _cpu() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


if __name__ == "__main__":
    main()
