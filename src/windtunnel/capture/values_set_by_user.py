"""Values that the user sets for lines of a script that cannot be changed.

WINDTUNNEL_VALUES="clip_grads.py:133=0" ──> {"clip_grads.py:133": 0.0} ──> what that line reads of unknown tensors
"""

from __future__ import annotations

import os
import re

from windtunnel.errors import UsageError

__all__ = ["VARIABLE", "values_set_by_user"]

VARIABLE = "WINDTUNNEL_VALUES"
_ONE = re.compile(r"(?P<where>[^=]+:\d+)=(?P<value>[^=]+)")


def values_set_by_user() -> dict[str, float]:
    """Line, as the report prints it -> the number that it reads."""
    found = {}
    for part in filter(None, (text.strip() for text in os.environ.get(VARIABLE, "").split(","))):
        match = _ONE.fullmatch(part)
        try:
            found[match["where"].strip()] = float(match["value"])  # type: ignore[index]  # None is caught
        except (TypeError, ValueError):
            raise UsageError(
                f"the environment variable {VARIABLE} has {part!r}, which is not FILE:LINE=NUMBER",
                hint=f"for example {VARIABLE}=train.py:7=0.5; the report lists the lines",
            ) from None
    return found
