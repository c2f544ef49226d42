"""One HTML file with everything inside: style, scripts, a charting library and the data. It makes no network requests.

    document (plain values and packed columns) ──> templates/*/* ──> bytes of a page

Text from the user's program is data: it is in a JSON block, and the scripts write it as text only. The content security
policy of the page allows no script but ours.
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

from windtunnel.whole_file import whole_file

__all__ = ["VIEWS", "json_bytes", "page_bytes", "write_page"]

_TEMPLATES = Path(__file__).parents[1] / "templates"
_PLACE = re.compile(rb"\{\{(\w+)\}\}")
_FIRST = ("shell/words.js", "shell/columns.js", "shell/shell.js")
# The views of a kind of page, in the order of their tabs.
VIEWS = {
    "run": (
        "overview/overview.js", "overview/overview_memory.js", "overview/rank_grid.js", "overview/rank_figures.js",
        "overview/rank_map.js",
        "memory/memory_bands.js", "memory/memory_levels.js", "memory/memory_paint.js", "memory/memory_moment.js",
        "memory/memory_plot.js", "memory/memory.js", "memory/flame_tree.js", "memory/flame_table.js", "memory/flame.js",
        "memory/allocator_map.js", "memory/allocator.js",
        "time/trace_tracks.js", "time/trace.js", "time/perfetto.js", "time/time_modules.js", "time/time.js",
        "remat/remat_chart.js", "remat/remat.js",
        "overview/advice.js", "overview/warnings.js",
    ),
    "comparison": ("two_runs/comparison_parts.js", "two_runs/comparison.js"),
    "precision": (
        "precision/precision_data.js", "precision/precision_tree.js", "precision/precision_chart.js",
        "precision/precision.js",
    ),
}  # fmt: skip


def page_bytes(kind: str, document: dict[str, Any]) -> bytes:
    """Return a whole page; `document["title"]` is its title."""
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
    # In one pass: the inserted text may contain placeholders too.
    pieces = _PLACE.split((_TEMPLATES / "shell" / "page.html").read_bytes())
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
    """Write the page; the file gets its name only when it is complete."""
    with whole_file(path) as file:
        file.write(page)


@cache
def _style() -> str:
    own = (_TEMPLATES / "shell" / "page.css").read_text(encoding="utf-8")
    views = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(_TEMPLATES.glob("*/view_*.css"), key=lambda path: path.name)
    )
    return (_TEMPLATES / "vendor" / "uPlot.min.css").read_text(encoding="utf-8") + own + views


@cache
def _script(kind: str) -> str:
    names = (*_FIRST, *VIEWS[kind], "shell/begin.js")
    paths = [_TEMPLATES / name for name in names]
    ours = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    licence = (_TEMPLATES / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8").strip()
    library = (_TEMPLATES / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return f'/*! uPlot, the charting library of this page\n{licence}\n*/\n{library}\n(() => {{\n"use strict";\n{ours}\n}})();\n'
