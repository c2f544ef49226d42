"""Write many ranks as few spans: ranks in a cluster have regular patterns.

0,1,2,3,8,10,12,14,15 ──> (0, 3, 1), (8, 14, 2), (15, 15, 1) ──> the ranks again
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Span", "rank_ranges", "rank_spans", "ranks_in"]

Span = tuple[int, int, int]  # first rank, last rank, step between them


def rank_spans(ranks: Iterable[int]) -> list[Span]:
    """Return the spans of these ranks, in order."""
    left, found = sorted(ranks), []
    start = 0
    while start < len(left):
        step = left[start + 1] - left[start] if start + 1 < len(left) else 1
        end = start + 1
        while end < len(left) and left[end] - left[end - 1] == step:
            end += 1
        if end - start < 3 and step > 1:
            end = start + 1  # two numbers are not a pattern
        found.append((left[start], left[end - 1], step if end - start > 1 else 1))
        start = end
    return found


def ranks_in(spans: Iterable[Span]) -> list[int]:
    """Return the ranks in these spans."""
    return [rank for first, last, step in spans for rank in range(first, last + 1, step)]


def rank_ranges(ranks: Iterable[int]) -> list[str]:
    """0,1,2,3,8,10,12,14,15 -> "0-3", "8-14 by 2", "15"."""
    found = []
    for first, last, step in rank_spans(ranks):
        by = "" if step == 1 else f" by {step}"
        found.append(f"{first}" if first == last else f"{first}-{last}{by}")
    return found
