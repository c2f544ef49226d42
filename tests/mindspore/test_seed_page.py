"""docs/mindspore-seed.md says the truth: its tests exist, and its examples are counted right."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parents[1] / "docs" / "mindspore-seed.md").read_text(encoding="utf-8")
FILES = {
    "E": "test_seed_examples.py",
    "A": "test_seed_apis.py",
    "D": "test_seed_dry_run.py",
    "P": "probe/test_debugger.py",
    "G": "probe_graph/",
}


def test_every_named_test_and_file_is_there():
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)(?:\[[\w-]+\])?`", PAGE))
    assert len(named) > 20
    assert named - defined == set()
    for path in re.findall(r"`((?:tests/)?[\w/]+\.py)`", PAGE):
        places = (TESTS.parents[1] / path, TESTS / path, TESTS / "probe_graph" / path)
        assert any(place.exists() for place in places), path
    for letter, path in FILES.items():
        assert f"[{letter}]" in PAGE
        assert f"`{path}`" in PAGE


def test_the_counts_are_those_of_the_rows():
    before, _, after = PAGE.partition("## What needs Ascend")
    run, needs = (len(re.findall(r"^\| (?!the guide)[^-]", part, re.MULTILINE)) for part in (before, after))
    assert f"{run} run as a test. {needs} need an Ascend device" in PAGE
