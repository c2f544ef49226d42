"""View the report of a run in a browser, or compare two runs side by side.

The page of DIR is served to this machine only, until Ctrl-C; nothing else is served.
With DIR_B the two are compared: two runs, or two dump folders of the probe.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from windtunnel.commands.comparison_page import comparison_page, is_run_folder, precision_page
from windtunnel.commands.console import open_console
from windtunnel.commands.page_server import PageServer
from windtunnel.commands.saved_page import REPORT, read_carefully, saved_page
from windtunnel.errors import UsageError
from windtunnel.report.json.run import read_report
from windtunnel.report.terminal.run import show_run
from windtunnel.terminal_text import plain_text

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = "example: windtunnel view windtunnel-out"
    parser.add_argument("directory", nargs="?", type=Path, default=Path("windtunnel-out"), metavar="DIR",
                        help="output folder of `windtunnel run` (default: windtunnel-out)")  # fmt: skip
    parser.add_argument(
        "other", nargs="?", type=Path, metavar="DIR_B", help="run or dump folder to compare it with"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--no-open", action="store_true", help="print the address without opening a browser")
    how.add_argument("--text", action="store_true", help="print the report as text instead of serving a page")


def run(args: Namespace) -> int:
    """Serve the page until Ctrl-C, or print the report."""
    if args.other is not None:
        page, text = _pair(args.directory, args.other)
        if args.text:
            _print(text)
            return 0
        return _serve(lambda: page, f"{args.directory} and {args.other} side by side", not args.no_open, text)
    _check_folder(args.directory)
    if args.text:
        return _print_report(args.directory)
    return _serve(saved_page(args.directory), str(args.directory), not args.no_open)


def _pair(a: Path, b: Path) -> tuple[bytes, str]:
    """Return the page that compares two folders, and the comparison as text."""
    for path in (a, b):
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint="pass two run folders, or two dumps")
    runs = [path for path in (a, b) if is_run_folder(path)]
    if len(runs) == 1:
        (dump,) = {a, b} - set(runs)
        raise UsageError(
            f"{runs[0]} is a run and {dump} is not, so they cannot be compared",
            hint="pass two output folders of `windtunnel run`, or two dumps of the probe",
        )
    if not runs:
        return precision_page(a, b)
    with read_carefully(f"{a / REPORT} or {b / REPORT}"):
        return comparison_page(a, b)


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise UsageError(f"{folder} is a file", hint=f"windtunnel view {shlex.quote(str(folder.parent))}")
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder}", hint="windtunnel run train.py creates one")


def _print_report(folder: Path) -> int:
    with read_carefully(folder / REPORT):
        show_run(open_console(), read_report(folder / REPORT))
    name = plain_text(shlex.quote(str(folder)))
    print(f"\nnext: windtunnel view {name}   (the same as a page)")
    print(f"      windtunnel replay {name}   (the same run with other allocators)")
    return 0


def _print(text: str) -> None:
    # Names of modules and folders may have characters that the encoding of this stream lacks.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _serve(page: Callable[[], bytes], what: str, opens: bool, text: str = "") -> int:
    if threading.current_thread() is threading.main_thread():
        # A shell without job control starts background jobs with SIGINT ignored; this command ends in no other way.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with PageServer(page) as server:
        # Flushed together with the lines below: a reader of the first line may close the pipe after it.
        print(server.address)
        if text:
            _print(text)
        _print(f"serving {plain_text(what)} to this machine only; press Ctrl-C to stop")
        if os.environ.get("SSH_CONNECTION") and not _has_screen():
            tunnel = f"{server.port}:127.0.0.1:{server.port}"
            print(
                f"from your machine: ssh -N -L {tunnel} {socket.gethostname()}   (then open the address there)"
            )
        sys.stdout.flush()
        try:
            if opens and _has_screen():
                # In a thread: starting a browser may take a while, and it asks for the page meanwhile.
                threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped")
    return 0


def _has_screen() -> bool:
    """Whether a browser can open a window; otherwise Python would start a text browser in this terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
