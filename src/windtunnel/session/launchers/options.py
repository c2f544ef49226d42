"""Read a launcher's options up to the script, from a table of those we know; others are asked of the launcher itself.

    words, Table ──> Parsed: options with their values, the words from the script on

A table says how many values an option takes. An option it does not have is looked up in the launcher's own parser, in
another process, because importing it takes seconds. Where that is not installed, the option is refused: its value cannot
be told from the script's name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.errors import UsageError

__all__ = ["Parsed", "Table", "own_options", "read_options"]

Arities = dict[str, int]  # option -> number of values it takes
_START = "import sys; del sys.path[0]; from windtunnel.session.launchers.own_options import start; start(sys.argv[1])"
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Table:
    """The options of a launcher, by name with dashes."""

    launcher: str
    with_value: frozenset[str]
    flags: frozenset[str]
    repeated: frozenset[str] = frozenset()  # keep every value, not only the last
    two_values: frozenset[str] = frozenset()
    is_dashed: bool = True  # underscores in names are the same as dashes
    parser: str = ""  # the name under which own_options knows the launcher's own parser
    glued: frozenset[str] = frozenset()  # short options whose value may follow at once: -n8


@dataclass(frozen=True)
class Parsed:
    """The options that were given, by the name in the table, and the rest of the words."""

    values: dict[str, str]
    every: dict[str, tuple[str, ...]]
    flags: frozenset[str]
    rest: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def first(self, *names: str) -> str | None:
        """The value of the first of these options that was given."""
        return next((self.values[name] for name in names if name in self.values), None)


def read_options(
    words: Sequence[str], table: Table, ask: Callable[[str], Arities | None] | None = None
) -> Parsed:
    """Split a launcher's words into its options and the command it starts."""
    values: dict[str, str] = {}
    every: dict[str, tuple[str, ...]] = {}
    flags: set[str] = set()
    notes: list[str] = []
    n = 0
    while n < len(words):
        word = words[n]
        if word == "--":
            n += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=")
        name = _known_name(name, table)
        n_values = _arity(name, table)
        if n_values is None and name[:2] in table.glued and not name.startswith("--"):
            name, value, equals, n_values = name[:2], name[2:] + equals + value, "=", 1
        if n_values is None:
            n_values = _asked(name, table, ask)
            notes.append(f"{name} of {table.launcher} is not simulated")
        n += 1
        if n_values == 0:
            flags.add(name)
            continue
        found = [value] if equals else list(words[n : n + n_values])
        if len(found) < (1 if equals else n_values):
            raise UsageError(f"{table.launcher} {name} has no value", hint=f"write {name} VALUE")
        n += 0 if equals else n_values
        values[name] = found[0]
        every[name] = (*every.get(name, ()), " ".join(found))
    return Parsed(values, every, frozenset(flags), tuple(words[n:]), tuple(notes))


def own_options(parser: str) -> Arities | None:
    """The options of an installed launcher's own parser; None if it is not installed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, parser], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_PATIENCE_S, check=True,
        )  # fmt: skip
        return json.loads(done.stdout.decode().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _known_name(name: str, table: Table) -> str:
    if not table.is_dashed or not name.startswith("--"):
        return name
    dashed = "--" + name[2:].replace("_", "-")
    options = table.with_value | table.flags
    if dashed in options:
        return dashed
    near = [option for option in options if option.startswith(dashed)]  # argparse accepts a unique beginning
    return near[0] if len(near) == 1 else dashed


def _arity(name: str, table: Table) -> int | None:
    if name in table.with_value:
        return 1
    if name in table.two_values:
        return 2
    return 0 if name in table.flags else None


def _asked(name: str, table: Table, ask: Callable[[str], Arities | None] | None) -> int:
    known = (ask or own_options)(table.parser) if table.parser else None
    if known is None:
        hint = "put `--` before the command that it starts" if not table.parser else "leave the option out"
        why = "" if not table.parser else f", and {table.launcher} is not installed here to ask"
        raise UsageError(f"unknown option {name} of {table.launcher}{why}", hint=hint)
    underscored = "--" + name[2:].replace("-", "_")
    for spelling in (name, underscored):
        if spelling in known:
            return known[spelling]
    raise UsageError(
        f"{table.launcher} has no option {name}", hint=f"{table.launcher} --help lists its options"
    )
