"""A rank that looks for a file after a barrier waits for the ranks that may have written it before theirs."""

from __future__ import annotations

import builtins
import io
import os
import time
from pathlib import Path

import pytest

from windtunnel.capture.pytorch.world.shared_files import SharedFiles


class Peers:
    """Messages whose peers write a file when they are waited for."""

    is_alone = False

    def __init__(self, path: Path | None) -> None:
        self.path, self.posted, self.asked = path, [], []

    def post(self, key: str, payload: bytes) -> None:
        self.posted.append(key)

    def fetch(self, key: str, sender: int) -> bytes | None:
        self.asked.append((key, sender))
        if self.path is not None:
            self.path.write_text("saved")
        return b""


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    def make(path, rank=1, world_size=2):
        for module, name in (
            (os, "stat"),
            (os, "listdir"),
            (os, "scandir"),
            (builtins, "open"),
            (io, "open"),
        ):
            monkeypatch.setattr(module, name, getattr(module, name))
        for able in ("supports_fd", "supports_dir_fd", "supports_follow_symlinks"):
            monkeypatch.setattr(os, able, set(getattr(os, able)))
        peers = Peers(path)
        files = SharedFiles(rank, world_size, rank % 8, peers, time.time() - 1)
        files.install()
        return files, peers

    return make


def test_a_file_that_another_rank_saved_is_there_after_the_barrier(ranks, tmp_path):
    path = tmp_path / "model.pt"
    files, peers = ranks(path)
    assert not path.exists()
    files.meet("world", (0, 1))
    with open(path) as file:
        assert file.read() == "saved"
    assert peers.posted == ["met:world:1:1"]
    assert peers.asked == [("met:world:1:0", 0)]


@pytest.mark.parametrize(
    "look", [os.path.exists, lambda p: os.listdir(p.parent), lambda p: list(p.parent.glob("*.pt"))]
)
def test_every_way_of_looking_for_it_waits(ranks, tmp_path, look):
    path = tmp_path / "model.pt"
    files, _ = ranks(path)
    files.meet("world", (0, 1))
    assert look(path)


def test_nobody_is_waited_for_twice_or_without_a_barrier(ranks, tmp_path):
    files, peers = ranks(None)
    assert not (tmp_path / "a").exists()
    assert peers.asked == []
    files.meet("world", (0, 1))
    for name in "abc":
        assert not (tmp_path / name).exists()
    assert len(peers.asked) == 1
    files.meet("world", (0, 1))
    assert not (tmp_path / "a").exists()
    assert peers.asked[1:] == [("met:world:2:0", 0)]


def test_a_file_that_was_there_before_the_run_is_read_at_once(ranks, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("old")
    os.utime(path, (1, 1))
    files, peers = ranks(path)
    files.meet("world", (0, 1))
    assert path.read_text() == "old"
    assert peers.asked == []


def test_in_a_large_world_the_first_ranks_of_job_and_node_are_waited_for(ranks, tmp_path):
    files, peers = ranks(None, rank=19, world_size=1024)
    files.meet("world", range(1024))
    assert not (tmp_path / "a").exists()
    assert [sender for _, sender in peers.asked] == [0, 16]


def test_only_members_of_the_group_that_met_are_waited_for(ranks, tmp_path):
    files, peers = ranks(None, rank=3, world_size=4)
    files.meet("pair", (2, 3))
    assert not (tmp_path / "a").exists()
    assert [sender for _, sender in peers.asked] == [2]
