"""Packages put before the installed ones, for what only the network has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["DATA"]

_TIKTOKEN = '''"""In place of tiktoken, which downloads its vocabularies: the sizes of GPT-2's, bytes as tokens."""

class Encoding:
    name, n_vocab, max_token_value, eot_token = "gpt2", 50257, 50256, 50256
    _special_tokens = {"<|endoftext|>": 50256}

    def encode_ordinary(self, text):
        return list(text.encode())

    def encode(self, text, **_):
        return self.encode_ordinary(text)

    def decode(self, tokens):
        return bytes(t % 256 for t in tokens).decode(errors="replace")


def get_encoding(name):
    return Encoding()
'''

_CHECKSUMS = '''"""torchvision compares CIFAR's files with known checksums: ours are made data, and taken as they are."""

import importlib.abc
import importlib.util
import os
import sys

WHERE = "torchvision.datasets.utils"


class After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != WHERE:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        self.loader = found.loader
        found.loader = self
        return found

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        module.check_integrity = lambda path, md5=None: os.path.isfile(path)


sys.meta_path.insert(0, After())
'''


def _tiktoken(folder: Path) -> None:
    place = folder / "tiktoken"
    place.mkdir(exist_ok=True)
    (place / "__init__.py").write_text(_TIKTOKEN, encoding="utf-8")


def _checksums(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(_CHECKSUMS, encoding="utf-8")


DATA: dict[str, Callable[[Path], None]] = {"byte-tiktoken": _tiktoken, "unchecked-cifar": _checksums}
