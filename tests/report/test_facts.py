"""The five facts, in the exact words that parsers of MindSpore's dry run look for."""

from __future__ import annotations

from tests.report.runs import A100, ASCEND
from windtunnel.report.facts import five_facts
from windtunnel.report.results.run import RankResult
from windtunnel.units import MIB

RANK = RankResult(
    rank=0,
    status="ok",
    device_memory_bytes=65536 * MIB,
    usable_memory_bytes=61430 * MIB,
    base_address="0x7fd3aa69d477",
    peak_bytes=55392 * MIB + MIB - 1,
    peak_with_fragments_bytes=57329 * MIB,
)


def test_on_ascend_the_words_are_mindspores():
    assert five_facts(RANK, ASCEND) == (
        "Device MOC memory size: 65536M",
        "MindSpore Used memory size: 61430M",
        "MindSpore memory base address: 0x7fd3aa69d477",
        "Used peak memory usage (without fragments): 55392M",
        "Actual peak memory usage (with fragments): 57329M",
    )


def test_elsewhere_mindspore_is_not_named():
    facts = five_facts(RANK, A100)
    assert facts[1] == "Usable memory size: 61430M"
    assert facts[2] == "Device memory base address: 0x7fd3aa69d477"
