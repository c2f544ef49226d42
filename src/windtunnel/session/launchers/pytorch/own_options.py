"""The options of torchrun, accelerate launch and deepspeed, from their own parsers.

"torchrun" ──> torch.distributed.run's parser ──> option -> number of values
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

__all__ = ["arities", "options_of"]


class _Found(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def options_of(launcher: str) -> dict[str, int]:
    """Raises if the launcher is not installed."""
    if launcher == "torchrun":
        from torch.distributed.run import get_args_parser

        return arities(get_args_parser()._actions)
    if launcher == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        return arities(launch_command_parser()._actions)
    from deepspeed.launcher import runner

    return arities(_parser_within(runner.parse_args)._actions)


def arities(actions: Iterable[argparse.Action]) -> dict[str, int]:
    """How many values each option takes; options with a variable number count as one value."""
    return {
        name: 1 if action.nargs is None or isinstance(action.nargs, str) else action.nargs
        for action in actions
        for name in action.option_strings
    }


def _parser_within(parse: Any) -> argparse.ArgumentParser:
    """The parser that a function makes and uses at once."""
    original = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        raise _Found(self)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]
    try:
        parse([])
    except _Found as found:
        return found.parser
    finally:
        argparse.ArgumentParser.parse_args = original  # type: ignore[method-assign]
    raise RuntimeError("the launcher used no parser of argparse")
