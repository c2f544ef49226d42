"""Let mindspore.SummaryRecord end its step, although a simulated device sends no values.

At the end of a step it waits for a mark behind the values of the device, 30 seconds long, and then fails, as it does in
MindSpore's own dry run. Here the marks are there before it asks. Its operators run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore.train.summary import summary_record

__all__ = ["install_summaries"]

_TAGS = ("[:Tensor]", "[:Scalar]", "[:Image]", "[:Histogram]")
_NOTICE = "SummaryRecord: a simulated device sends no values, so a summary has only what the script itself adds to it"


def install_summaries(notice: Callable[[str], None]) -> None:
    """Answer what SummaryRecord waits for."""
    record = summary_record.SummaryRecord
    wait = getattr(record, "_sync_summary_data", None)
    if wait is None or not hasattr(summary_record, "SUMMARY_TENSOR_CACHE"):  # another version of MindSpore
        return

    def go_on(self: Any, step: int) -> None:
        notice(_NOTICE)
        arrived = summary_record.SUMMARY_TENSOR_CACHE  # a new dictionary after every step
        for tag in _TAGS:
            arrived.setdefault(f"_step_end_flag_{step}{tag}", None)
        wait(self, step)

    record._sync_summary_data = go_on
