"""The name patterns of a config, compiled into one predicate.

    ["relu", "Functional.linear.*.forward", "re:fc[12]"] ──> matcher ──> matcher("Functional.relu.0.forward") -> True

A plain word matches anywhere in a name, as in msProbe; one with * or ? must match the whole name; `re:` is searched
for; `name-regex(...)`, MindSpore's own, must match the whole name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

__all__ = ["check_pattern", "matcher"]

_MINDSPORE_REGEX = "name-regex("


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate that is true for names that match any of the patterns."""
    plain, searches = [], []
    for pattern in patterns:
        expression = _expression(pattern)
        if expression is None:
            plain.append(pattern)
        else:
            searches.append(re.compile(expression).search)
    if plain:
        # One pass of the regex engine over all plain words, however many the user lists.
        searches.insert(0, re.compile("|".join(map(re.escape, plain))).search)
    if len(searches) == 1:
        (search,) = searches
        return lambda name: search(name) is not None
    return lambda name: any(search(name) is not None for search in searches)


def check_pattern(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None."""
    try:
        re.compile(_expression(pattern) or "")
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is not a valid regular expression: {error}"
    return None


def _expression(pattern: str) -> str | None:
    """The regular expression a pattern stands for; None for a plain word."""
    if pattern.startswith("re:"):
        return pattern[3:]
    if pattern.startswith(_MINDSPORE_REGEX) and pattern.endswith(")"):
        return rf"\A(?:{pattern[len(_MINDSPORE_REGEX) : -1]})\Z"
    if "*" in pattern or "?" in pattern:
        return rf"\A{translate(pattern.replace('[', '[[]'))}"
    return None
