"""The memory facts in MindSpore's logs: every wording, every way ranks share a log, and any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.mindspore_graph.graph_files import DATA
from windtunnel.errors import CorruptFile
from windtunnel.memory.files.dryrun_log import is_mindspore_log, read_logs
from windtunnel.units import MIB

FACTS = """\
Device MOC memory size: 65536M
MindSpore Used memory size: 59392M
MindSpore memory base address: 0x7fd3aa69d477
Used peak memory usage (without fragments): {used}M
Actual peak memory usage (with fragments): {actual}M
"""


def _glog(pid, message):
    return f"[WARNING] DEVICE({pid},7f33719bbc40,python):2026-01-01-00:00:00.000.001 [a.cc:1] f] {message}\n"


def _start(pid, rank, size=8):
    return _glog(pid, f"This is simulation mode with level 1. Process's RANK_ID: {rank}, RANK_SIZE: {size}")


def _end(pid, used, actual):
    return _glog(pid, "Ascend Memory Adapter deinitialize success, statistics:") + FACTS.format(
        used=used, actual=actual
    )


def _read(tmp_path, text, name="a.log"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_logs([path])


def _numbers(facts):
    return tuple(
        n // MIB for n in (facts.device_bytes, facts.usable_bytes, facts.used_bytes, facts.actual_bytes)
    )


def test_the_five_facts_of_a_dry_run(tmp_path):
    (facts,) = _read(tmp_path, _start(11, 5) + "loss 3.2\n" + _end(11, 55389, 57341)).facts
    assert facts.rank == 5
    assert _numbers(facts) == (65536, 59392, 55389, 57341)
    assert facts.need_bytes == 57341 * MIB
    assert facts.line == 4


def test_older_words_and_the_prefix_of_memory_statistics(tmp_path):
    text = FACTS.replace("MOC", "HBM").format(used=3, actual=4).replace("Device", "[MS_RUNTIME_PROF]Device")
    (facts,) = _read(tmp_path, text).facts
    assert _numbers(facts) == (65536, 59392, 3, 4)
    assert facts.rank is None


def test_facts_printed_twice_by_one_process_are_one_rank(tmp_path):
    (facts,) = read_logs([DATA / "twice.log"]).facts
    assert (facts.rank, _numbers(facts)) == (2, (65536, 61430, 39, 41))


def test_jit_level_o2_prints_static_and_dynamic_memory(tmp_path):
    text = "Device HBM memory size: 32768M\nMindSpore Used memory size: 30684M\n"
    text += "Total Static Memory size: 496M\nTotal Dynamic memory size: 20M\nDynamic memory size of this graph: 7M\n"
    (facts,) = _read(tmp_path, text).facts
    assert (facts.static_bytes, facts.dynamic_bytes, facts.need_bytes) == (496 * MIB, 20 * MIB, 516 * MIB)


def test_an_out_of_memory_counts_the_request_it_died_of(tmp_path):
    text = _glog(7, f"Out of Memory!!! Request memory size: {100 * MIB}B, Memory Statistic:")
    text += "Device HBM memory size: 32768M\nTotal Static Memory size: 56M\nTotal Dynamic memory size: 0M\n"
    (facts,) = _read(tmp_path, text).facts
    assert (facts.failed_request_bytes, facts.need_bytes) == (100 * MIB, 156 * MIB)


def test_ranks_that_share_a_log_are_distinguished_by_their_process(tmp_path):
    text = (
        _start(21, 1) + _start(20, 0) + _start(22, 2) + _end(22, 30, 31) + _end(20, 10, 11) + _end(21, 20, 21)
    )
    facts = _read(tmp_path, text).facts
    assert [(f.rank, f.used_bytes // MIB) for f in facts] == [(0, 10), (1, 20), (2, 30)]


def test_facts_collected_from_many_logs_are_one_rank_each(tmp_path):
    grepped = "worker_0.log:Used peak memory usage (without fragments): 5M\n"
    facts = _read(tmp_path, grepped + grepped.replace("5M", "6M")).facts
    assert [f.used_bytes // MIB for f in facts] == [5, 6]


def test_a_rank_is_named_by_its_file_or_folder(tmp_path):
    (tmp_path / "rank_6").mkdir()
    for name, rank in (("worker_12.log", 12), ("rank_6/info.log", 6), ("train.txt", None)):
        assert _read(tmp_path, FACTS.format(used=1, actual=1), name).facts[0].rank == rank


def test_a_killed_log_has_no_facts(tmp_path):
    reading = _read(tmp_path, _start(3, 0) + "step 1\n")
    assert (reading.facts, reading.silent) == ((), (tmp_path / "a.log",))


def test_whole_mib_are_rounded_down_so_the_last_one_must_fit_too(tmp_path):
    (facts,) = _read(tmp_path, FACTS.format(used=9, actual=10)).facts
    assert facts.fits(11 * MIB)
    assert not facts.fits(11 * MIB - 1)


def test_the_logs_of_two_real_workers():
    reading = read_logs(sorted(DATA.glob("worker_*.log")))
    assert [(f.rank, f.used_bytes // MIB, f.actual_bytes // MIB) for f in reading.facts] == [
        (0, 40, 40),
        (1, 39, 39),
    ]
    assert reading.worst.rank == 0


@pytest.mark.parametrize("text", ["", "hello\n", "memory size: 7M\n", "\0" * 100, "x" * 300_000])
def test_other_text_is_no_log(tmp_path, text):
    path = tmp_path / "a.log"
    path.write_text(text)
    assert not is_mindspore_log(path)
    with pytest.raises(CorruptFile, match="is not a MindSpore log"):
        read_logs([path])


def test_a_line_without_end_hides_nothing_behind_it(tmp_path):
    (facts,) = _read(tmp_path, "x" * 200_000 + "\n" + FACTS.format(used=2, actual=2)).facts
    assert (facts.line, facts.used_bytes) == (2, 2 * MIB)


PIECES = [*FACTS.format(used=7, actual=8).splitlines(), _start(1, 2), _glog(9, "x")]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=12), st.binary(max_size=20))
def test_any_text_is_read_or_refused(tmp_path_factory, lines, junk):
    path = tmp_path_factory.mktemp("l") / "a.log"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace") + junk)
    try:
        reading = read_logs([path])
    except CorruptFile as refused:
        assert "\n" not in refused.message
    else:
        assert all(facts.line >= 1 for facts in reading.facts)
