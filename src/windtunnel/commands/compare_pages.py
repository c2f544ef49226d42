"""The page of two things side by side, with what a terminal says of it: two runs, or two precision dumps.

    folders of two runs ──> comparison_page ──┐
    two dumps ────────────> precision_page ───┴──> (bytes of a page, text for the terminal)

Nothing is written here: `compare` puts the page in a file, `view` serves it.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from windtunnel import __version__
from windtunnel.commands.console import open_console
from windtunnel.errors import CorruptFile
from windtunnel.probe.comparison import compare_dumps
from windtunnel.probe.tolerance import Tolerance
from windtunnel.probe.verdict import Findings
from windtunnel.report.compare_page import PrecisionPage
from windtunnel.report.compare_result import CompareResult
from windtunnel.report.compare_table import render_compare
from windtunnel.report.comparison_table import render_comparison
from windtunnel.report.json_file import read_report
from windtunnel.report.page_comparison import comparison_document
from windtunnel.report.page_file import read_page_document
from windtunnel.report.plain_console import PlainConsole
from windtunnel.report.run_difference import run_difference
from windtunnel.report.web_page import page_bytes

__all__ = ["comparison_page", "is_run_folder", "precision_page"]

_REPORT, _PAGE = "report.json", "report.html"


def is_run_folder(path: Path) -> bool:
    """Whether `windtunnel run` wrote it."""
    return (path / _REPORT).is_file()


def comparison_page(a: Path, b: Path) -> tuple[bytes, str]:
    """Two run folders."""
    a_run, b_run = read_report(a / _REPORT), read_report(b / _REPORT)
    document = comparison_document(_name(a), a_run, _page_of(a), _name(b), b_run, _page_of(b))
    text = _text(render_comparison(run_difference(a_run, b_run), str(a), str(b)))
    return page_bytes("comparison", document), text


def precision_page(a: Path, b: Path) -> tuple[bytes, str]:
    """Two dumps, compared with the usual tolerance."""
    findings, page = Findings(), PrecisionPage()
    for found in compare_dumps(a, b, Tolerance(), on_note=findings.notes.append):
        findings.add(found)
        page.add(found)
    result = CompareResult(__version__, str(a), str(b), None, False, findings)
    return page.finish(result), _text(render_compare(result))


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name or str(folder)


def _page_of(folder: Path) -> dict[str, Any] | None:
    """The page has more to tell than the report, but is not needed."""
    try:
        return read_page_document(folder / _PAGE)
    except CorruptFile:
        return None


def _text(renderable: RenderableType) -> str:
    console = PlainConsole(file=StringIO(), width=open_console().width)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()
