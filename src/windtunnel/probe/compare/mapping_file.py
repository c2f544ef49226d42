"""Read a user's file of corresponding names: the mapping files of msProbe's compare, or the same in TOML or JSON.

    .yaml, .yml, .toml, .json ──> read_mapping ──> rules, each with its line

Only the part of YAML that these files use is read: `left: right` lines, sections of such lines, and lists of
`- ms_api: ...` blocks. Anything else is rejected with its line. The kind of a pair follows from the names, or from its
section.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.foreign_files import open_file, parse_json, parse_toml
from windtunnel.probe.compare.framework_words import API_PREFIXES

__all__ = ["API", "CELL", "DATA", "LAYER", "Rule", "read_mapping"]

CELL, API, DATA, LAYER = "cell_mapping", "api_mapping", "data_mapping", "layer_mapping"

_LARGEST = 1 << 24  # bytes: a mapping is written by hand or by a script
_LISTS = ("args", "output", "parameters", "parameters_grad")  # after ms_ and pt_
_STEMS = {"args": "input.", "output": "output.", "parameters": "parameters.", "parameters_grad": ""}
_DATA = re.compile(r".+\.(?:forward|backward|parameters_grad)(?:\..+)?|.+\.\d+(?:\.pass\d+)?\.debug(?:\..+)?")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_SPECIAL = "[]{}&*!|>%@`,\"'#?-"  # at the start they begin YAML syntax that a mapping does not need
_LONGEST = 4096  # characters in a line


@dataclass(frozen=True, slots=True)
class Rule:
    """`left` is MindSpore's name, or A's where both sides are of one framework; `right` is the other name."""

    kind: str
    left: str
    right: str
    line: int  # 0: not known
    scope: str = ""  # of LAYER: the class of the module that `left` is a child of
    values: tuple[tuple[str, str], ...] = ()  # of API: values of a call that have another place


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    is_item: bool
    key: str
    value: Any  # text, list of texts, or None for a section


def read_mapping(path: Path) -> tuple[Rule, ...]:
    """All rules of a file, in order."""
    try:
        with open_file(path) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="pass a mapping file"
        ) from error
    if len(data) > _LARGEST:
        raise UsageError(
            f"{path} is larger than {_LARGEST >> 20} MiB", hint="pass a mapping file, not a dump"
        )
    try:
        text = data.decode("utf-8-sig")
        if path.suffix == ".toml":
            found = list(_from_document(parse_toml(data.removeprefix(codecs.BOM_UTF8)), path))
        elif path.suffix == ".json":
            found = list(_from_document(parse_json(text), path))
        else:
            found = list(_from_lines(list(_lines(text, path)), path))
    except (ValueError, RecursionError) as error:  # all of its decoders raise kinds of ValueError
        raise UsageError(
            f"{path} cannot be read: {error}", hint="write lines such as  fc.Dense: fc.Linear"
        ) from error
    if not found:
        raise UsageError(f"{path} contains no mapping", hint="write lines such as  fc.Dense: fc.Linear")
    return tuple(found)


def _refuse(path: Path, line: int, fact: str) -> UsageError:
    where = f"line {line} of {path}" if line else str(path)
    return UsageError(f"{where}: {fact}", hint="see docs/compare.md for what a mapping file may contain")


def _lines(text: str, path: Path) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        bare = line.lstrip(" ")
        if not bare or bare.startswith("#") or line in ("---", "..."):
            continue
        if bare.startswith("\t"):
            raise _refuse(path, number, "it is indented with a tab; use spaces")
        is_item = bare.startswith("- ")
        content = bare[2:].lstrip() if is_item else bare
        key, value = _split(_without_comment(content)) if len(raw) <= _LONGEST else ("", "")
        if not key:
            raise _refuse(path, number, f"{bare[:60]!r} is not of the form `left: right`")
        indent = len(line) - len(bare) + (2 if is_item else 0)
        yield _Line(number, indent, is_item, _scalar(key, path, number), _value(value, path, number))


def _split(text: str) -> tuple[str, str]:
    """Key and value around the first colon followed by a space or the end; no key if there is none."""
    quoted = _QUOTED.match(text)
    start = quoted.end() if quoted else 0
    at = f"{text} ".find(": ", start)
    is_pair = at > 0 and (quoted is None or not text[start:at].strip())
    return (text[:at].rstrip(), text[at + 1 :].strip()) if is_pair else ("", "")


def _without_comment(text: str) -> str:
    """A # begins a comment after a space, outside quotes."""
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (at == 0 or text[at - 1] in " [,"):
            quote = letter
        elif letter == "#" and at and text[at - 1] == " ":
            return text[:at].rstrip()
    return text.rstrip()


def _value(text: str, path: Path, line: int) -> Any:
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(each.strip(), path, line) for each in inner.split(",")] if inner else []
    return _scalar(text, path, line) if text else None


def _scalar(text: str, path: Path, line: int) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return json.loads(text) if text[0] == '"' else text[1:-1]
    if text[:1] in _SPECIAL and text:
        raise _refuse(path, line, f"{text[:60]!r} is YAML syntax that is not supported here")
    return text


def _from_lines(lines: list[_Line], path: Path) -> Iterator[Rule]:
    section, section_indent, at = "", -1, 0
    while at < len(lines):
        line = lines[at]
        if line.indent <= section_indent and not (line.is_item and line.indent - 2 >= section_indent):
            section, section_indent = "", -1
        if line.is_item:
            block = [line]
            while at + 1 < len(lines) and not lines[at + 1].is_item and lines[at + 1].indent == line.indent:
                at += 1
                block.append(lines[at])
            yield _block({each.key: each.value for each in block}, line.number, section, path)
        elif line.value is None:
            if section:
                raise _refuse(path, line.number, f"{line.key!r} is a section inside a section")
            section, section_indent = line.key, line.indent
        else:
            yield _pair(line.key, line.value, line.number, section, path)
        at += 1


def _from_document(document: Any, path: Path, section: str = "") -> Iterator[Rule]:
    """The same from TOML or JSON, where line numbers are not known."""
    if isinstance(document, list):
        for item in document:
            if not isinstance(item, dict):
                raise _refuse(path, 0, f"a {type(item).__name__} is not a block with ms_api and pt_api")
            yield _block(item, 0, section, path)
    elif isinstance(document, dict):
        for key, value in document.items():
            if isinstance(value, (dict, list)):
                if section:
                    raise _refuse(path, 0, f"{key!r} is a section inside a section")
                yield from _from_document(value, path, key)
            else:
                yield _pair(key, value, 0, section, path)
    else:
        raise _refuse(path, 0, "it is not a table of names")


def _pair(left: str, right: Any, line: int, section: str, path: Path) -> Rule:
    if not isinstance(right, str) or not left or not right:
        raise _refuse(path, line, f"{left!r} has no name on the other side")
    left, right = (each.removeprefix("Cell.").removeprefix("Module.") if section != DATA and not _DATA.fullmatch(each)
                   else each for each in (left, right))  # fmt: skip
    kind = section or (DATA if _DATA.fullmatch(left) else API if _is_api(left) else CELL)
    if kind in (CELL, API, DATA):
        return Rule(kind, left, right, line)
    return Rule(LAYER, left, right.partition("(")[0], line, scope=section)


def _is_api(name: str) -> bool:
    prefix, dot, _ = name.partition(".")
    return bool(dot) and prefix in API_PREFIXES


def _block(block: dict[str, Any], line: int, section: str, path: Path) -> Rule:
    """`ms_api`, `pt_api`, and which of their values correspond."""
    known = {"ms_api", "pt_api", *(f"{side}_{each}" for side in ("ms", "pt") for each in _LISTS)}
    if section not in ("", API) or set(block) - known:
        odd = next(iter(set(block) - known), section)
        raise _refuse(path, line, f"{odd!r} is not allowed in a block with ms_api and pt_api")
    left, right = block.get("ms_api"), block.get("pt_api")
    if not isinstance(left, str) or not isinstance(right, str):
        raise _refuse(path, line, "a block needs both ms_api and pt_api")
    values: list[tuple[str, str]] = []
    for name in _LISTS:
        ours, theirs = block.get(f"ms_{name}") or [], block.get(f"pt_{name}") or []
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            raise _refuse(path, line, f"ms_{name} and pt_{name} are not lists of the same length")
        values += [(f"{_STEMS[name]}{x}", f"{_STEMS[name]}{y}") for x, y in zip(ours, theirs, strict=True)]
    return Rule(API, left, right, line, values=tuple(values))
