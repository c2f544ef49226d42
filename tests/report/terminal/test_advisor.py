"""The advisor's table, sentence, JSON and picture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from windtunnel.errors import UsageError
from windtunnel.remat.advisor.advisor import Advice, Dropped, Point
from windtunnel.report.pictures.advisor import draw_advice
from windtunnel.report.terminal.advisor import advice_document, recommend, recommended, render_advice
from windtunnel.units import GIB

NOTHING = Point("nothing", "plain training", 1.0, 70 * GIB, 1.0)
HALF = Point("blocks", "checkpoint 2/4 blocks", 1.15, 50 * GIB, 1.15, n_blocks=2)
ALL = Point("blocks", "checkpoint every block", 1.3, 30 * GIB, 1.3, n_blocks=4)
SET = Point("fixed set", "best fixed set", 1.05, 37 * GIB, 1.05, 40 * GIB,
            dropped=(Dropped("aten.gelu.default", 4, 8 * GIB, 0.05),))  # fmt: skip
DTR = Point("dtr", "windtunnel.dtr", 1.1, 38 * GIB, 1.1, 40 * GIB, threshold_bytes=36 * GIB)
OVER = Point("dtr", "windtunnel.dtr", 1.4, 33 * GIB, 1.4, 30 * GIB, threshold_bytes=30 * GIB)
ADVICE = Advice(
    40 * GIB, (40 * GIB, 30 * GIB), (NOTHING, HALF, ALL, SET, DTR, OVER), "4 blocks, layers.0 to layers.3", 4, 20 * GIB,
    0,
)  # fmt: skip


def _text(advice):
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(render_advice(advice))
    return console.export_text()


def test_the_fastest_that_fits_is_recommended_with_what_the_others_cost():
    assert recommended(ADVICE) is DTR
    assert recommend(ADVICE) == (
        "Use windtunnel.dtr with a threshold of 36.00 GiB: +10.0% time, needs 38.00 GiB; checkpointing +30.0%, the best"
        " fixed set +5.0%. Plain training needs 70.00 GiB, and 40.00 GiB is usable."
    )


def test_checkpointing_is_recommended_by_its_blocks():
    without_dtr = replace(ADVICE, points=(NOTHING, HALF, ALL))
    assert recommend(without_dtr).startswith(
        "Use torch.utils.checkpoint on all of the 4 blocks, layers.0 to layers.3: +30.0% time, needs 30.00 GiB"
    )
    larger = replace(without_dtr, device_bytes=60 * GIB)
    assert recommend(larger).startswith("Use torch.utils.checkpoint on the first 2 of the 4 blocks, layers.0")


def test_what_fits_as_it_is_needs_nothing():
    assert recommend(replace(ADVICE, device_bytes=80 * GIB)) == (
        "No recomputation is needed: plain training needs 70.00 GiB of the 80.00 GiB usable."
    )


def test_a_card_that_is_too_small_says_what_the_least_is():
    assert recommend(replace(ADVICE, device_bytes=16 * GIB)) == (
        "Nothing fits 16.00 GiB: the least is 30.00 GiB (checkpointing), so use a smaller micro-batch or shard the model."
    )
    only_set = replace(ADVICE, points=(NOTHING, HALF, SET))
    assert recommend(only_set).startswith("Only a fixed set fits 40.00 GiB: +5.0% time, needs 37.00 GiB")


def test_the_table_has_every_point():
    text = _text(ADVICE)
    below = "4 x aten.gelu.default (8.00 GiB)", "cannot be dropped: 20.00 GiB"
    rows = "plain training", "checkpoint 2/4 blocks", "optimal", "at 36.00 GiB", "30.00 GiB not reached"
    assert [words for words in (*rows, *below) if words not in text] == []


def test_a_little_of_the_card_is_left_for_fragments():
    tight = replace(ADVICE, device_bytes=39 * GIB)
    assert recommended(tight) is ALL  # windtunnel.dtr at 38 GiB would just fit
    assert [line.split()[8] for line in _text(tight).splitlines() if "at 36.00 GiB" in line] == ["just"]


def test_what_is_not_certain_is_reported():
    loose = replace(SET, gap=0.021)
    unsolved = replace(SET, gap=float("inf"))
    text = _text(replace(ADVICE, points=(NOTHING, loose, unsolved), unreached_bytes=25 * GIB))
    assert "within 2.1% of the best" in text
    assert "nothing better known" in text
    assert "no fixed set was found within 25.00 GiB" in text


def test_the_document_is_json_and_names_the_recommended_point():
    document = json.loads(json.dumps(advice_document(ADVICE), allow_nan=False))
    assert document["points"][document["recommended"]]["threshold_bytes"] == 36 * GIB
    assert [p["fits"] for p in document["points"]] == [False, False, True, True, True, True]
    assert document["points"][3]["dropped"][0]["operator"] == "aten.gelu.default"
    unsolved = replace(ADVICE, points=(NOTHING, replace(SET, gap=float("inf"))), device_bytes=1)
    document = json.loads(json.dumps(advice_document(unsolved), allow_nan=False))
    assert (document["recommended"], document["points"][1]["gap"]) == (None, None)


def test_one_picture_shows_all_ways(tmp_path):
    pytest.importorskip("matplotlib")
    draw_advice(tmp_path / "advice.png", ADVICE, "jobs/train.py")
    draw_advice(tmp_path / "advice.svg", ADVICE, "jobs/train.py")
    assert (tmp_path / "advice.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "advice.svg").read_text()
    for words in (
        "Time versus memory: train.py",
        "windtunnel.dtr",
        "best fixed set",
        "usable 40.00 GiB",
        "GiB",
    ):
        assert words in svg
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        draw_advice(tmp_path / "advice.xyz", ADVICE)


def test_a_way_fits_by_what_the_allocator_reserves_not_by_what_is_live():
    fragmented = replace(DTR, reserved_bytes=41 * GIB)
    full = replace(OVER, reserved_bytes=33 * GIB, is_out_of_memory=True)
    advice = replace(ADVICE, points=(NOTHING, ALL, fragmented, full))
    assert recommended(advice) is ALL
    assert [p["fits"] for p in advice_document(advice)["points"]] == [False, True, False, False]
    assert "at 30.00 GiB: runs out of memory" in _text(advice)
