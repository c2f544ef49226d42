"""The picture: drawn where matplotlib is, refused with the command to install it where it is not."""

from __future__ import annotations

import builtins
import sys

import pytest

from tests.report.runs import A100, FITTING, LARGE
from windtunnel.errors import MissingFramework, UsageError
from windtunnel.report.pictures.memory import draw_picture
from windtunnel.report.results.run import same_as


@pytest.mark.parametrize("rank", [FITTING, LARGE])
def test_a_picture_is_drawn_as_png_and_svg(tmp_path, rank):
    pytest.importorskip("matplotlib")
    draw_picture(tmp_path / "memory.png", rank, A100, tmp_path / "memory.svg")
    assert (tmp_path / "memory.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "memory.svg").read_text()
    for words in ("usable 79.00 GiB", "activations", "step 2 backward, layers.13.mlp, aten.mm"):
        assert words in svg


def test_an_unknown_format_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        draw_picture(tmp_path / "memory.xyz", FITTING, A100)


def test_a_rank_without_a_timeline_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="no memory over time"):
        draw_picture(tmp_path / "memory.png", same_as(1, FITTING), A100)


def test_without_matplotlib_the_way_to_get_it_is_named(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real_import(name, *args, **kwargs)

    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingFramework, match=r"windtunnel\[plot\]"):
        draw_picture(tmp_path / "memory.png", FITTING, A100)
