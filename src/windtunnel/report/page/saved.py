"""Read back the data of a page, to add to it or to compare it with another.

    report.html ──> its JSON block ──> read_page_document ──> the document it was made of

The file may come from anyone. Nothing in it is executed: one block of text is found and parsed as JSON.
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
    """Return the data of a page that windtunnel wrote. Raises CorruptFile."""
    try:
        with open_file(path) as file:
            page = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CorruptFile(
            f"cannot read {path}: {error.strerror or error}", hint="pass a page of windtunnel"
        ) from error
    if len(page) > _MOST_BYTES:
        raise CorruptFile(
            f"{path} is larger than {format_bytes(_MOST_BYTES)}, so it is not a page of windtunnel",
            hint="create it again with `windtunnel run`",
        )
    begin = page.find(_BEGIN)
    end = page.find(_END, begin + 1)
    if begin < 0 or end < 0:
        raise CorruptFile(
            f"{path} is not a page of windtunnel", hint="pass an output folder of `windtunnel run`"
        )
    try:
        document = orjson.loads(page[begin + len(_BEGIN) : end])
    except orjson.JSONDecodeError as error:
        raise CorruptFile(
            f"{path} is damaged: its data is not JSON ({error})", hint="create it again"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("title"), str):
        raise CorruptFile(f"{path} is damaged: its data has no title", hint="create it again")
    return document
