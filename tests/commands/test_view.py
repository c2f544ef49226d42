"""windtunnel view: the page of a folder at an address of this machine, or the report as text."""

from __future__ import annotations

import os
import threading
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pytest

from tests.commands.test_page_server import viewing
from tests.probe.dumps import Call, write_dump
from windtunnel.commands import view
from windtunnel.commands.main import main
from windtunnel.commands.page_server import PageServer
from windtunnel.commands.saved_page import saved_page
from windtunnel.report.json.run import write_report
from windtunnel.report.results.run import DeviceResult, RankResult, RunResult

PAGE = b"<!doctype html>\n<html><title>%s</title></html>\n"


@pytest.fixture
def run_directory(tmp_path):
    rank = RankResult(
        rank=0, status="ok", steps=3, device_memory_bytes=64 << 30, usable_memory_bytes=60 << 30,
        base_address="0x1000", peak_bytes=8 << 30, peak_with_fragments_bytes=9 << 30,
        notes=("<script>window.pwned = 1</script>",),
    )  # fmt: skip
    device = DeviceResult("a100-80gb", 64 << 30)
    write_report(tmp_path / "report.json", RunResult("0.1.0", 1, 1, device, "cuda", (rank,)))
    return tmp_path


@pytest.fixture
def shown(monkeypatch):
    """Pages that `view` would show until Ctrl-C, and addresses it opened."""
    pages, opened = [], []
    before = set(threading.enumerate())

    def note(server):
        for thread in set(threading.enumerate()) - before:  # the one that opens a browser
            thread.join()
        pages.append(server.page())
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", note)
    monkeypatch.setattr(view.webbrowser, "open", opened.append)
    monkeypatch.setattr(view.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    return pages, opened


def test_the_page_is_shown_and_a_browser_opened(run_directory, shown, capsys):
    (run_directory / "report.html").write_bytes(PAGE % b"mine")
    assert main(["view", str(run_directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("http://127.0.0.1:")
    assert shown == ([PAGE % b"mine"], [lines[0]])


@pytest.mark.parametrize(("option", "screen"), [(["--no-open"], ":0"), ([], "")])
def test_no_browser_is_opened_if_none_is_wanted_or_there_is_no_screen(
    run_directory, shown, option, screen, monkeypatch
):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.setenv(name, screen)
    assert main(["view", str(run_directory), *option]) == 0
    assert (len(shown[0]), shown[1]) == (1, [])


def test_who_is_here_by_ssh_is_told_how_to_reach_it(run_directory, shown, capsys, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["view", str(run_directory)]) == 0
    address, _, tunnel, *_ = capsys.readouterr().out.splitlines()
    port = urlsplit(address).port
    assert tunnel.startswith(f"from your machine: ssh -N -L {port}:127.0.0.1:{port} ")


def test_without_a_page_one_is_made_of_the_report(run_directory):
    """In a process of its own, as a browser would read it."""
    with viewing(run_directory, "--no-open") as (_, (address, _said)), urlopen(address.strip()) as answer:
        page = answer.read().decode()
    assert f"<title>{run_directory.name} on a100-80gb</title>" in page
    assert "made from report.json alone" in page
    assert "window.pwned = 1" in page
    assert "<script>window.pwned" not in page


def test_a_later_run_is_seen_by_reloading(run_directory):
    file = run_directory / "report.html"
    file.write_bytes(PAGE % b"first")
    page = saved_page(run_directory)
    assert page() == PAGE % b"first"
    file.unlink()  # the next run began
    assert page() == PAGE % b"first"
    file.write_bytes(b"<!doctype")  # as no writer of ours leaves it
    assert page() == PAGE % b"first"
    file.write_bytes(PAGE % b"second")
    assert page() == PAGE % b"second"


def test_the_report_is_printed_on_request(run_directory, capsys):
    (run_directory / "report.html").write_bytes(PAGE % b"mine")
    assert main(["view", str(run_directory), "--text"]) == 0
    out = capsys.readouterr().out
    assert "needs 9.00 GiB of " in out
    assert "memory usage (with fragments)" not in out  # a fact for MindSpore scripts, and for run.log
    assert out.splitlines()[-2].startswith(f"next: windtunnel view {run_directory}")
    assert out.splitlines()[-1].lstrip().startswith(f"windtunnel replay {run_directory}")


@pytest.mark.parametrize("option", ["--no-open", "--text"])
@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir()])
def test_what_is_not_a_run_is_refused_in_one_sentence(tmp_path, capsys, make, option):
    make(tmp_path / "out")
    assert main(["view", str(tmp_path / "out"), option]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("windtunnel: there is no ")
    assert said[1].startswith("  next: ")


def test_a_file_in_the_folder_names_the_folder(run_directory, capsys):
    assert main(["view", str(run_directory / "report.json")]) == 2
    assert f"next: windtunnel view {run_directory}\n" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_page_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "report.html")
    assert main(["view", str(tmp_path), "--no-open"]) == 2
    assert "there is no report.html" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 99}', "[" * 100_000, "\xff", '{"schema": 1, "ranks": 3}'],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("option", ["--no-open", "--text"])
def test_a_damaged_report_is_refused_in_one_sentence(tmp_path, capsys, text, option):
    (tmp_path / "report.json").write_bytes(text.encode("latin-1"))
    assert main(["view", str(tmp_path), option]) == 2
    assert str(tmp_path / "report.json") in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("option", ["--no-open", "--text"])
@pytest.mark.parametrize(
    ("figure", "other"),
    [('"peak_bytes": 8589934592', '"peak_bytes": "8 GiB"'), ('"name": "a100-80gb"', '"name": ["a100-80gb"]')],
)
def test_a_report_with_words_for_numbers_is_no_traceback(run_directory, shown, capsys, figure, other, option):
    report = run_directory / "report.json"
    text = report.read_text()
    assert figure in text
    report.write_text(text.replace(figure, other))
    assert main(["view", str(run_directory), option]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "page", [b"", b"hello", (PAGE % b"mine")[:-9], b"\0" * 100], ids=["empty", "text", "cut", "zeros"]
)
def test_a_damaged_page_is_refused_in_one_sentence(run_directory, capsys, page):
    (run_directory / "report.html").write_bytes(page)
    assert main(["view", str(run_directory), "--no-open"]) == 2
    said = capsys.readouterr().err
    assert f"report.html is incomplete: its {len(page)} bytes" in said
    assert "next: delete it" in said


# -- two of them -------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path):
    for name, peak in (("a", 8 << 30), ("b", 6 << 30)):
        rank = RankResult(
            rank=0, status="ok", steps=3, device_memory_bytes=64 << 30, usable_memory_bytes=60 << 30,
            base_address="0x1000", peak_bytes=peak, peak_with_fragments_bytes=peak,
        )  # fmt: skip
        (tmp_path / name).mkdir()
        device = DeviceResult("a100-80gb", 64 << 30)
        write_report(tmp_path / name / "report.json", RunResult("0.1.0", 1, 1, device, "cuda", (rank,)))
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def two_dumps(tmp_path):
    values = np.arange(4, dtype=np.float32)
    for name, result in (("good", values * 2), ("bad", values * 3)):
        calls = [Call("Functional.linear.0.forward", [values], [result])]
        write_dump(tmp_path / name / "step0" / "rank0", calls, level="L1")
    return tmp_path / "good", tmp_path / "bad"


@pytest.mark.parametrize(
    ("pair", "kind", "said"),
    [
        ("two_runs", "comparison", "8.00 GiB"),
        ("two_dumps", "precision", "First divergence: Functional.linear.0.forward.output.0"),
    ],
)
def test_two_are_compared_on_a_page_and_in_words(pair, kind, said, shown, capsys, request):
    folders = list(map(str, request.getfixturevalue(pair)))
    assert main(["view", *folders, "--no-open"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("http://127.0.0.1:")
    assert said in out
    assert f"\nserving {folders[0]} and {folders[1]} side by side to this machine only" in out
    assert f'"kind":"{kind}"'.encode() in shown[0][0].replace(b" ", b"")
    assert main(["view", *folders, "--text"]) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert "http" not in printed


def test_a_run_is_not_compared_with_a_dump(two_runs, two_dumps, capsys):
    for pair in ((two_runs[0], two_dumps[0]), (two_dumps[0], two_runs[0])):
        assert main(["view", *map(str, pair)]) == 2
        said = capsys.readouterr().err
        assert f"{two_runs[0]} is a run and {two_dumps[0]} is not" in said
        assert "  next: " in said


def test_two_that_are_nothing_are_refused_in_a_sentence(tmp_path, two_runs, capsys):
    (tmp_path / "empty").mkdir()
    for name, fact in (
        ("nowhere", f"{tmp_path}/nowhere does not exist"),
        ("empty", f"{tmp_path}/empty contains no dump"),
    ):
        assert main(["view", str(tmp_path / name), str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.startswith(f"windtunnel: {fact}")
    (two_runs[1] / "report.json").write_text("{")
    assert main(["view", *map(str, two_runs)]) == 2
    assert f"{two_runs[1]}/report.json is not a windtunnel report" in capsys.readouterr().err
