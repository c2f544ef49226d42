"""Write report.html beside remat.json, keeping what a run wrote there before.

RematResult, report.html or report.json of the folder ──> write_remat_page ──> report.html
"""

from __future__ import annotations

from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.report.json_file import read_report
from windtunnel.report.page_file import read_page_document
from windtunnel.report.page_remat import remat_page_document
from windtunnel.report.remat_result import RematResult
from windtunnel.report.web_page import page_bytes, write_page

__all__ = ["is_folder_of", "write_remat_page"]

_PAGE, _REPORT = "report.html", "report.json"


def is_folder_of(recording: str, folder: Path) -> bool:
    """Whether a recording (a file, rankR/ or the folder of a run) lies in `folder`: then that is added to."""
    path, home = Path(recording).resolve(), folder.resolve()
    return home == path or home in path.parents[:2]


def write_remat_page(folder: Path, result: RematResult) -> str | None:
    """Write the page; a sentence if that failed."""
    earlier = run = None
    try:
        if (folder / _PAGE).is_file():
            earlier = read_page_document(folder / _PAGE)
        elif (folder / _REPORT).is_file():
            run = read_report(folder / _REPORT)
    except CorruptFile as error:
        return f"{_PAGE} was left as it is: {error.message}"
    try:
        write_page(folder / _PAGE, page_bytes("run", remat_page_document(result, earlier, run)))
    except OSError as error:
        return f"{_PAGE} could not be written: {error.strerror or error}"
    return None
