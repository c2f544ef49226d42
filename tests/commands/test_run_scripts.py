"""`windtunnel run` with scripts that behave as real ones do, through the real command line."""

from __future__ import annotations

import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.commands.cli import COMMAND, PATIENCE_S, SCRIPTS, environment, read_json, windtunnel
from windtunnel.commands.screen import harmless
from windtunnel.events.file import read_recording
from windtunnel.session.local_executor import whole_lines


def test_every_ending_is_distinguished_and_no_rank_loses_the_others(tmp_path):
    done = windtunnel(
        "run", "--world-size", 10, "--nproc-per-node", 10, "--ranks", "0-9", "--jobs", 2,
        SCRIPTS / "endings.py",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    report = read_json(tmp_path / "windtunnel-out")
    assert [rank["rank"] for rank in report["ranks"]] == list(range(10))
    found = [(rank["status"], rank["error"] or "") for rank in report["ranks"]]
    expected = [
        ("ok", ""),
        ("ok", ""),
        ("failed", "the script exited with code 3"),
        ("failed", "the script exited with code 1: no more data"),
        ("failed", "the script called os._exit with exit code 5"),
        ("failed", "the script itself raised KeyboardInterrupt"),
        ("failed", "the script was killed (SIGKILL)"),
        ("failed", "the script crashed (SIGSEGV) at endings.py:"),
        ("failed", "the script needs the package 'no_such_package', which is not installed"),
        ("ok", ""),
    ]
    assert [status for status, _ in found] == [status for status, _ in expected]
    for (_, said), (_, sentence) in zip(found, expected, strict=True):
        assert said.startswith(sentence)
    for rank in (0, 1, 2, 3, 4, 5, 8, 9):  # all but those that died without a word
        assert report["ranks"][rank]["steps"] == 1
        assert report["ranks"][rank]["peak_bytes"] >= 8 << 20
    assert report["fits"] is False
    _check_screen_of_endings(done.stdout)
    log = (tmp_path / "windtunnel-out" / "rank8" / "run.log").read_text()
    assert "rank 8 begins to end" in log
    assert "ModuleNotFoundError: No module named 'no_such_package'" in log


def _check_screen_of_endings(text):
    assert "[rank 0] rank 0 begins to end" in text  # the first rank's output is shown
    assert "rank 1 begins to end" not in text  # the others' is in their logs ...
    assert "[rank 2] rank 2 begins to end" in text  # ... but for the first that failed
    *_, verdict, blank, next_line = text.splitlines()
    assert "failed as well" in verdict
    assert blank == ""
    assert next_line.startswith("next: less windtunnel-out/rank2/run.log")
    assert "By module" not in text


def test_a_script_with_the_habits_of_real_ones(tmp_path):
    folder = tmp_path / "my scripts ü"
    folder.mkdir()
    for name in ("manners.py", "neighbour.py"):
        shutil.copy(SCRIPTS / name, folder)
    # Its forgotten sleep of an hour is not waited for: that would be longer than the patience of `windtunnel`.
    done = windtunnel("run", folder / "manners.py", "--device", "mine", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for line in (
        "neighbour 42",
        'arguments ["--device", "mine", "--json"]',
        "launcher []",
        "200/200 batches",
        "a child",
        "thread (1048576,)",
    ):
        assert line in lines
    assert "really? nobody answers" in lines
    assert "bytes ��?? end" in lines
    assert not any(line.startswith("1/200") for line in lines)
    assert "Note: the script took no optimizer step: the memory is that of the part it ran." in done.stdout
    log = (tmp_path / "windtunnel-out" / "rank0" / "run.log").read_bytes()
    assert b"bytes \xff\xfe\x00\x07 end\n" in log
    assert b"x" * 50_000 in log
    assert b"x" * 3_000 not in done.stdout.encode()
    assert read_json(tmp_path / "windtunnel-out")["ranks"][0]["peak_bytes"] == 4 << 20


def test_a_module_runs_as_with_python_m(tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("WHO = 'a relative import'\n")
    (package / "mod.py").write_text("import sys\nfrom .part import WHO\nprint(WHO, sys.argv[1:], __name__)\n")
    done = windtunnel("run", "--level", 0, "-m", "pkg.mod", "-m", "x", cwd=tmp_path)
    assert done.returncode == 0
    assert "a relative import ['-m', 'x'] __main__" in done.stdout


def test_an_interrupt_keeps_what_ran_and_leaves_nothing_behind(tmp_path):
    process = _start(
        "run", "--world-size", "2", "--ranks", "all", "--jobs", "2", SCRIPTS / "forever.py", cwd=tmp_path
    )
    children = []
    for line in process.stdout:
        if "three steps" in line:
            children = _children(process.pid)
            break
    _await_text(tmp_path / "windtunnel-out" / "rank1" / "run.log", "three steps")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert children
    assert not any(_is_running(pid) for pid in children)
    ranks = read_json(tmp_path / "windtunnel-out")["ranks"]
    assert [rank["error"] for rank in ranks] == ["interrupted; the report covers what ran before"] * 2
    assert ranks[0]["steps"] >= 3
    assert ranks[0]["peak_bytes"] >= 16 << 20
    assert "Traceback" not in out + err


def test_a_full_disk_is_reported_and_what_was_written_is_readable(tmp_path):
    limit = 200_000  # bytes of a file: as a disk that is full, but only for this process

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = windtunnel("run", SCRIPTS / "forever.py", cwd=tmp_path, preexec_fn=limit_files)
    assert done.returncode == 2
    rank = read_json(tmp_path / "windtunnel-out")["ranks"][0]
    assert rank["status"] == "failed"
    assert rank["error"].startswith("cannot write ")
    assert "File too large" in rank["error"]
    assert rank["steps"] > 100
    assert len(read_recording(tmp_path / "windtunnel-out" / "rank0" / "recording.arrows")) > 1000
    assert "File too large" in done.stdout.split("Failed: ")[1].replace("\n", " ")


def test_a_reader_that_leaves_early_costs_nothing(tmp_path):
    process = _start("run", SCRIPTS / "train.py", cwd=tmp_path)
    assert process.stdout.readline() == "step 0 loss 1.0\n"
    process.stdout.close()
    process.stdout = None
    assert process.wait(timeout=PATIENCE_S) == 0
    assert process.communicate()[1] == ""
    assert read_json(tmp_path / "windtunnel-out")["ranks"][0]["steps"] == 3


@pytest.mark.parametrize(
    "mine", ["memory-notes.txt", ".report.html.mine", "rank0/mine.txt", "rankings/run.log"]
)
def test_a_folder_with_other_files_is_refused_as_it_is(tmp_path, mine):
    """It would be the one folder in which a script could do harm."""
    out = tmp_path / "out"
    (out / mine).parent.mkdir(parents=True)
    (out / mine).write_text("mine")
    (out / "report.json").write_text("from an earlier run")
    done = windtunnel("run", "--force", "--out", out, "--level", 0, SCRIPTS / "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert f"contains {mine}, which is not from an earlier run" in done.stderr
    assert (out / mine).read_text() == "mine"
    assert (out / "report.json").read_text() == "from an earlier run"


def test_force_removes_what_windtunnel_wrote(tmp_path):
    out = tmp_path / "out"
    (out / "rank0").mkdir(parents=True)
    (out / "rank7").mkdir()
    for ours in (
        "report.json",
        "report.html",
        ".unfinished-report.html-k2j4_x9a",  # killed while it was written
        "trace_view.json",
        "trace.html",
        "rank0/memory_block.csv",
        "rank7/recording.arrows",
        "rank7/run.log",
    ):
        (out / ours).write_text("from an earlier run")
    done = windtunnel(
        "run", "--force", "--no-html", "--out", out, "--level", 0, SCRIPTS / "train.py", cwd=tmp_path
    )
    assert done.returncode == 0
    kept = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert kept == ["rank0/recording.arrows", "rank0/run.log", "report.json"]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb", b"c\n"], [b"a", b"bc"]),
        ([b"\r1/3", b"\r2/3", b"\r3/3\n", b"next\n"], [b"3/3", b"next"]),
        ([b"1/2\r", b"2/2\r"], [b"2/2"]),
        ([b"windows\r\n"], [b"windows"]),
        ([b"windows\r", b"\n"], [b"windows"]),
        ([b"no newline"], [b"no newline"]),
        ([b"\n\n"], [b"", b""]),
    ],
)
def test_lines_come_whole_and_bars_in_their_last_state(chunks, lines):
    assert list(whole_lines(iter(chunks))) == lines


def test_a_terminal_gets_colours_but_no_control_sequences():
    assert harmless("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"
    assert harmless("\x1b[2Aup\x1b[K\x1b]0;title\x07 \x07bell") == "up ?bell"
    assert harmless("y" * 5000).endswith(" ... (3000 more characters in run.log)")


def test_progress_is_for_terminals_and_vanishes(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            COMMAND[0],
            [*COMMAND, "run", "--steps", "2", str(SCRIPTS / "train.py")],
            environment(TERM="xterm"),
        )
    shown = b""
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(terminal, 1 << 16):
            shown += chunk
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    *drawn, rest = re.split(rb"simulating rank 0 on a100-80gb: ", shown)
    assert 2 <= len(drawn) < 300
    assert re.match(rb"\d+ of 2 steps, \d+ s", rest)
    assert b"\x1b[2K" in rest  # wiped before the report
    assert b"simulating" not in (tmp_path / "windtunnel-out" / "rank0" / "run.log").read_bytes()


def _start(*args, cwd):
    return subprocess.Popen(
        [*COMMAND, *map(str, args)], cwd=cwd, env=environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _await_text(path, text):
    ends = time.monotonic() + PATIENCE_S
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < ends, f"{text!r} was not written to {path.name} within {PATIENCE_S} s"
        time.sleep(0.05)


def _children(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(text) for text in found.stdout.split()]


def _is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
