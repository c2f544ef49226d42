"""windtunnel: dry-run, rematerialise and probe large-model training from a laptop."""

from __future__ import annotations

import argparse
import io
import os
import sys
from types import ModuleType
from typing import NoReturn

from windtunnel.errors import WindtunnelError
from windtunnel.frameworks import load_door
from windtunnel.terminal_text import plain_text

__all__ = ["main"]

# A verb is a module: its docstring is the help, `add_arguments(parser)` and `run(args)` are all it has. It is imported
# when it is asked for: together they take longer than most of what one of them does.
_VERBS = ("run", "remat", "replay", "compare", "view", "devices")


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    0 fits or equal, 1 a bug of ours, 2 usage, 3 the script failed or dumps differ, 4 does not fit, 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "…" shows "?" for it
    args = _parser(argv[:1]).parse_args(argv)
    try:
        code = _module(args.verb).run(args)
        sys.stdout.flush()
        return code
    except WindtunnelError as error:
        print(plain_text(f"windtunnel: {error.message}"), file=sys.stderr)
        if error.hint:
            print(plain_text(f"  next: {error.hint}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("windtunnel: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has seen enough, as in `| head`. What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one sentence, and where the options are."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, plain_text(f"windtunnel: {message}\n  next: {self.prog} --help\n"))


def _module(verb: str) -> ModuleType:
    return load_door(f"windtunnel.commands.{verb}")


def _parser(asked: list[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the verb that is asked for, or of all of them."""
    parser = _Parser(
        prog="windtunnel",
        description=__doc__,
        epilog="start here: windtunnel run --device a100-80gb train.py",
    )
    parser.add_argument("--version", action="version", version=f"windtunnel {_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in [verb for verb in _VERBS if verb in (asked or ())] or _VERBS:
        module = _module(name)
        help_text = (module.__doc__ or "").strip()
        verb = verbs.add_parser(
            name,
            help=help_text.splitlines()[0],
            description=help_text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
    return parser


def _version() -> str:
    from windtunnel import __version__

    return __version__


if __name__ == "__main__":
    sys.exit(main())
