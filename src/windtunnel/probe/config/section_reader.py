"""One object of a config file, read key by key; an error names the key, its value and what is allowed.

{"level": "L3"} ──> Section.choice("level", LEVELS, "L1") ──> value, or ProbeConfigError with the closest match
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from windtunnel.errors import ProbeConfigError

__all__ = ["Section", "quoted"]

_SHOWN_CHARS = 80
_COMMENTS = ("_", "#", "//")  # keys that begin with one of these are comments


class Section:
    """The values of one JSON object, and where it is from, for error messages. null means unset."""

    def __init__(self, source: str, values: object, prefix: str = "") -> None:
        self.source = source
        self.prefix = prefix
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise ProbeConfigError(
                f'{source}: "{prefix.rstrip(".")}" is {shown(values)}', hint="it must be an object {...}"
            )
        self.values = {
            key: value
            for key, value in values.items()
            if value is not None and not str(key).startswith(_COMMENTS)
        }

    def check_keys(self, known: Collection[str]) -> None:
        """Reject an unknown key, and suggest the one that was probably meant."""
        for key in self.values:
            if key not in known:
                place = f' in "{self.prefix.rstrip(".")}"' if self.prefix else ""
                raise ProbeConfigError(
                    f'{self.source}: unknown key "{str(key)[:_SHOWN_CHARS]}"{place}',
                    hint=_nearest(key, known),
                )

    def wrong(self, key: str, allowed: str) -> ProbeConfigError:
        return ProbeConfigError(
            f'{self.source}: "{self.prefix}{key}" is {shown(self.values.get(key))}', hint=allowed
        )

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        value = self.values.get(key)
        if value is None or value == "":
            return default
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(key, f"allowed: {quoted(allowed)}{_did_you_mean(value, allowed)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "allowed: true, false")
        return value

    def count(self, key: str, default: int) -> int:
        """A positive number, or -1 for no limit."""
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
            raise self.wrong(key, "allowed: a positive integer, or -1 for no limit")
        return value

    def seconds(self, key: str, default: float, longest: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(key, f"allowed: seconds, from 0 to {longest:g}")
        if not 0 <= value <= longest:
            raise self.wrong(key, f"allowed: seconds, from 0 to {longest:g}")
        return float(value)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise self.wrong(key, "it must be a string in double quotes")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            example = f"[{shown(value)}]" if isinstance(value, str) else '["first", "second"]'
            raise self.wrong(key, f"it must be a list of strings, such as {example}")
        return tuple(value)


def quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def shown(value: object) -> str:
    """A value as it is in the file, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def _did_you_mean(word: object, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(str(word)[:_SHOWN_CHARS].lower(), by_lower, n=1, cutoff=0.6)
    return f'; did you mean "{by_lower[close[0]]}"?' if close else ""


def _nearest(word: object, known: Collection[str]) -> str:
    if not known:
        return "it takes no keys"
    return _did_you_mean(word, known).lstrip("; ") or f"known keys: {', '.join(sorted(known))}"
