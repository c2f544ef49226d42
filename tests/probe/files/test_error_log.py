"""The probe's own errors: one block each, counted, and never raised."""

from __future__ import annotations

import os

from windtunnel.probe.files.notices import ERROR_LOG_NAME, ErrorLog


def test_no_error_no_file(tmp_path):
    log = ErrorLog(tmp_path)
    assert (log.count, log.summary(), os.listdir(tmp_path)) == (0, None, [])


def test_a_block_has_time_message_and_stack(tmp_path):
    log = ErrorLog(tmp_path / "new" / "folder")
    try:
        raise ValueError("odd tensor")
    except ValueError as error:
        log.record("statistics of Tensor.add.0.forward", error)
    log.record("without an exception")
    text = (tmp_path / "new" / "folder" / ERROR_LOG_NAME).read_text()
    blocks = text.strip().split("\n\n")
    assert len(blocks) == log.count == 2
    assert blocks[0].startswith("[20")
    assert "] statistics of Tensor.add.0.forward\nCall stack" in blocks[0]
    assert blocks[0].endswith("ValueError: odd tensor")
    assert "test_error_log.py" in blocks[0]
    assert blocks[1].endswith('log.record("without an exception")')
    assert log.summary() == (
        "2 errors while collecting, so some values are missing; the first: statistics of Tensor.add.0.forward; "
        f"see {tmp_path / 'new' / 'folder' / ERROR_LOG_NAME}"
    )


def test_an_error_in_every_call_does_not_fill_the_disk(tmp_path):
    log = ErrorLog(tmp_path)
    for _ in range(1500):
        log.record("again", ValueError())
    assert (tmp_path / ERROR_LOG_NAME).read_text().count("] again\n") == 1000
    assert log.summary().startswith("1500 errors")
    assert "the first 1000 in the file" in log.summary()


def test_a_log_that_cannot_be_written_is_still_counted(tmp_path):
    (tmp_path / "file").write_text("in the way")
    log = ErrorLog(tmp_path / "file")
    log.record("lost \udcff", ValueError("x"))
    assert log.count == 1
    assert "1 error while collecting" in log.summary()


def test_an_exception_that_cannot_be_shown_is_still_counted(tmp_path):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    log = ErrorLog(tmp_path)
    log.record("bad", Bad())
    assert log.count == 1
