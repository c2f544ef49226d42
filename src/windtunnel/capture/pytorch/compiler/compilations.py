"""What the compiler did, in Dynamo's own counts: graphs, graph breaks and recompilations, with the program's lines.

Dynamo's records of this process ──> compilations() ──> footer["compiled"]["compiler"]
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch._dynamo import output_graph
from torch._dynamo.utils import counters, get_compilation_metrics

from windtunnel.capture.recorder import Recorder, short_path

__all__ = ["compilations"]


def compilations(recorder: Recorder) -> dict[str, Any]:
    """Counts, and for each graph break and recompilation why and where, most frequent first."""
    breaks = Counter(
        (_line(reason.user_stack, recorder), _first_line(reason.reason))
        for reason in output_graph.graph_break_reasons
        if reason.graph_break
    )
    again = Counter(
        (f"{short_path(each.co_filename or '')}:{each.co_firstlineno}", _first_line(each.recompile_reason))
        for each in get_compilation_metrics()
        if each.recompile_reason
    )
    return {
        "n_graphs": int(counters["stats"].get("unique_graphs", 0)),
        "n_graph_breaks": sum(counters["graph_break"].values()),
        "n_recompilations": again.total(),
        "graph_breaks": _listed(breaks),
        "recompilations": _listed(again),
    }


def _listed(notes: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"where": where, "why": why, "count": n} for (where, why), n in notes.most_common()]


def _line(stack: Any, recorder: Recorder) -> str:
    """The innermost line that is the program's own."""
    own = [frame for frame in stack if not recorder.is_framework(frame.filename)] or stack
    return f"{short_path(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].partition("  #")[0].rstrip()
