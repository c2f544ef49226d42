"""The times in report.json.

TimeResult, RankTimeResult ──> plain values ──> report.json ──> the same records
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from windtunnel.cluster.step_time import RankTime
from windtunnel.report.results.time import RankTimeResult, TimeResult

__all__ = ["rank_time_document", "rank_time_of_document", "time_document", "time_of_document"]

_MODULES = 400  # of the longest


def time_document(time: TimeResult | None) -> dict[str, Any] | None:
    if time is None:
        return None
    return asdict(time) | {
        "model_flops_utilisation": time.model_flops_utilisation,
        "hardware_flops_utilisation": time.hardware_flops_utilisation,
    }


def time_of_document(document: dict[str, Any] | None) -> TimeResult | None:
    if document is None:
        return None
    known = _known(TimeResult, document)
    for name in ("all_steps_seconds", "notes"):
        known[name] = tuple(known.get(name, ()))
    return TimeResult(**known)


def rank_time_document(time: RankTimeResult | None) -> dict[str, Any] | None:
    if time is None:
        return None
    document = asdict(time)
    modules = document["profile"]["by_module"]
    document["profile"]["by_module"] = dict(list(modules.items())[:_MODULES])
    return document


def rank_time_of_document(document: dict[str, Any] | None) -> RankTimeResult | None:
    if document is None:
        return None
    from windtunnel.timing.step_profile import OperatorTime, StepProfile  # late: only level 3 has a profile

    profile = _known(StepProfile, document["profile"])
    profile["operators"] = tuple(OperatorTime(**_known(OperatorTime, op)) for op in profile["operators"])
    known = _known(RankTimeResult, document)
    known |= {"time": RankTime(**_known(RankTime, document["time"])), "profile": StepProfile(**profile)}
    return RankTimeResult(**known)


def _known(record: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; those of later versions are ignored."""
    return {f.name: document[f.name] for f in fields(record) if f.name in document}
