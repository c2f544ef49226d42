"""Match module paths written as in reports: `model.layers.0-27`, `stages.0,2.blocks.*`.

pattern ──> PathPatterns ──> match(path)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from windtunnel.errors import UsageError

__all__ = ["PathPatterns", "split_patterns"]

_PART = re.compile(r"[A-Za-z_]\w*|\*|\d+(-\d+)?(,\d+(-\d+)?)*")
_AT_A_COMMA = re.compile(r",(?=\s*[A-Za-z_*])")  # not a comma between two numbers


class PathPatterns:
    """Matches a path if one of the patterns does, part by part; `*` stands for any one part."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [[_Part(part) for part in pattern.split(".")] for pattern in patterns]

    def match(self, path: str) -> bool:
        parts = path.split(".")
        return any(
            len(pattern) == len(parts) and all(p.match(part) for p, part in zip(pattern, parts, strict=True))
            for pattern in self._patterns
        )


def split_patterns(text: str) -> tuple[str, ...]:
    """`layers.0-3,head` -> ("layers.0-3", "head"); raises for anything that is not a pattern."""
    patterns = tuple(pattern.strip() for pattern in _AT_A_COMMA.split(text))
    for pattern in patterns:
        wrong = next((part for part in pattern.split(".") if not _PART.fullmatch(part)), None)
        if wrong is not None:
            raise UsageError(
                f"{pattern!r} is not a module path: {wrong!r} is not a name, number or range",
                hint="write it as the report does, such as model.layers.0-27 or model.layers.*",
            )
    return patterns


class _Part:
    def __init__(self, text: str) -> None:
        self._text = text
        self._ranges: list[range] | None = None
        if text[:1].isdecimal():
            bounds = (piece.partition("-") for piece in text.split(","))
            self._ranges = [range(int(first), int(last or first) + 1) for first, _, last in bounds]

    def match(self, part: str) -> bool:
        if self._ranges is None:
            return self._text in ("*", part)
        return part.isdecimal() and any(int(part) in each for each in self._ranges)
