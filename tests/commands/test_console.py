"""How wide output is: a terminal has a width, a file or a pipe has none."""

from __future__ import annotations

import io

from tests.commands.cli import windtunnel
from tests.report.runs import FITTING, run_of
from windtunnel.commands import console
from windtunnel.commands.console import open_console
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.terminal.run import show_run


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_sentence_in_a_pipe_is_one_line(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    monkeypatch.setattr(console.sys, "stdout", stream)
    show_run(open_console(), run_of(FITTING))
    lines = stream.getvalue().splitlines()
    assert lines[-1] == verdict(run_of(FITTING))
    assert len(lines[-1]) > 80
    assert max(map(len, lines)) < 400  # tables are as wide as their cells, not as the console


def test_columns_and_terminals_set_a_width(monkeypatch):
    monkeypatch.setattr(console.sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "60")
    assert open_console().width == 60
    monkeypatch.setattr(console.sys, "stdout", _Terminal())
    assert open_console().width == 60
    monkeypatch.delenv("COLUMNS")
    assert open_console().width < 1000


def test_a_table_in_a_pipe_has_its_natural_width(tmp_path):
    done = windtunnel("devices", cwd=tmp_path, env={"COLUMNS": ""})
    assert done.returncode == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith("ascend-910b-64gb ")]
    assert len(rows) == 2  # one in each of two tables: no cell was wrapped
    assert all("…" not in line for line in done.stdout.splitlines())
