"""The page of an earlier run, read from its folder.

    DIR/report.html ───────────────┐
    DIR/report.json, remat.json ───┴──> bytes of a page, read again when a later run replaced it

A folder without report.html (`run --no-html`, or an earlier version) still has report.json, which is enough for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.report.json.run import read_report
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.session.page_stage import PAGE, remat_of_folder

__all__ = ["REPORT", "read_carefully", "saved_page"]

REPORT = "report.json"
_MOST_BYTES = 1 << 28  # ten times the largest page that windtunnel writes
_LEFT_OUT = (
    "This page was made from report.json alone: it has no single allocations and no timeline of a step. "
    "Run the script again without --no-html to get them."
)


def saved_page(folder: Path) -> Callable[[], bytes]:
    """Return a function that returns the page; raises now if there is none."""
    if (folder / PAGE).is_file():
        return _SavedFile(folder / PAGE)
    if (folder / REPORT).is_file():
        page = _page_of_report(folder)
        return lambda: page
    raise UsageError(
        f"there is no {PAGE} and no {REPORT} in {folder}", hint="pass the --out folder of `windtunnel run`"
    )


@contextmanager
def read_carefully(path: Path | str) -> Iterator[None]:
    """Turn exceptions caused by wrong values into CorruptFile: the file may come from someone else."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{path} is not a windtunnel report: {type(error).__name__} {error!s:.200}",
            hint="run the script again with --force to replace it",
        ) from error


class _SavedFile:
    """A page in a file. It is read again when a later run replaced it, so that a reload shows the later run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def __call__(self) -> bytes:
        try:
            if self._stamp_now() != self._stamp:
                self._read()
        except (OSError, CorruptFile):
            pass  # a run is replacing it right now: keep the previous page
        return self._page

    def _read(self) -> None:
        stamp = self._stamp_now()
        try:
            page = read_at_most(self._path, _MOST_BYTES)
        except OSError as error:
            raise CorruptFile(f"cannot read {self._path}: {error.strerror or error}") from error
        if not _is_whole(page):
            raise CorruptFile(
                f"{self._path} is incomplete: its {len(page):,} bytes do not start and end like an HTML page",
                hint=f"delete it, and windtunnel view will make a page from {REPORT}",
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
        n_devices = f"{result.world_size} × " if result.world_size > 1 else ""
        title = f"{folder.resolve().name} on {n_devices}{result.device.name}"
        return page_bytes(
            "run", run_document(result, title, remat=remat_of_folder(folder), left_out=[_LEFT_OUT])
        )
