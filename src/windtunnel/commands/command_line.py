"""windtunnel: dry-run, rematerialise and probe large-model training from a laptop.

argv ──> corrected (underscores, mistyped names) ──> parser of one command ──> the command ──> exit code
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NoReturn

from windtunnel.errors import WindtunnelError
from windtunnel.exit_codes import INTERRUPTED
from windtunnel.frameworks import load_door
from windtunnel.interrupts import SENTENCE
from windtunnel.terminal_text import plain_text

__all__ = ["VERBS", "parser_of", "run_command", "with_known_options"]

# A verb is a module: its docstring is the help text, and it has `add_arguments(parser)` and `run(args)`. Only the verb
# that is used is imported: importing all of them takes longer than most of them run.
VERBS = ("run", "remat", "replay", "compare", "recover", "view", "devices")
_PROGRAM = "windtunnel"
_DESCRIPTION = "windtunnel: dry-run, rematerialise and probe large-model training from a laptop."


def run_command(argv: list[str], on_ready: Callable[[], object] = lambda: None) -> int:
    """Run one command line and return the exit code. `on_ready` is called right before the verb runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "…" shows "?"
    _check_verb(argv)
    parser, verbs = parser_of(argv[:1])
    if argv and argv[0] in verbs:
        argv = [argv[0], *with_known_options(argv[1:], verbs[argv[0]])]
    args = parser.parse_args(argv)
    try:
        on_ready()
        code = _module(args.verb).run(args)
        sys.stdout.flush()
        return code
    except WindtunnelError as error:
        print(plain_text(f"windtunnel: {error.message}"), file=sys.stderr)
        if error.hint:
            print(plain_text(f"  next: {error.hint}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(SENTENCE)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as in `| head`. Flushing what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser_of(asked: Iterable[str] = VERBS) -> tuple[argparse.ArgumentParser, dict[str, _Parser]]:
    """Return the parser of the given verbs, and one parser per verb; of all verbs if none is known."""
    parser = _Parser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog="start here: windtunnel run --device a100-80gb train.py",
    )
    parser.add_argument("--version", action="version", version=f"windtunnel {_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {}
    for name in [verb for verb in VERBS if verb in asked] or VERBS:
        module = _module(name)
        help_text = (module.__doc__ or "").strip()
        parsers[name] = verbs.add_parser(
            name,
            help=help_text.splitlines()[0],
            description=help_text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parsers[name])
    return parser, parsers


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence, with the command that lists the options."""

    def error(self, message: str) -> NoReturn:
        self.refuse(message, f"{self.prog} --help")

    def refuse(self, message: str, hint: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, plain_text(f"windtunnel: {message}\n  next: {hint}\n"))

    def option_of(self, text: str) -> argparse.Action | None:
        """Return the option with this name, or the only one that starts with it."""
        known = self._option_string_actions
        if text in known:
            return known[text]
        found = {id(action): action for name, action in known.items() if name.startswith(text)}
        return next(iter(found.values())) if len(found) == 1 else None

    @property
    def options(self) -> list[str]:
        return [name for name in self._option_string_actions if name.startswith("--")]

    @property
    def ends_with_a_script(self) -> bool:
        """Whether the words after the first argument belong to a script."""
        return any(action.nargs == argparse.REMAINDER for action in self._actions)


def _check_verb(argv: list[str]) -> None:
    """Reject an unknown verb at once, before any verb is imported."""
    if not argv or argv[0].startswith("-") or argv[0] in VERBS:
        return
    given = argv[0]
    near = difflib.get_close_matches(given, VERBS, n=1)
    hint = f"did you mean `{_PROGRAM} {near[0]}`?" if near else f"use one of {', '.join(VERBS)}"
    if given.endswith(".py"):
        hint = f"{_PROGRAM} run {given}"
    usage = f"{_PROGRAM} [-h] [--version] VERB ..."
    _Parser(prog=_PROGRAM, usage=usage).refuse(f"unknown command {given!r}", hint)


def with_known_options(argv: list[str], parser: _Parser) -> list[str]:
    """Replace underscores in option names by dashes, as torchrun does; the words after a script are left alone."""
    corrected = list(argv)
    n = 0
    while n < len(corrected):
        word = corrected[n]
        if word == "--" or (parser.ends_with_a_script and not word.startswith("-")):
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            option = parser.option_of(name) or parser.option_of(name.replace("_", "-"))
            if option is None:
                _refuse_option(name, parser)
            if parser.option_of(name) is None:
                corrected[n] = name.replace("_", "-") + equals + value
            takes_value = option.nargs is None and not equals
        else:
            option = parser.option_of(word) if word.startswith("-") else None
            takes_value = option is not None and option.nargs is None
        n += 2 if takes_value else 1
    return corrected


def _refuse_option(name: str, parser: _Parser) -> NoReturn:
    known = [option for option in parser.options if option.startswith(name)]  # an ambiguous prefix
    near = known or difflib.get_close_matches(name.replace("_", "-"), parser.options, n=1)
    said = f"did you mean {' or '.join(near)}? " if near else ""
    parser.refuse(f"unknown option {name}", f"{said}all options: {parser.prog} --help")


def _module(verb: str) -> ModuleType:
    return load_door(f"windtunnel.commands.{verb}")


def _version() -> str:
    from windtunnel import __version__

    return __version__
