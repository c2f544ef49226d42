"""The picture of `windtunnel remat`: drawn, and saying what it should."""

from __future__ import annotations

import pytest

from tests.remat.points import point
from tests.report.remat_results import POINTS, result
from windtunnel.errors import UsageError
from windtunnel.report.pictures.remat import draw_remat

pytest.importorskip("matplotlib")


def _text(tmp_path, found) -> str:
    draw_remat(tmp_path / "remat.svg", found)
    return (tmp_path / "remat.svg").read_text(encoding="utf-8")


def test_the_picture_has_two_panels_the_card_and_the_best(tmp_path):
    text = _text(tmp_path, result())
    for words in ("step time (s)", "peak memory (GiB)", "usable 10.00 GiB", "best: 8GB", "out of memory",
                  "Rematerialisation of train.py on 2080ti-11gb", "with nothing evicted"):  # fmt: skip
        assert words in text, words


def test_several_policies_are_distinguished(tmp_path):
    points = tuple(point(size, 1.5, 6, policy=name) for name in ("dtr", "lru") for size in (4, 6))
    text = _text(tmp_path, result(points))
    assert ">dtr<" in text
    assert ">lru<" in text


@pytest.mark.parametrize("points", [POINTS[3:], POINTS[:1], (point(0.25, 1.5, 2),)])
def test_few_points_or_none_that_fit_are_drawn_too(tmp_path, points):
    draw_remat(tmp_path / "remat.png", result(points))
    assert (tmp_path / "remat.png").stat().st_size > 1000


def test_an_unknown_format_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot draw"):
        draw_remat(tmp_path / "remat.nothing", result())
