"""The page of a threshold curve: that of the run it belongs to with the curve in it, or one of its own.

RematResult, the run's page or report if there is one ──> remat_page_document ──> web_page.page_bytes("run", ...)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel.report.page_run import run_document
from windtunnel.report.remat_file import remat_document
from windtunnel.report.remat_result import RematResult
from windtunnel.report.result import RunResult

__all__ = ["remat_page_document"]

_VIEW = "remat"


def remat_page_document(
    result: RematResult, earlier: dict[str, Any] | None, run: RunResult | None
) -> dict[str, Any]:
    """`earlier` is the document of the run's own page, `run` its report; either may be missing."""
    remat = remat_document(result)
    title = f"{Path(result.subject).name} on {result.device.id}"
    if earlier is not None and earlier.get("kind") == "run":
        document = earlier | {"remat": remat}
    elif run is not None:
        document = run_document(run, title, remat=remat)
    else:
        document = {
            "kind": "run",
            "title": title,
            "made_by": f"windtunnel {result.windtunnel}",
            "remat": remat,
            "left_out": [],
        }
    return document | {"opens_on": _VIEW}
