"""The layout of dump.json, stack.json and construct.json: msProbe's keys, one entry per line.

encoded lines ──> header + lines + end, in buffers of a bounded size
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice

__all__ = ["construct_parts", "dump_parts", "stack_parts"]

_LINES_PER_BUFFER = 256  # joining all lines at once would double the memory of a step


def dump_parts(header: dict, entries: Iterable[bytes]) -> Iterator[bytes]:
    """dump.json or debug.json: the header's keys, then `data` with one entry per line."""
    keys = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    return chain([f'{{\n{keys} "data": '.encode()], _object(b"\n ", entries), [b"\n}\n"])


def stack_parts(stacks: Iterable[tuple[str, ...]], stack_of: dict[str, int]) -> Iterator[bytes]:
    """stack.json: number -> [names of entries, frames], the frames of equal stacks once."""
    names: dict[int, list[str]] = {}
    for name, number in stack_of.items():
        names.setdefault(number, []).append(name)
    lines = (
        f'"{number}": [[{", ".join(names[number])}], {json.dumps(frames)}]'.encode()
        for number, frames in enumerate(stacks)
        if number in names
    )
    return chain(_object(b"\n", lines), [b"\n"])


def construct_parts(parents: Iterable[bytes]) -> Iterator[bytes]:
    """construct.json: entry -> the module it ran in, or null."""
    return chain(_object(b"\n", parents), [b"\n"])


def _object(line_end: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON object of these lines, each one deeper than `line_end`; `{}` if there are none."""
    lines = iter(lines)
    start = b"{" + line_end + b" "
    between = b"," + line_end + b" "
    while batch := list(islice(lines, _LINES_PER_BUFFER)):
        yield start + between.join(batch)
        start = between
    yield b"{}" if start[:1] == b"{" else line_end + b"}"
