"""The page of a threshold curve or advice: added to the page of its run, or a separate page.

RematResult or Advice, the run's page or report if there is one ──> document ──> web_page.page_bytes("run", ...)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel.remat.advisor.advisor import Advice
from windtunnel.report.json.remat import remat_document
from windtunnel.report.page.run import run_document
from windtunnel.report.results.remat import RematResult
from windtunnel.report.results.run import RunResult
from windtunnel.report.terminal.advisor import advice_document

__all__ = ["advice_part", "page_with", "remat_part"]


def remat_part(result: RematResult) -> dict[str, Any]:
    """Return the curve as a part of a page, and open the page on it."""
    title = f"{Path(result.subject).name} on {result.device.id}"
    return {"title": title, "remat": remat_document(result), "opens_on": "remat"}


def advice_part(advice: Advice, subject: str, device: str) -> dict[str, Any]:
    """Return advice as a part of a page, and open the page on it."""
    title = f"{Path(subject).name} on {device}"
    return {"title": title, "advice": advice_document(advice), "opens_on": "advice"}


def page_with(
    part: dict[str, Any], windtunnel: str, earlier: dict[str, Any] | None, run: RunResult | None
) -> dict[str, Any]:
    """`earlier` is the document of the run's own page, which keeps its title, `run` its report; either may be missing."""
    if earlier is not None and earlier.get("kind") == "run":
        return earlier | part | {"title": earlier["title"]}
    if run is not None:
        return run_document(run, part["title"]) | part
    return {"kind": "run", "made_by": f"windtunnel {windtunnel}", "left_out": []} | part
