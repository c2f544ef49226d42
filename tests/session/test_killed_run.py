"""A run that ends before its page is made still has its report."""

from __future__ import annotations

import pytest

from windtunnel.commands.main import main
from windtunnel.report.json.run import read_report
from windtunnel.session.analysts import Analysts


class _Killed(BaseException):
    """What no part of the program catches, as SIGKILL."""


def test_a_run_killed_while_allocations_are_read_for_its_page_has_its_report(tmp_path, monkeypatch):
    def die(*args):
        raise _Killed

    monkeypatch.setattr(Analysts, "details", die)
    (tmp_path / "train.py").write_text("raise ValueError('no data')\n")
    with pytest.raises(_Killed):
        main(["run", "--out", str(tmp_path / "o"), str(tmp_path / "train.py")])
    (rank,) = read_report(tmp_path / "o" / "report.json").ranks
    assert rank.status == "failed"
    assert "no data" in rank.error
    assert not (tmp_path / "o" / "report.html").exists()
