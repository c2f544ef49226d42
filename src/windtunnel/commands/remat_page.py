"""Add a remat curve or advice to the report.html of a folder, keeping the run that is already in it.

curve or advice, report.html or report.json of the folder ──> add_to_page ──> report.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel import __version__
from windtunnel.errors import CorruptFile
from windtunnel.report.json.run import read_report
from windtunnel.report.page.remat import page_with
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.web_page import page_bytes, write_page

__all__ = ["add_to_page", "is_folder_of"]

_PAGE, _REPORT = "report.html", "report.json"


def is_folder_of(recording: str, folder: Path) -> bool:
    """Whether a recording (a file, rankR/ or the folder of a run) is in `folder`, so that its page is extended."""
    path, home = Path(recording).resolve(), folder.resolve()
    return home == path or home in path.parents[:2]


def add_to_page(folder: Path, part: dict[str, Any]) -> str | None:
    """Write the page with this part in it; returns a note if that failed."""
    earlier = run = None
    try:
        if (folder / _PAGE).is_file():
            earlier = read_page_document(folder / _PAGE)
        elif (folder / _REPORT).is_file():
            run = read_report(folder / _REPORT)
    except CorruptFile as error:
        return f"{_PAGE} was not changed: {error.message}"
    try:
        write_page(folder / _PAGE, page_bytes("run", page_with(part, __version__, earlier, run)))
    except OSError as error:
        return f"{_PAGE} could not be written: {error.strerror or error}"
    return None
