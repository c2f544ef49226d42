"""A citation graph in the files of Cora."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = ["DATA"]

_NODES, _WORDS, _CLASSES, _EDGES = 2708, 1433, 7, 5429


def _cora(folder: Path) -> None:
    """Cora's own sizes, random words and edges."""
    rng = np.random.default_rng(0)
    words = rng.random((_NODES, _WORDS)) < 0.012
    with (folder / "cora.content").open("w", encoding="utf-8") as file:
        for node, row in enumerate(words.astype(int)):
            file.write("\t".join((str(node), *map(str, row), f"Class_{node % _CLASSES}")) + "\n")
    edges = rng.integers(0, _NODES, (_EDGES, 2))
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in edges), encoding="utf-8")


DATA: dict[str, Callable[[Path], None]] = {"cora": _cora}
