"""Write report.html beside remat.json or advice.json, keeping what a run wrote there before.

a curve or an advice, report.html or report.json of the folder ──> add_to_page ──> report.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel import __version__
from windtunnel.errors import CorruptFile
from windtunnel.report.json_file import read_report
from windtunnel.report.page_file import read_page_document
from windtunnel.report.page_remat import page_with
from windtunnel.report.web_page import page_bytes, write_page

__all__ = ["add_to_page", "is_folder_of"]

_PAGE, _REPORT = "report.html", "report.json"


def is_folder_of(recording: str, folder: Path) -> bool:
    """Whether a recording (a file, rankR/ or the folder of a run) lies in `folder`: then that is added to."""
    path, home = Path(recording).resolve(), folder.resolve()
    return home == path or home in path.parents[:2]


def add_to_page(folder: Path, part: dict[str, Any]) -> str | None:
    """Write the page with this part in it; a sentence if that failed."""
    earlier = run = None
    try:
        if (folder / _PAGE).is_file():
            earlier = read_page_document(folder / _PAGE)
        elif (folder / _REPORT).is_file():
            run = read_report(folder / _REPORT)
    except CorruptFile as error:
        return f"{_PAGE} was left as it is: {error.message}"
    try:
        write_page(folder / _PAGE, page_bytes("run", page_with(part, __version__, earlier, run)))
    except OSError as error:
        return f"{_PAGE} could not be written: {error.strerror or error}"
    return None
