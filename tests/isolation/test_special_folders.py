"""Folders that a dry run has to write to itself are no place where a script may do harm."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from tests.isolation.runner import MODES, PROGRAMS, protection_expected, site, start, wait

SHARED_MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=pytest.mark.thorough) for mode in MODES])
def test_files_in_shared_memory_stay(mode):
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("there is no folder of shared memory here")
    mine = SHARED_MEMORY / f"isolation-{uuid.uuid4().hex}"
    with site(mode, "shared_memory") as at:
        mine.write_text("of another program")
        try:
            if mode == "user":
                os.chown(mine, at.root.stat().st_uid, at.root.stat().st_gid)
            _, said = wait(at, start(at, PROGRAMS / "removes.py", mine, name="shared_memory"))
            is_there = mine.exists()
        finally:
            mine.unlink(missing_ok=True)
    if not is_there and protection_expected(mode) == "guard":
        pytest.xfail("the guard leaves shared memory open to everything")
    assert is_there, said


def test_a_folder_with_other_files_is_no_folder_for_a_report():
    with site("as_is", "report_folder") as at:
        at.out.mkdir()
        mine = at.out / "checkpoint-100" / "model.pt"
        mine.parent.mkdir()
        mine.write_text("of an earlier training")
        code, said = wait(at, start(at, PROGRAMS / "removes.py", at.out, name="report_folder"))
        assert mine.read_text() == "of an earlier training", said
        assert "is not from an earlier run; files in it are not protected from the script" in " ".join(
            said.split()
        )
        assert code == 2
