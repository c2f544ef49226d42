"""Read a dump.json of any size entry by entry, whatever its layout, without holding it in memory.

    file ──> windows of text ──> one value at a time ──> (name, body) of every entry; the header's other keys

The decoder is Python's own, which accepts the bare NaN and Infinity that msProbe writes. If entries are on separate
lines, orjson reads those without such words four times as fast. Nothing is executed.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in the stubs
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file, parse_json, read_at_most

try:
    import orjson
except ImportError:  # only slower without it
    orjson = None  # type: ignore[assignment]

__all__ = ["EntryStream", "read_object"]

_WINDOW = 4 << 20  # bytes
_LARGEST_ENTRY = 1 << 25  # characters of one value: a call with ten thousand tensors has a tenth
_LARGEST_OBJECT = 1 << 30  # bytes of a file that is read at once: stack.json, construct.json
_SPACE = re.compile(r"[ \t\r\n]*")


class EntryStream:
    """Iterate once over the (name, body) pairs of a file's "data"; `header` is complete afterwards."""

    def __init__(self, path: Path, on_bytes: Callable[[int], None] = lambda n_bytes: None) -> None:
        self.path = path
        self._on_bytes = on_bytes  # called for every window
        self.header: dict[str, Any] = {}
        self._text = ""
        self._at = 0
        self._is_borderless = False  # no border in the rest of this window
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in the stubs

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        try:
            with open_file(self.path) as self._file:
                self._is_at_end = False
                yield from self._document()
        except OSError as error:
            raise CorruptFile(
                f"cannot read {self.path}: {error.strerror or error}", hint="check the path"
            ) from error
        except RecursionError:
            raise CorruptFile(
                f"{self.path} nests values too deeply to be a dump", hint="dump it again"
            ) from None

    def _document(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._string()
            self._expect(":")
            if key == "data" and self._peek() == "{":
                yield from self._entries()
            else:
                self.header[key] = self._value()
            if self._next() != ",":
                return

    def _entries(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._peek() == "}":
            self._at += 1
            return
        border = self._border()
        while True:
            name = self._string()
            self._expect(":")
            yield name, self._value(border)
            mark = self._next()
            if mark == "}":
                return
            if mark != ",":
                raise self._damaged()

    def _peek(self) -> str:
        """The next character that is not a space; "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches even ""
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_WINDOW):
                return ""

    def _next(self) -> str:
        mark = self._peek()
        self._at += 1
        return mark

    def _expect(self, mark: str) -> None:
        if self._next() != mark:
            raise self._damaged()

    def _string(self) -> str:
        self._expect('"')
        n_bytes = _WINDOW
        while True:
            try:
                value, self._at = scanstring(self._text, self._at, False)
                return value
            except ValueError:
                self._more_or_fail(n_bytes)
                n_bytes *= 2

    def _border(self) -> str:
        """The text between two entries, if they are on separate lines; "" otherwise."""
        before = self._text[: self._at]
        spaces = before[len(before.rstrip()) :]
        return f'}},{spaces}"' if orjson is not None and "\n" in spaces else ""

    def _value(self, border: str = "") -> Any:
        self._peek()
        end = self._text.find(border, self._at) if border and not self._is_borderless else -1
        # Other layouts have none: a window that has none is not searched again for each of its entries.
        self._is_borderless = end < 0
        if end >= 0:
            try:
                value = orjson.loads(self._text[self._at : end + 1])
                # A whole object is never the beginning of another one, so this is the value.
                self._at = end + 1
                return value
            except ValueError:
                pass  # a NaN, or a border inside the value: Python's decoder handles it
        n_bytes = _WINDOW
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._is_at_end:  # a number may go on in the next window
                    self._at = end
                    return value
            except (StopIteration, ValueError):
                pass
            self._more_or_fail(n_bytes)
            n_bytes *= 2

    def _more_or_fail(self, n_bytes: int) -> None:
        if len(self._text) - self._at > _LARGEST_ENTRY:
            raise CorruptFile(
                f"{self.path} has an entry of more than {_LARGEST_ENTRY:,} characters, the limit for one call",
                hint="dump it again",
            )
        if not self._more(n_bytes):
            raise self._damaged()

    def _more(self, n_bytes: int) -> bool:
        """Drop what was read and append the next window."""
        if self._is_at_end:
            return False
        chunk = self._file.read(n_bytes)
        self._is_at_end = not chunk
        self._on_bytes(len(chunk))
        self._text = self._text[self._at :] + self._decode(chunk, not chunk)
        self._at = 0
        self._is_borderless = False
        return True

    def _damaged(self) -> CorruptFile:
        where = "ends in the middle of a value" if self._is_at_end else "is not valid JSON"
        near = self._text[max(0, self._at - 20) : self._at + 40]
        return CorruptFile(
            f"{self.path} {where}, near {near!r}",
            hint="a process that was killed while writing leaves such a file: collect it again",
        )


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON object beside a dump; {} if the file does not exist."""
    try:
        found = parse_json(read_at_most(path, _LARGEST_OBJECT).decode("utf-8", "replace"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFile(
            f"cannot read {path}: {error.strerror or error}", hint="move it away to compare without it"
        ) from error
    except ValueError:
        raise CorruptFile(f"{path} is not valid JSON", hint="move it away to compare without it") from None
    if not isinstance(found, dict):
        raise CorruptFile(f"{path} is not a JSON object", hint="move it away to compare without it")
    return found
