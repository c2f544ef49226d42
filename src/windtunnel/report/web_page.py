"""One HTML file with everything inside: style, scripts, a charting library and the data. It asks nothing of the network.

    document (plain values and packed columns) ──> templates/page/* + templates/vendor/* ──> bytes of a page

Text of the user's program is data: it stands in a JSON block, and the scripts write it as text only. The policy in the
head of the page lets the browser run no other script than ours.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import orjson

from windtunnel.report.whole_file import whole_file

__all__ = ["VIEWS", "json_bytes", "page_bytes", "write_page"]

_TEMPLATES = Path(__file__).parent / "templates"
_PLACE = re.compile(rb"\{\{(\w+)\}\}")
_FIRST = ("words.js", "columns.js", "shell.js")
# The views of a kind of page, in the order of their tabs.
VIEWS = {
    "run": (
        "overview.js", "overview_memory.js", "rank_grid.js", "rank_figures.js", "rank_map.js", "memory_bands.js",
        "memory_levels.js", "memory_paint.js", "memory_moment.js", "memory_plot.js", "memory.js", "flame_tree.js",
        "flame_table.js", "flame.js", "allocator_map.js", "allocator.js",
        "trace_tracks.js", "trace.js", "perfetto.js", "time_modules.js", "time.js", "remat_chart.js", "remat.js", "advice.js",
        "warnings.js",
    ),
    "comparison": ("comparison_parts.js", "comparison.js"),
    "precision": ("precision_data.js", "precision_tree.js", "precision_chart.js", "precision.js"),
}  # fmt: skip


def page_bytes(kind: str, document: dict[str, Any]) -> bytes:
    """A whole page; `document["title"]` is its title."""
    style, script = _style(), _script(kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        b"script_hash": f"'sha256-{digest}'".encode(),
        b"title": escape(_clean(str(document["title"]))).encode(),
        b"style": style.encode(),
        # In a script element only "<" could end it or open a comment.
        b"data": json_bytes(document).replace(b"<", b"\\u003c"),
        b"script": script.encode(),
    }
    # In one go: what is put in may look like a place to put something in, too.
    pieces = _PLACE.split((_TEMPLATES / "page" / "page.html").read_bytes())
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return b"".join(pieces)


def json_bytes(document: Any) -> bytes:
    """Any document of a page as JSON; a letter that UTF-8 does not have is written as in report.json.

    JavaScript has no whole numbers beyond 2**64: flops of a large job are written as it would read them.
    """
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(document, option=options)
    except TypeError:
        return orjson.dumps(_clean(document), option=options)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return float(value) if isinstance(value, int) and value.bit_length() > 63 else value


def write_page(path: Path, page: bytes) -> None:
    """The file appears under its name only when it is whole."""
    with whole_file(path) as file:
        file.write(page)


@cache
def _style() -> str:
    own = (_TEMPLATES / "page" / "page.css").read_text(encoding="utf-8")
    views = "".join(
        path.read_text(encoding="utf-8") for path in sorted((_TEMPLATES / "page").glob("view_*.css"))
    )
    return (_TEMPLATES / "vendor" / "uPlot.min.css").read_text(encoding="utf-8") + own + views


@cache
def _script(kind: str) -> str:
    names = (*_FIRST, *VIEWS[kind], "begin.js")
    paths = [_TEMPLATES / "page" / name for name in names]
    ours = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    licence = (_TEMPLATES / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8").strip()
    library = (_TEMPLATES / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return f'/*! uPlot, the charting library of this page\n{licence}\n*/\n{library}\n(() => {{\n"use strict";\n{ours}\n}})();\n'
