"""A file appears under its name only when it is complete."""

import os

import pytest

from windtunnel.whole_file import replace_file, whole_file


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "report.json"
    with whole_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_failed_write_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(b"old")

    def fail_halfway():
        with whole_file(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    with pytest.raises(ZeroDivisionError):
        replace_file(tmp_path, path.name, (bytes([1 // n]) for n in (1, 0)))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_file_of_many_buffers_is_written_in_order(tmp_path):
    replace_file(tmp_path, "x", (bytes([n]) * n for n in range(40)))
    assert (tmp_path / "x").read_bytes() == b"".join(bytes([n]) * n for n in range(40))
