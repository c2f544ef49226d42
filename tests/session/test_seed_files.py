"""memory_block.csv where MS_ALLOC_CONF asks for it."""

from __future__ import annotations

import pytest

from windtunnel.session.mindspore_files import asks_for_blocks, copy_blocks

BLOCKS = "start_time_stamp,end_time_stamp,\n1,2,\n"


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in (0, 3):
        (tmp_path / "out" / f"rank{rank}").mkdir(parents=True)
        (tmp_path / "out" / f"rank{rank}" / "memory_block.csv").write_text(BLOCKS)
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("settings", "asks"),
    [
        ("memory_tracker:True", True),
        ("a:b, memory_tracker: true", True),
        ("memory_tracker:False", False),
        ("", False),
    ],
)
def test_the_variable_asks(settings, asks):
    assert asks_for_blocks(settings) is asks


def test_each_rank_has_its_folder_in_the_running_directory(out, tmp_path):
    (told,) = copy_blocks(out, "memory_tracker:True", [0, 3, 7])
    assert (
        told
        == "rank0/memory_block.csv was written, as MS_ALLOC_CONF asks (and those of 1 other ranks beside it)"
    )
    for rank in (0, 3):
        assert (tmp_path / f"rank{rank}" / "memory_block.csv").read_text() == BLOCKS
    assert not (tmp_path / "rank7").exists()


def test_a_path_in_the_variable_is_followed(out, tmp_path):
    copy_blocks(out, f"memory_tracker:True,memory_tracker_path:{tmp_path}/here", [0])
    assert (tmp_path / "here" / "rank0" / "memory_block.csv").read_text() == BLOCKS
    assert not (tmp_path / "rank0").exists()


@pytest.mark.parametrize("text", ["mine", "start_time_stamp,end_time_stamp,\n7,8,\n"])
def test_a_file_that_was_there_before_is_left_alone(out, tmp_path, text):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "memory_block.csv").write_text(text)
    (told,) = copy_blocks(out, "memory_tracker:True", [0])
    assert told.startswith(
        "rank0/memory_block.csv could not be written, or was there before and is unchanged"
    )
    assert (tmp_path / "rank0" / "memory_block.csv").read_text() == text
