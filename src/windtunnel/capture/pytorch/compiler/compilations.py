"""What the compiler did, in Dynamo's own counts: graphs, graph breaks and recompilations, with the program's lines.

Dynamo's records of this process ──> compilations() ──> footer["compiled"]["compiler"]
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import output_graph
from torch._dynamo.utils import counters, get_compilation_metrics

from windtunnel.capture.recorder import Recorder, short_path

__all__ = ["compilations"]


def compilations(recorder: Recorder) -> dict[str, Any]:
    """Counts, and for each graph break and recompilation why and where."""
    breaks = [
        {"where": _line(reason.user_stack, recorder), "why": _first_line(reason.reason)}
        for reason in output_graph.graph_break_reasons
        if reason.graph_break
    ]
    recompilations = [
        {
            "where": f"{short_path(each.co_filename)}:{each.co_firstlineno}",
            "why": _first_line(each.recompile_reason),
        }
        for each in get_compilation_metrics()
        if getattr(each, "recompile_reason", None)
    ]
    return {
        "n_graphs": int(counters["stats"].get("unique_graphs", 0)),
        "n_graph_breaks": sum(counters["graph_break"].values()),
        "graph_breaks": breaks,
        "n_recompilations": len(recompilations),
        "recompilations": recompilations,
    }


def _line(stack: Any, recorder: Recorder) -> str:
    """The innermost line that is the program's own."""
    own = [frame for frame in stack if not recorder.is_framework(frame.filename)] or stack
    return f"{short_path(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].partition("  #")[0].rstrip()
