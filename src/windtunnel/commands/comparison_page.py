"""The page that compares two runs or two precision dumps, and the same comparison as text for the terminal.

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
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.report.json.run import read_report
from windtunnel.report.page.precision import PrecisionPage
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.two_runs import comparison_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.results.compare import CompareResult
from windtunnel.report.results.two_runs import run_difference
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.report.terminal.precision import render_compare
from windtunnel.report.terminal.two_runs import render_comparison

__all__ = ["comparison_page", "is_run_folder", "precision_page"]

_REPORT, _PAGE = "report.json", "report.html"


def is_run_folder(path: Path) -> bool:
    """Whether this is the output folder of `windtunnel run`."""
    return (path / _REPORT).is_file()


def comparison_page(a: Path, b: Path) -> tuple[bytes, str]:
    """Compare two run folders."""
    a_run, b_run = read_report(a / _REPORT), read_report(b / _REPORT)
    document = comparison_document(_name(a), a_run, _page_of(a), _name(b), b_run, _page_of(b))
    text = _text(render_comparison(run_difference(a_run, b_run), str(a), str(b)))
    return page_bytes("comparison", document), text


def precision_page(a: Path, b: Path) -> tuple[bytes, str]:
    """Compare two dumps with the default tolerance."""
    findings, page = Findings(), PrecisionPage()
    for found in compare_dumps(a, b, Tolerance(), on_note=findings.notes.append):
        findings.add(found)
        page.add(found)
    result = CompareResult(__version__, str(a), str(b), None, False, findings)
    return page.finish(result), _text(render_compare(result))


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name or str(folder)


def _page_of(folder: Path) -> dict[str, Any] | None:
    """Return the data of report.html, which has more detail than report.json; None if it cannot be read."""
    try:
        return read_page_document(folder / _PAGE)
    except CorruptFile:
        return None


def _text(renderable: RenderableType) -> str:
    console = PlainConsole(file=StringIO(), width=open_console().width)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()
