"""Text that came from a file or from somebody's program, as a terminal may have it.

    names, paths, frames, messages ──> plain_text ──> the same, with every control character spelled out
    JSON text ──> plain_json ──> the same document, in which no control character stands as itself

A terminal obeys what stands behind an escape character: it can move the cursor, change the title, answer with input.
"""

from __future__ import annotations

import re

__all__ = ["plain_json", "plain_text"]

# All but line feed and tab: the two sets of controls, and those that turn the direction of the text after them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNESCAPED_BY_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """Spell out control characters: an escape becomes the four letters \\x1b."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(_spelled, text)


def plain_json(text: str) -> str:
    """JSON writes the controls below the space as escapes; these are the others."""
    return text if text.isascii() and "\x7f" not in text else _UNESCAPED_BY_JSON.sub(_as_json, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
