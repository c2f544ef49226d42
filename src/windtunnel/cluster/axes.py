"""What to call a process group: the axis of the parallel strategy that it lies on.

"TENSOR_MODEL_PARALLEL_GROUP", (0, 1, 2, 3) ──> "tp"; no name ──> "8 ranks, 64 apart"
"""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["axis_label"]

# Words in a group's description -> the axis; the first that is found counts, so the longer words stand first.
_WORDS = (
    ("expert", "ep"), ("context", "cp"), ("tensor", "tp"), ("pipeline", "pp"), ("embedding", "embedding"),
    ("pipelin", "pp"), ("data", "dp"), ("default_pg", "world"), ("model_parallel", "mp"), ("shard", "fsdp"),
    ("replicate", "dp"), ("fsdp", "fsdp"),
)  # fmt: skip
_SHORT = ("tp", "pp", "dp", "cp", "ep", "mp", "world")


def axis_label(name: str, ranks: tuple[int, ...]) -> str:
    """By what the program called the group, or by how it lies among the ranks."""
    text = name.lower()
    for word, axis in _WORDS:
        if word in text:
            return axis
    for part in re.split(r"[^a-z]+", text):
        if part in _SHORT:
            return part
    strides = {b - a for a, b in pairwise(ranks)}
    apart = f", {strides.pop()} apart" if len(strides) == 1 else ""
    return f"{len(ranks)} ranks{apart}"
