"""docs/seed-claims.md says the truth about itself: all claims, marks that exist, counts, and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "seed-claims.md").read_text(encoding="utf-8")
MARKS = {"works", "works as a model", "needs an Ascend device", "needs MSAdapter"}
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (\w[\w ]+) \| (.+) \|$", PAGE, re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)(?:\[([\w-]+)\])?`")


def test_every_claim_has_its_row_and_a_mark():
    assert [int(number) for number, _, _, _ in ROWS] == list(range(1, 120))
    assert {mark for _, _, mark, _ in ROWS} == MARKS


def test_the_counts_are_those_of_the_rows():
    told = dict(re.findall(r"^\| ([a-zA-Z ]+) \| (\d+) \|", PAGE, re.MULTILINE))
    assert {mark: int(count) for mark, count in told.items()} == {
        mark: sum(row[2] == mark for row in ROWS) for mark in MARKS
    }


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_its_evidence_is_there(row):
    _, _, mark, evidence = row
    tests = TEST.findall(evidence)
    assert tests or "`windtunnel run" in evidence or "windtunnel run" in evidence
    assert "`test_" not in TEST.sub("", evidence)  # a test that names no file
    for path, name, _ in tests:
        text = (TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), (path, name)
    if mark.startswith("needs"):
        assert re.search(r"\. [A-Z`].{40}", evidence)  # what is done instead, in words
