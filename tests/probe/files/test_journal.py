"""What a killed process leaves is read up to its last whole line, and only that."""

from __future__ import annotations

import json
import os

import pytest

from windtunnel.probe.files.journal import (
    JOURNAL_NAME,
    Journal,
    is_being_written,
    journal_entries,
    journal_header,
)
from windtunnel.probe.files.recover import recover_folder
from windtunnel.probe.files.step_writer import StepWriter

HEADER = {"task": "statistics", "level": "mix"}
ENTRIES = [
    ("entry", "A", '{"Max": NaN}'),
    ("stack", "A", '["f", "g"]'),
    ("parent", "A", '"P"'),
    ("entry", "B", "{}"),
    ("stack", "B", '["f", "g"]'),
    ("parent", "B", "null"),
]


@pytest.fixture
def killed(tmp_path):
    """A folder as SIGKILL leaves it: opened, two calls, never flushed; the lock is gone with the process."""
    folder = StepWriter(tmp_path, header=HEADER, flush_seconds=1000)
    folder.add_call("A", '{"Max": NaN}', ("f", "g"), "P", True)
    folder.add_call("B", "{}", ("f", "g"), None, True)
    (tmp_path / "copy").write_bytes((tmp_path / JOURNAL_NAME).read_bytes())
    os.rename(tmp_path / "copy", tmp_path / JOURNAL_NAME)
    return tmp_path


def test_every_record_is_on_disk_before_the_call_returns(killed):
    assert list(journal_entries(killed)) == ENTRIES
    assert journal_header(killed) == ("dump.json", HEADER)


def test_a_journal_cut_off_anywhere_gives_the_whole_records_before_the_cut(killed):
    path = killed / JOURNAL_NAME
    whole = path.read_bytes()
    seen = set()
    for n_bytes in range(len(whole) + 1):
        path.write_bytes(whole[:n_bytes])
        found = list(journal_entries(killed))
        assert found == ENTRIES[: len(found)]
        assert len(found) == len(ENTRIES) if n_bytes == len(whole) else True
        seen.add(len(found))
    assert seen == set(range(len(ENTRIES) + 1))


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"\0\0\0\n", b"]\n", b"[]\n", b'["entry", "A", {]\n', b'["entry", 3, {}]\n', b'["other", "A", 1]\n',
     b'["stack", "A", 7]\n', b"[" * 5000 + b"]\n", b"\xff\xfe]\n", b'["entry", "A"]\n'],
)  # fmt: skip
def test_lines_that_are_not_records_are_passed_over(tmp_path, line):
    (tmp_path / JOURNAL_NAME).write_bytes(line + b'["entry", "B", 1]\n')
    assert list(journal_entries(tmp_path)) == [("entry", "B", "1")]
    assert journal_header(tmp_path) is None
    assert recover_folder(tmp_path) == 0


def test_a_folder_without_a_journal_has_no_entries(tmp_path):
    assert list(journal_entries(tmp_path)) == []
    assert list(journal_entries(tmp_path / "missing")) == []
    assert journal_header(tmp_path) is None
    assert recover_folder(tmp_path) == 0


def test_a_record_cut_off_by_a_full_disk_does_not_spoil_the_next(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.write(b'["entry", "A", 1]\n')
    real_write = os.write
    room = [9]

    def small_disk(fd, data):
        n_bytes = min(room[0], len(data))
        if n_bytes == 0:
            raise OSError(28, "No space left on device")
        room[0] -= n_bytes
        return real_write(fd, data[:n_bytes])

    monkeypatch.setattr(os, "write", small_disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            journal.write(b'["entry", "B", 2]\n')
    room[0] = 1000
    journal.write(b'["entry", "C", 3]\n')
    assert list(journal_entries(tmp_path)) == [("entry", "A", "1"), ("entry", "C", "3")]
    journal.close()


def test_recovery_completes_the_files(killed):
    assert recover_folder(killed) == 2
    text = (killed / "dump.json").read_text()
    assert '"A": {"Max": NaN}' in text
    assert json.loads(text)["complete"] is False
    assert list(json.loads(text)["data"]) == ["A", "B"]
    assert json.loads((killed / "stack.json").read_text()) == {"0": [["A", "B"], ["f", "g"]]}
    assert json.loads((killed / "construct.json").read_text()) == {"A": "P", "B": None}
    assert not (killed / JOURNAL_NAME).exists()
    assert recover_folder(killed) == 0


def test_recovery_keeps_what_only_the_files_have(killed):
    data = {"Old": {"Max": 1.0}, "B": 1}
    (killed / "dump.json").write_text(json.dumps(HEADER | {"complete": False, "data": data}))
    (killed / "construct.json").write_text('{"Old": null}')
    (killed / "stack.json").write_text('{"0": [["Old"], ["e"]]}')
    assert recover_folder(killed) == 3
    assert list(json.loads((killed / "dump.json").read_text())["data"].items())[:2] == [
        ("Old", {"Max": 1.0}),
        ("B", {}),
    ]
    assert json.loads((killed / "construct.json").read_text()) == {"Old": None, "A": "P", "B": None}
    assert json.loads((killed / "stack.json").read_text()) == {
        "0": [["Old"], ["e"]],
        "1": [["A", "B"], ["f", "g"]],
    }


def test_recovery_survives_damaged_files(killed):
    (killed / "dump.json").write_text('{"data": ')
    (killed / "stack.json").write_text("[]")
    assert recover_folder(killed) == 2


def test_a_living_process_is_seen_and_left_alone(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry("A", "1")
    assert is_being_written(tmp_path)
    assert recover_folder(tmp_path) == 0
    assert list(journal_entries(tmp_path)) == [("entry", "A", "1")]
    folder.close()
    assert not is_being_written(tmp_path)
