"""A rank that a signal kills: where it was, from what the dying interpreter writes."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from windtunnel.session.rank_crash import crash_of, watch_for_crashes


def _die_in_a_child(folder, die):
    child = os.fork()
    if child == 0:
        try:
            watch_for_crashes(folder)
            exec(compile("def own():\n    die()\nown()", "/home/me/train.py", "exec"), {"die": die})
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_the_line_of_a_crash_is_known_and_its_file_taken_away(tmp_path, number):
    def die():
        os.kill(os.getpid(), number)

    assert _die_in_a_child(tmp_path, die) == -number
    assert crash_of(tmp_path).startswith("at test_rank_crash.py:")
    assert list(tmp_path.iterdir()) == []
    assert crash_of(tmp_path) == ""


def test_frames_of_libraries_are_not_the_users_line(tmp_path):
    library = f"{sys.prefix}/lib/python3/site-packages/torch/jit/_script.py"
    (tmp_path / "crash.txt").write_text(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        f'  File "{library}", line 12 in write\n'
        f'  File "{library}", line 800 in save\n'
        '  File "/home/me/windtunnel/capture/torch_export.py", line 3 in save\n'
        '  File "/home/me/train.py", line 41 in main\n'
        '  File "/home/me/train.py", line 50 in <module>\n'
    )
    assert crash_of(tmp_path) == "at train.py:41, in save of torch/jit/_script.py"


def test_a_process_that_ends_well_leaves_no_words(tmp_path):
    assert _die_in_a_child(tmp_path, lambda: None) == 0
    assert crash_of(tmp_path) == ""
