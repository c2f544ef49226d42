"""The details of one rank as a page carries them.

RankDetail ──> strings once, columns packed ──> document["details"][rank]
"""

from __future__ import annotations

from typing import Any

from windtunnel.memory.rank_detail import RankDetail

__all__ = ["detail_document"]


def detail_document(detail: RankDetail) -> dict[str, Any]:
    return {"rows": detail.n_rows}
