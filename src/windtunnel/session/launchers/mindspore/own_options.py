"""The options of msrun, from its own parser.

mindspore.parallel.cluster.run ──> its parser ──> option -> number of values
"""

from __future__ import annotations

import argparse
from typing import Any

from mindspore.parallel.cluster import run

__all__ = ["options_of_msrun"]


def options_of_msrun() -> dict[str, int]:
    """msrun makes its parser in the function that also parses: look at it there."""
    found: list[argparse.ArgumentParser] = []

    class Parser(argparse.ArgumentParser):
        def parse_args(self, *args: Any, **kwargs: Any) -> Any:
            found.append(self)

    run.ArgumentParser = Parser
    run.get_args()
    return {
        name: 1 if action.nargs is None else 0
        for action in found[0]._actions
        for name in action.option_strings
        if name not in ("-h", "--help")
    }
