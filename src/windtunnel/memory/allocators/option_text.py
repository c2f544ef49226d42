"""The option text of an allocator, as environment variables carry it.

    "key:value,key:[bound:value,…]" ──parse_conf──> {key: value} ──read_*──> numbers and flags

Blanks are ignored; a wrong key or value is refused by name, with the nearest thing that is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import NoReturn

from windtunnel.errors import UsageError

__all__ = ["parse_conf", "read_flag", "read_share", "read_whole", "refuse_value"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def parse_conf(conf: str, known_keys: Collection[str]) -> dict[str, str]:
    """Cut the text into options; a later value of the same key wins."""
    options = {}
    text = re.sub(r"\s+", "", conf or "")
    for part in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text):
        key, colon, value = part.partition(":")
        if key not in known_keys:
            near = get_close_matches(key, known_keys, n=1, cutoff=0.0)
            raise UsageError(
                f"unknown allocator option {key!r} (in {part!r})",
                hint=f"the nearest known one is {near[0]!r}",
            )
        if not colon or not value:
            raise UsageError(f"allocator option {key!r} has no value", hint=f"write {key}:VALUE")
        options[key] = value
    return options


def refuse_value(key: str, value: str, wanted: str) -> NoReturn:
    raise UsageError(f"allocator option {key!r} cannot be {value!r}", hint=f"it wants {wanted}")


def read_whole(
    options: Mapping[str, str], key: str, default: int, is_valid: Callable[[int], bool], wanted: str
) -> int:
    text = options.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"[+-]?\d+", text) or not is_valid(int(text)):
        refuse_value(key, text, wanted)
    return int(text)


def read_share(
    options: Mapping[str, str], key: str, default: float, is_valid: Callable[[float], bool], wanted: str
) -> float:
    text = options.get(key)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not is_valid(float(text)):
        refuse_value(key, text, f"a number {wanted}")
    return float(text)


def read_flag(options: Mapping[str, str], key: str) -> bool:
    text = options.get(key, "False")
    if text not in ("True", "False"):
        refuse_value(key, text, "True or False")
    return text == "True"
