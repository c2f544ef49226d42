"""Make text from files and user programs safe to print on a terminal.

    names, paths, frames, messages ──> plain_text ──> the same, with every control character spelled out
    JSON text ──> plain_json ──> the same document, without raw control characters

A terminal executes escape sequences: they can move the cursor, change the title, or type input.
"""

from __future__ import annotations

import re

__all__ = ["plain_json", "plain_text"]

# All control characters but line feed and tab, and those that change the direction of the text after them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNESCAPED_BY_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """Spell out control characters: an escape becomes the four letters \\x1b."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(_spelled, text)


def plain_json(text: str) -> str:
    """Escape the control characters that JSON does not escape by itself."""
    return text if text.isascii() and "\x7f" not in text else _UNESCAPED_BY_JSON.sub(_as_json, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
