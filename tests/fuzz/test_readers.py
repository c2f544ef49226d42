"""Damaged and hostile files: every reader reads them or refuses them in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fuzz.attack import attack
from tests.fuzz.readers import READERS

_A_FEW = 25
_MANY = 300
_PATIENCE_S = 3600  # for what hangs; the program itself allows 10 s for each file


@pytest.mark.parametrize("reader", READERS)
def test_a_mutated_file_is_read_or_refused_in_one_sentence(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = attack(reader, _A_FEW, 1000, tmp_path)
    assert outcome.faults == []
    assert outcome.n_read + outcome.n_refused == _A_FEW


@pytest.mark.parametrize("reader", READERS)
def test_the_file_that_is_mutated_is_a_valid_one(reader, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    READERS[reader].files(tmp_path)
    assert READERS[reader].read(tmp_path) != 2
    assert "next: " not in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("reader", READERS)
def test_many_mutated_files_need_neither_a_gigabyte_nor_ten_seconds(reader):
    command = [sys.executable, "-m", "tests.fuzz.attack", reader, str(_MANY), "2000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    outcome = json.loads(ran.stdout)
    assert outcome["faults"] == []
    assert outcome["n_read"] + outcome["n_refused"] == _MANY
