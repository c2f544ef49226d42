"""A dry run that is interrupted or killed while its script deletes leaves every file as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from tests.isolation.runner import MODES, PROGRAMS, SCRIPTS, Site, leftovers, report_of, site, start, wait
from tests.isolation.tree import fingerprint

SECONDS = 60


def _in_modes() -> list:
    return [pytest.param(mode, marks=() if mode == "as_is" else pytest.mark.thorough) for mode in MODES]


@pytest.mark.parametrize("mode", _in_modes())
def test_an_interrupted_run_changes_nothing_and_leaves_nothing(mode):
    with site(mode, "interrupted") as at:
        before = fingerprint(at.place)
        process = start(at, PROGRAMS / "deletes_and_waits.py", name="interrupted")
        _wait_until_deleted(at, process)
        assert fingerprint(at.place) == before
        process.send_signal(signal.SIGINT)
        code, said = wait(at, process)
        assert code == 130, said
        assert fingerprint(at.place) == before
        assert leftovers(at) == []
        listed = [(each["what"], each["path"]) for each in report_of(at)["files"]["changes"]]
        assert listed == [("removed", str(at.place / "interrupted" / "here" / "ck"))]


@pytest.mark.parametrize("mode", _in_modes())
def test_a_killed_run_changes_nothing_and_the_next_one_sweeps_up(mode):
    with site(mode, "killed", "json_dump") as at:
        before = fingerprint(at.place)
        process = start(at, PROGRAMS / "deletes_and_waits.py", name="killed")
        rank = _wait_until_deleted(at, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _wait_for_end_of(rank)
        assert fingerprint(at.place) == before
        code, said = wait(at, start(at, SCRIPTS / "formats" / "json_dump.py", name="json_dump"))
        assert code == 0, said
        assert leftovers(at) == []
        assert fingerprint(at.place) == before


def _wait_until_deleted(at: Site, process) -> int:
    """The process id of the rank, once its script has deleted."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        said = (at.root / "said.txt").read_text(errors="replace")
        for line in said.splitlines():
            if line.startswith("DELETED "):
                return int(line.split()[1])
        time.sleep(0.05)
    pytest.fail(f"the script did not come to delete: {(at.root / 'said.txt').read_text(errors='replace')}")


def _wait_for_end_of(rank: int) -> None:
    """A rank notices that nobody waits for it any more."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            os.kill(rank, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(rank, signal.SIGKILL)
    pytest.fail(f"rank {rank} goes on though windtunnel was killed {SECONDS} s ago")
