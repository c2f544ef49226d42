"""Read back the arguments of an operator as a signature has them, without running any of it.

"_,[256],_,_,1e-05,dtype=torch.float32" ──> arguments ──> values, TENSOR for each tensor, Word for anything else
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["MORE", "TENSOR", "Word", "read_scalars"]

_DEEPEST = 8  # lists inside lists: no operator has more than two
_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_CLOSING = {"(": ")", "<": ">"}


class _Sign:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TENSOR = _Sign("TENSOR")  # in place of a tensor
MORE = _Sign("MORE")  # at the end of a list: it was longer than what is written


@dataclass(frozen=True, slots=True)
class Word:
    """Something that is not a literal: `torch.float32`, `device(type='cpu')`, a generator."""

    text: str


def read_scalars(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments; ValueError for text that is not from a signature."""
    reader = _Reader(text)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    while not reader.is_done:
        name = reader.keyword()
        if name:
            kwargs[name] = reader.value(0)
        else:
            args.append(reader.value(0))
        if not reader.is_done:
            reader.expect(",")
    return args, kwargs


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._text)

    def keyword(self) -> str:
        """The name before a `=`, if there is one here."""
        name, sign, _ = self._text[self._at :].partition("=")
        if not sign or not name.isidentifier():
            return ""
        self._at += len(name) + 1
        return name

    def expect(self, letter: str) -> None:
        if self._text[self._at : self._at + 1] != letter:
            raise ValueError(f"{letter!r} expected at character {self._at} of {self._text[:80]!r}")
        self._at += 1

    def value(self, depth: int) -> Any:
        if self._text[self._at : self._at + 1] != "[":
            return _literal(self._token())
        if depth == _DEEPEST:
            raise ValueError(f"lists nested more than {_DEEPEST} deep")
        self._at += 1
        found: list[Any] = []
        while self._text[self._at : self._at + 1] != "]":
            if self._text[self._at : self._at + 1] == "…":
                self._at += 1
                found.append(MORE)
                continue
            found.append(self.value(depth + 1))
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
            elif self._text[self._at : self._at + 1] not in ("…", "]"):
                raise ValueError(f"unclosed list in {self._text[:80]!r}")
        self._at += 1
        return found

    def _token(self) -> str:
        """Up to the next comma or end of list that is not inside quotes or brackets."""
        start, quote = self._at, ""
        waiting: list[str] = []  # closing brackets
        while self._at < len(self._text):
            letter = self._text[self._at]
            if quote:
                self._at += letter == "\\"
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            elif waiting and letter == waiting[-1]:
                waiting.pop()
            elif letter in _CLOSING:
                waiting.append(_CLOSING[letter])
            elif not waiting and letter in ",]…":
                break
            self._at += 1
        token = self._text[start : self._at]
        if not token:
            raise ValueError(f"nothing found at character {start} of {self._text[:80]!r}")
        return token


def _literal(token: str) -> Any:
    if token == "_":
        return TENSOR
    if token in _SPECIAL:
        return _SPECIAL[token]
    try:
        return ast.literal_eval(token)  # numbers, strings, None, True: it runs nothing
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Word(token)
