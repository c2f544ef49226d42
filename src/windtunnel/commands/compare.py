"""Find where two runs diverge: the first value that differs between two precision dumps, in execution order.

A and B are dump folders of PrecisionDebugger (windtunnel's or msProbe's, of PyTorch or MindSpore), or a step, a rank
or a dump.json inside one.
Statistics or full tensors are compared, whichever the dumps have. Rounding differences are distinguished from real
ones by the data types of the tensors and by the differences of their inputs; see --exact and --fail-over.

Exit code 3: the dumps differ.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.progress import Progress

from windtunnel import __version__
from windtunnel.commands.console import open_console
from windtunnel.errors import UsageError
from windtunnel.exit_codes import DIFFERENT
from windtunnel.probe.compare.comparison import OnProgress, compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.mapping import NO_MAPPING, Mapping
from windtunnel.probe.compare.mapping_file import read_mapping
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.report.json.compare import compare_text
from windtunnel.report.json.compare_csv import CsvReport
from windtunnel.report.page.precision import PrecisionPage
from windtunnel.report.results.compare import CompareResult
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.report.terminal.precision import render_compare
from windtunnel.terminal_text import plain_json, plain_text
from windtunnel.whole_file import whole_file

__all__ = ["add_arguments", "run"]

_PATIENCE_S = 2.0  # a progress bar appears only after this time
_PAGE = "compare.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: windtunnel compare dump_good dump_bad --html"
    parser.add_argument(
        "a", type=Path, metavar="A", help="the reference run: a dump folder, a step, a rank or a dump.json"
    )
    parser.add_argument("b", type=Path, metavar="B", help="the run to check")
    parser.add_argument(
        "--mapping",
        type=Path,
        metavar="FILE",
        help="file that maps names in A to names in B: msProbe's YAML format, or the same as TOML or JSON",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--fail-over",
        type=_tolerance,
        metavar="X",
        help="report relative errors above X as differences, for every data type",
    )
    how.add_argument("--exact", action="store_true", help="report every difference, including rounding")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the verdict to stdout as JSON")
    form.add_argument(
        "--csv", action="store_true", help="print one row per value to stdout as CSV, with msProbe's columns"
    )
    form.add_argument("--html", action="store_true", help=f"write a page with a chart to {_PAGE}")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write --json, --csv or --html to this file instead"
    )


def run(args: argparse.Namespace) -> int:
    """Compare step by step and print the verdict; the exit code is 3 if there is a difference."""
    if args.out is not None and not (args.json or args.csv or args.html):
        raise UsageError("--out needs an output format", hint="add --json, --csv or --html")
    findings, page = Findings(), PrecisionPage()
    with _destination(args) as stream, _progress() as on_progress:
        csv = CsvReport(stream) if stream is not None else None
        tolerance = Tolerance(args.fail_over, args.exact)
        mapping = Mapping(read_mapping(args.mapping)) if args.mapping is not None else NO_MAPPING
        for found in compare_dumps(args.a, args.b, tolerance, on_progress, findings.notes.append, mapping):
            findings.add(found)
            if args.html:
                page.add(found)
            if csv is not None:
                csv.add(found)
        if csv is not None:
            csv.close()
    result = CompareResult(__version__, str(args.a), str(args.b), args.fail_over, args.exact, findings)
    _show(args, result, page)
    return 0 if findings.is_equal else DIFFERENT


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a relative error such as 1e-3")
    return value


def _show(args: argparse.Namespace, result: CompareResult, page: PrecisionPage) -> None:
    if args.json:
        if args.out is None:
            sys.stdout.write(plain_json(compare_text(result)))
            return
        _write(args.out, compare_text(result).encode("utf-8", "backslashreplace"))
    path = args.out or Path(_PAGE)
    if args.html:
        _write(path, page.finish(result))
    console = open_console(stderr=args.csv and args.out is None)
    with console.capture() as captured:
        console.print(render_compare(result))
    # Names of modules may have characters that the encoding of this stream lacks.
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(captured.get().encode(encoding, "replace").decode(encoding))
    names = f"{shlex.quote(str(args.a))} {shlex.quote(str(args.b))}"
    if args.html:
        next_step = (
            f"open {shlex.quote(str(path))} in a browser   (the module tree, and the error of every call)"
        )
    elif result.findings.is_equal and not args.exact and result.findings.n_rounding:
        next_step = f"windtunnel compare {names} --exact   (where does rounding start?)"
    elif args.csv:
        next_step = f"windtunnel compare {names} --html   (the same as a chart)"
    else:
        next_step = f"windtunnel compare {names} --html   (the error of every call, in order)"
    print(plain_text(f"\nnext: {next_step}"), file=console.file)


@contextmanager
def _destination(args: argparse.Namespace) -> Iterator[BinaryIO | None]:
    """Yield the stream for the CSV rows; a file gets its name only when it is complete."""
    if not args.csv:
        yield None
    elif args.out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with _whole_file(args.out) as stream:
            yield stream


def _write(path: Path, content: bytes) -> None:
    with _whole_file(path) as stream:
        stream.write(content)


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    with ExitStack() as closing:
        try:
            stream = closing.enter_context(whole_file(path))
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror or error}", hint="choose another --out"
            ) from error
        yield stream


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Show a progress bar on a terminal if it takes long; it disappears when done."""
    started = time.monotonic()
    with Progress(
        console=PlainConsole(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def on_progress(what: str, done: int, total: int) -> None:
            if time.monotonic() - started > _PATIENCE_S:
                bar.update(task, description=what, completed=done, total=total, visible=True)

        yield on_progress
