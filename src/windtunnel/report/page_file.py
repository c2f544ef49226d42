"""A page of ours read back: to add to it, and to compare it with another.

    report.html ──> its JSON block ──> read_page_document ──> the document it was made of

The file may come from anywhere. Nothing in it is run: one block of text is found and parsed as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file
from windtunnel.units import MIB, format_bytes

__all__ = ["read_page_document"]

_MOST_BYTES = 64 * MIB  # pages are a quarter of it
_BEGIN = b'<script type="application/json" id="data">'
_END = b"</script>"


def read_page_document(path: Path) -> dict[str, Any]:
    """The document of a page that `windtunnel` wrote."""
    try:
        with open_file(path) as file:
            page = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}", hint="name a page") from error
    if len(page) > _MOST_BYTES:
        raise CorruptFile(
            f"{path} is larger than {format_bytes(_MOST_BYTES)}, which no page of windtunnel is",
            hint="make it again with `windtunnel run`",
        )
    begin = page.find(_BEGIN)
    end = page.find(_END, begin + 1)
    if begin < 0 or end < 0:
        raise CorruptFile(f"{path} is not a page of windtunnel", hint="name a folder that it wrote")
    try:
        document = orjson.loads(page[begin + len(_BEGIN) : end])
    except orjson.JSONDecodeError as error:
        raise CorruptFile(
            f"{path} is damaged: its data is not JSON ({error})", hint="make it again"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("title"), str):
        raise CorruptFile(f"{path} is damaged: its data has no title", hint="make it again")
    return document
