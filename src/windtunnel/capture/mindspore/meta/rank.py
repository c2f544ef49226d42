"""Simulate a rank of a MindSpore program on MindSpore's meta device, where no loader stubs can be built.

    RankTask, why there are no stubs ──> the script in a separate interpreter (meta/child.py) ──> recording.arrows

The process writes what MindSpore's tracker would have written, so both routes share everything after that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from windtunnel.capture.mindspore.rank import Route, run_by
from windtunnel.capture.task import RankTask
from windtunnel.errors import NoToolchain

__all__ = ["run_rank"]

_LIMITS = (
    "so the script ran on MindSpore's meta device: operators and tensor lifetimes are MindSpore's own, but the backward of "
    "older primitives, compiled optimizers, streams and fragmentation are modelled, and GRAPH_MODE is refused"
)


def run_rank(
    task: RankTask, on_step: Callable[[int], None] | None, why: NoToolchain
) -> tuple[dict[str, Any], str | None]:
    """Run the task to its end, whatever that is. Returns how it ended, and why it could not be recorded if so."""
    variables = {
        "MS_JIT": "0",  # compiled functions would leave the meta device, so they run as written
        "MS_ALLOC_CONF": os.environ.get("MS_ALLOC_CONF", ""),  # its own tracker has nothing to see
    }
    program = "windtunnel.capture.mindspore.meta.child"
    return run_by(Route(program, (), variables, (f"{why.message}, {_LIMITS}",)), task, on_step)
