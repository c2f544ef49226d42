"""Show the report of a run again.

Opens DIR/report.html in the browser if there is one, and renders DIR/report.json in the terminal otherwise.
"""

from __future__ import annotations

import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from windtunnel.errors import UsageError
from windtunnel.report.json_file import read_report
from windtunnel.report.terminal import pencils_for, render_run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", type=Path, default=Path("windtunnel-out"), metavar="DIR",
                        help="what `windtunnel run --out` wrote (default: windtunnel-out)")  # fmt: skip


def run(args: Namespace) -> int:
    """Open the page, or print the report."""
    directory: Path = args.directory
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", hint="windtunnel run train.py makes one")
    page = directory / "report.html"
    if page.is_file() and webbrowser.open(page.resolve().as_uri()):
        print(f"opened {page}")
        return 0
    result = read_report(directory / "report.json")
    Console(highlight=False).print(render_run(result, pencils_for(sys.stdout)))
    print(f"\nnext: windtunnel replay {directory}   (the same run through other allocators)")
    return 0
