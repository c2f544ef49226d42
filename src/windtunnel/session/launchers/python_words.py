"""The command line of a Python interpreter: which script or module it runs.

python -u -m package.module --lr 1 ──> PythonWords("module", "package.module", ("--lr", "1"))
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PYTEST", "PythonWords", "is_python", "python_words"]

PYTEST = ("pytest", "py.test")  # programs that are `python -m pytest`
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class PythonWords:
    """The command line of a Python interpreter."""

    kind: str  # "script", "module", "code" or "other" (stdin, --version)
    name: str = ""
    arguments: tuple[str, ...] = ()


def is_python(word: str) -> bool:
    """Whether a word is the name or path of a Python interpreter."""
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


def python_words(words: Sequence[str]) -> PythonWords:
    """Read the command line of an interpreter: `python -u -m package.module --lr 1`."""
    n = 1
    while n < len(words):
        word = words[n]
        if word in _PYTHON_VALUES:
            n += 2
        elif word.startswith("--") or word == "-":
            return PythonWords("other")
        elif not word.startswith("-"):
            return PythonWords("script", word, tuple(words[n + 1 :]))
        elif word[:2] in _PYTHON_VALUES:
            n += 1
        elif (letter := next((c for c in word[1:] if c in "cm"), None)) is not None:
            glued = word.partition(letter)[2]
            text = glued or (words[n + 1] if n + 1 < len(words) else "")
            arguments = tuple(words[n + (1 if glued else 2) :])
            return PythonWords("code" if letter == "c" else "module", text, arguments)
        else:
            n += 1
    return PythonWords("other")
