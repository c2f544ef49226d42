"""A rank that runs after another one does not find what the other has saved meanwhile."""

from __future__ import annotations

import builtins
import io
import os
import time
from pathlib import Path

import pytest

from windtunnel.capture.pytorch.world.later_files import LaterFiles


@pytest.fixture
def rank(monkeypatch):
    """A rank that began now, in a job that began a minute ago; returns how to tell it that it has met the others."""
    for module, name in ((os, "stat"), (os, "listdir"), (os, "scandir"), (builtins, "open"), (io, "open")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for able in ("supports_fd", "supports_dir_fd", "supports_follow_symlinks"):
        monkeypatch.setattr(os, able, set(getattr(os, able)))
    met: list[bool] = []
    LaterFiles(time.time() - 60, time.time(), lambda: bool(met)).install()
    return met


def _save(path: Path, seconds_ago: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("saved")
    when = time.time() - seconds_ago
    os.utime(path, (when, when))
    return path


def _can_open(path: Path) -> bool:
    try:
        with open(path):
            return True
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "finds",
    [os.path.exists, _can_open, lambda p: p.name in os.listdir(p.parent), lambda p: p in p.parent.glob("*")],
)
@pytest.mark.parametrize(("seconds_ago", "is_found"), [(30, False), (90, True), (-5, True)])
def test_only_what_was_saved_in_the_job_before_this_rank_is_overlooked(
    rank, tmp_path, finds, seconds_ago, is_found
):
    path = _save(tmp_path / "snapshot.pt", seconds_ago)
    assert bool(finds(path)) is is_found
    rank.append(True)
    assert finds(path)


def test_a_folder_is_made_again_and_its_older_contents_are_listed(rank, tmp_path):
    _save(tmp_path / "old" / "a", 90)
    for folder in ("old", "new"):
        _save(tmp_path / folder / "b", 30)
        os.makedirs(tmp_path / folder, exist_ok=True)
        os.utime(tmp_path / folder, (time.time() - 30,) * 2)
    assert os.listdir(tmp_path) == ["old"]
    assert os.listdir(tmp_path / "old") == ["a"]


def test_a_script_that_waits_for_a_file_finds_it(rank, tmp_path):
    path = _save(tmp_path / "ready", 30)
    assert [path.exists() for _ in range(21)] == [False] * 20 + [True]


def test_the_own_log_is_appended_to(rank, tmp_path):
    path = _save(tmp_path / "log.txt", 30)
    with path.open("a") as file:
        file.write("!")
    assert path.read_text() == "saved!"
