"""The output folder of a run."""

import os

import pytest

from windtunnel.errors import UsageError
from windtunnel.session.run_folder import prepare_folder
from windtunnel.whole_file import whole_file


def test_a_report_that_a_killed_run_left_half_written_is_removed(tmp_path):
    with whole_file(tmp_path / "report.json"):
        (name,) = os.listdir(tmp_path)
    (tmp_path / name).write_text("{")  # as if the process had been killed here
    prepare_folder(tmp_path, force=True).release()
    assert os.listdir(tmp_path) == []


def test_an_unfinished_file_of_another_program_is_kept(tmp_path):
    (tmp_path / ".unfinished-thesis.tex-abcdefgh").write_text("mine")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        prepare_folder(tmp_path, force=True)
    assert os.listdir(tmp_path) == [".unfinished-thesis.tex-abcdefgh"]
