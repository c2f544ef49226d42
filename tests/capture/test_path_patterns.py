"""Module paths as reports fold them."""

from __future__ import annotations

import pytest

from windtunnel.capture.path_patterns import PathPatterns, split_patterns
from windtunnel.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("model.layers.0-27", "model.layers.13", True),
        ("model.layers.0-27", "model.layers.28", False),
        ("model.layers.0-27", "model.layers.3.mlp", False),
        ("layers.0-2,5", "layers.5", True),
        ("layers.0-2,5", "layers.4", False),
        ("layers.*", "layers.7", True),
        ("layers.*", "layers", False),
        ("stages.0-1.blocks.*", "stages.1.blocks.3", True),
        ("head", "head", True),
    ],
)
def test_a_pattern_matches_part_by_part(pattern, path, is_match):
    assert PathPatterns([pattern]).match(path) is is_match


def test_a_comma_between_names_parts_two_patterns_and_one_between_numbers_does_not():
    assert split_patterns("layers.0-2,5, head") == ("layers.0-2,5", "head")


@pytest.mark.parametrize("text", ["", "layers..0", "layers.0-", "layers.[0]", "0-3 4"])
def test_what_is_no_path_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="is not a module path") as refused:
        split_patterns(text)
    assert "model.layers.0-27" in refused.value.hint
