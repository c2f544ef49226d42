"""Look at the report of a run in a browser, or at two runs side by side.

The page of DIR is shown at an address of this machine only, until Ctrl-C; nothing else can be reached there.
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

from windtunnel.commands.compare_pages import comparison_page, is_run_folder, precision_page
from windtunnel.commands.console import open_console
from windtunnel.commands.page_server import PageServer
from windtunnel.commands.saved_page import REPORT, read_carefully, saved_page
from windtunnel.errors import UsageError
from windtunnel.report.json_file import read_report
from windtunnel.report.terminal import show_run
from windtunnel.terminal_text import plain_text

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = "example: windtunnel view windtunnel-out"
    parser.add_argument("directory", nargs="?", type=Path, default=Path("windtunnel-out"), metavar="DIR",
                        help="what `windtunnel run --out` wrote (default: windtunnel-out)")  # fmt: skip
    parser.add_argument("other", nargs="?", type=Path, metavar="DIR_B", help="what to compare it with")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    how.add_argument("--text", action="store_true", help="print the report here instead of showing a page")


def run(args: Namespace) -> int:
    """Serve the page until Ctrl-C, or print the report."""
    if args.other is not None:
        page, text = _pair(args.directory, args.other)
        if args.text:
            _print(text)
            return 0
        return _serve(lambda: page, f"{args.directory} beside {args.other}", not args.no_open, text)
    _check_folder(args.directory)
    if args.text:
        return _print_report(args.directory)
    return _serve(saved_page(args.directory), str(args.directory), not args.no_open)


def _pair(a: Path, b: Path) -> tuple[bytes, str]:
    """The page of two, and what a terminal says of them."""
    for path in (a, b):
        if not path.exists():
            raise UsageError(f"there is no {path}", hint="name two folders of runs, or two dumps")
    runs = [path for path in (a, b) if is_run_folder(path)]
    if len(runs) == 1:
        (dump,) = {a, b} - set(runs)
        raise UsageError(
            f"{runs[0]} is a run and {dump} is none, so they cannot be compared",
            hint="name two folders of `windtunnel run`, or two dumps of the probe",
        )
    if not runs:
        return precision_page(a, b)
    with read_carefully(f"{a / REPORT} or {b / REPORT}"):
        return comparison_page(a, b)


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise UsageError(f"{folder} is a file", hint=f"windtunnel view {shlex.quote(str(folder.parent))}")
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder}", hint="windtunnel run train.py makes one")


def _print_report(folder: Path) -> int:
    with read_carefully(folder / REPORT):
        show_run(open_console(), read_report(folder / REPORT))
    name = plain_text(shlex.quote(str(folder)))
    print(f"\nnext: windtunnel view {name}   (the same as a page)")
    print(f"      windtunnel replay {name}   (the same run through other allocators)")
    return 0


def _print(text: str) -> None:
    # A module or a folder may be named in letters this stream does not have.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _serve(page: Callable[[], bytes], what: str, opens: bool, text: str = "") -> int:
    if threading.current_thread() is threading.main_thread():
        # A shell without job control starts jobs in the background deaf to it; this one has no other end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with PageServer(page) as server:
        # In one go with what follows: whoever reads only the first line may then go away.
        print(server.address)
        if text:
            _print(text)
        _print(f"shows {plain_text(what)} to this machine only; Ctrl-C ends it")
        if os.environ.get("SSH_CONNECTION") and not _has_screen():
            tunnel = f"{server.port}:127.0.0.1:{server.port}"
            print(f"from yours: ssh -N -L {tunnel} {socket.gethostname()}   (then open the address there)")
        sys.stdout.flush()
        try:
            if opens and _has_screen():
                # A browser may take its time to answer, and the page is wanted meanwhile.
                threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nthe page is no longer shown")
    return 0


def _has_screen() -> bool:
    """Whether a browser can open a window; without one Python would start a text browser in this terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
