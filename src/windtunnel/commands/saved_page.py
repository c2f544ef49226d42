"""The page of an earlier run, as its folder has it.

    DIR/report.html ───────────────┐
    DIR/report.json, remat.json ───┴──> bytes of a page, the same or newer each time it is asked for

A folder without report.html (`run --no-html`, or of an earlier windtunnel) still has the figures a page is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from windtunnel.commands.page_stage import PAGE, remat_beside
from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.report.json_file import read_report
from windtunnel.report.page_run import run_document
from windtunnel.report.web_page import page_bytes

__all__ = ["REPORT", "read_carefully", "saved_page"]

REPORT = "report.json"
_MOST_BYTES = 1 << 28  # the largest page that windtunnel writes has a tenth
_LEFT_OUT = (
    "This page was made from report.json alone: it names no single allocation and draws no step on a clock. "
    "Run the script again without --no-html for those."
)


def saved_page(folder: Path) -> Callable[[], bytes]:
    """What to call for the page; fails now, in a sentence, if there is none."""
    if (folder / PAGE).is_file():
        return _SavedFile(folder / PAGE)
    if (folder / REPORT).is_file():
        page = _page_of_report(folder)
        return lambda: page
    raise UsageError(
        f"there is no {PAGE} and no {REPORT} in {folder}", hint="name the --out folder of `windtunnel run`"
    )


@contextmanager
def read_carefully(path: Path | str) -> Iterator[None]:
    """Figures that are no figures end in a sentence: the file may come from elsewhere."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{path} is not a report of windtunnel: {type(error).__name__} {error!s:.200}",
            hint="run the script again, with --force to replace it",
        ) from error


class _SavedFile:
    """A page in a file. It is read again when a later run replaced it, so that reloading shows that run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def __call__(self) -> bytes:
        try:
            if self._stamp_now() != self._stamp:
                self._read()
        except (OSError, CorruptFile):
            pass  # a run that replaces it is under way: the page from before is still a page
        return self._page

    def _read(self) -> None:
        stamp = self._stamp_now()
        try:
            page = read_at_most(self._path, _MOST_BYTES)
        except OSError as error:
            raise CorruptFile(f"cannot read {self._path}: {error.strerror or error}") from error
        if not _is_whole(page):
            raise CorruptFile(
                f"{self._path} is not a whole page: its {len(page):,} bytes do not begin and end as HTML does",
                hint=f"remove it, and windtunnel view makes a page from {REPORT}",
            )
        self._page, self._stamp = page, stamp

    def _stamp_now(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _is_whole(page: bytes) -> bool:
    return page[:64].lstrip().lower().startswith(b"<!doctype html") and page.rstrip().endswith(b"</html>")


def _page_of_report(folder: Path) -> bytes:
    with read_carefully(folder / REPORT):
        result = read_report(folder / REPORT)
        cards = f"{result.world_size} × " if result.world_size > 1 else ""
        title = f"{folder.resolve().name} on {cards}{result.device.name}"
        return page_bytes(
            "run", run_document(result, title, remat=remat_beside(folder), left_out=[_LEFT_OUT])
        )
