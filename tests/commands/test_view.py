"""windtunnel view: the saved report again."""

from __future__ import annotations

import pytest

from windtunnel.commands import view
from windtunnel.commands.main import main
from windtunnel.report.json_file import write_report
from windtunnel.report.result import DeviceResult, RankResult, RunResult


@pytest.fixture
def run_directory(tmp_path):
    rank = RankResult(
        rank=0, status="ok", steps=3, device_memory_bytes=64 << 30, usable_memory_bytes=60 << 30,
        base_address="0x1000", peak_bytes=8 << 30, peak_with_fragments_bytes=9 << 30,
    )  # fmt: skip
    device = DeviceResult("a100-80gb", 64 << 30)
    write_report(tmp_path / "report.json", RunResult("0.1.0", 1, 1, device, "cuda", (rank,)))
    return tmp_path


def test_the_report_is_rendered_again(run_directory, capsys):
    assert main(["view", str(run_directory)]) == 0
    out = capsys.readouterr().out
    assert "Used peak memory usage (without fragments): 8192M" in out
    assert "Actual peak memory usage (with fragments): 9216M" in out
    assert out.splitlines()[-1].startswith(f"next: windtunnel replay {run_directory}")


def test_a_page_is_opened_instead(run_directory, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(view.webbrowser, "open", lambda url: opened.append(url) or True)
    (run_directory / "report.html").write_text("<html></html>")
    assert main(["view", str(run_directory)]) == 0
    assert opened == [(run_directory / "report.html").resolve().as_uri()]
    assert capsys.readouterr().out == f"opened {run_directory / 'report.html'}\n"


def test_without_a_browser_the_terminal_serves(run_directory, capsys, monkeypatch):
    monkeypatch.setattr(view.webbrowser, "open", lambda url: False)
    (run_directory / "report.html").write_text("<html></html>")
    assert main(["view", str(run_directory)]) == 0
    assert "8192M" in capsys.readouterr().out


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_what_is_not_a_run_is_refused_in_one_sentence(tmp_path, capsys, make):
    make(tmp_path / "out")
    assert main(["view", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("windtunnel: there is no ")


def test_a_damaged_report_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "report.json").write_text("{")
    assert main(["view", str(tmp_path)]) == 2
    assert "is not a report of windtunnel" in capsys.readouterr().err
