"""The kernel denies every change outside the allowed folders, to the process and to what it starts."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolation.forked import in_fork
from tests.isolation.test_shadow_property import make_tree, play, snapshot
from windtunnel.isolation import landlock
from windtunnel.isolation.landlock import deny_writes
from windtunnel.isolation.shadow import install_shadow


def has_landlock() -> bool:
    def script() -> bool:
        try:
            deny_writes([])
        except OSError:
            return False
        return True

    return in_fork(script)


needs_landlock = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not has_landlock(), reason="this kernel has no Landlock"
)


@pytest.fixture
def folders(tmp_path):
    real, allowed = tmp_path / "real", tmp_path / "allowed"
    make_tree(real)
    allowed.mkdir()
    return real, allowed


@needs_landlock
@pytest.mark.parametrize(
    "change",
    [
        lambda: Path("f").write_text(""),
        lambda: os.open("f", os.O_RDWR),
        lambda: Path("new").touch(),
        lambda: os.truncate("f", 0),
        lambda: os.mkdir("new"),
        lambda: os.rmdir("b"),
        lambda: os.unlink("f"),
        lambda: os.rename("f", "new"),
        lambda: os.rename("f", "a/new"),
        lambda: os.link("f", "a/new"),
        lambda: os.symlink("f", "new"),
        lambda: os.mkfifo("new"),
        lambda: shutil.rmtree("a"),
    ],
    ids=range(13),
)
def test_nothing_outside_can_be_changed(folders, change):
    real, allowed = folders
    before = snapshot(real)

    def script():
        os.chdir(real)
        deny_writes([allowed])
        try:
            change()
        except OSError as problem:
            return type(problem).__name__
        return "no error"

    # A link to another folder is refused as if that were on another disk.
    assert in_fork(script) in ("PermissionError", "OSError")
    assert snapshot(real) == before


@needs_landlock
def test_allowed_folders_and_files_can_be_changed(folders):
    real, allowed = folders

    def script():
        version = deny_writes([allowed, real / "f", real / "not there"])
        (allowed / "sub").mkdir()
        (allowed / "x").write_text("x")
        os.rename(allowed / "x", allowed / "sub/x")
        os.link(allowed / "sub/x", allowed / "y")
        (real / "f").write_text("a single file")
        Path("/dev/null").write_text("gone")
        multiprocessing.get_context("fork").Lock()  # lives in /dev/shm
        return version

    assert in_fork(script) >= 1
    assert sorted(path.name for path in allowed.rglob("*")) == ["sub", "x", "y"]
    assert (real / "f").read_text() == "a single file"


@needs_landlock
def test_programs_are_denied_too_and_can_still_read(folders):
    real, allowed = folders
    before = snapshot(real)

    def script():
        deny_writes([allowed])
        removed = subprocess.run(["rm", "-rf", str(real)], capture_output=True, text=True)
        read = subprocess.run(["cat", str(real / "a/f")], capture_output=True, text=True)
        return removed.returncode, "Permission denied" in removed.stderr, read.stdout

    assert in_fork(script) == (1, True, "a of old")
    assert snapshot(real) == before


def test_each_version_denies_what_it_knows():
    truncate, refer, ioctl = 1 << 14, 1 << 13, 1 << 15
    known = {abi: landlock._rights(abi) for abi in range(1, 8)}
    assert [abi for abi in known if known[abi] & refer] == [2, 3, 4, 5, 6, 7]
    assert [abi for abi in known if known[abi] & truncate] == [3, 4, 5, 6, 7]
    assert not any(rights & ioctl for rights in known.values())


@needs_landlock
def test_the_shadow_lives_with_the_first_version(folders, tmp_path):
    """Which answers EXDEV to every move from one folder to another, allowed or not."""
    real, base = folders
    before = snapshot(real)
    make_tree(tmp_path / "disk")

    def script():
        moves = [
            (22, "a", "b/a"),
            (22, "b/a/f", "f"),
            (12, "new", ""),
            (22, "to_a", "new/to_a"),
            (22, "b", "new/b"),
        ]
        expected = play(moves, tmp_path / "disk")
        landlock._restrict(ctypes.CDLL(None, use_errno=True), landlock._rights(1), [base])
        install_shadow(base, [])
        return expected, play(moves, real)

    expected, got = in_fork(script)
    assert all(result[2] is None for result in expected[0])
    assert got == expected
    assert snapshot(real) == before


def test_other_systems_have_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="Landlock exists only on Linux"):
        deny_writes([])
