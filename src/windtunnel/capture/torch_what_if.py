"""Change a training program in the one way a what-if asks for, and leave the rest of it alone.

    RankTask.checkpointed ──> modules of these paths run under torch.utils.checkpoint
    RankTask.batch_factor ──> every DataLoader makes batches that many times as large

So what a piece of advice is worth is the figure of a real dry run with the advice followed, not an estimate.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from windtunnel.capture.path_patterns import PathPatterns
from windtunnel.capture.recorder import Recorder
from windtunnel.capture.torch_program import path_of

__all__ = ["BatchSettings", "install_checkpointing", "watch_batch_settings"]

_A_BATCH = re.compile(r"batch|^m?bsz?$", re.I)  # names of options that may set its size
_ENABLE = "gradient_checkpointing_enable"  # how the models of transformers are told


class BatchSettings:
    """What of this program sets the size of its batches: options it parsed, and loaders it made."""

    def __init__(self) -> None:
        self.options: dict[str, int] = {}  # "--batch-size" -> 8
        self.loaders: list[int] = []  # batch sizes, before any factor

    def as_footer(self) -> dict[str, Any]:
        return {"options": self.options, "loaders": self.loaders}


def watch_batch_settings(factor: float) -> BatchSettings:
    """Notice what sets the size of batches; loaders are given `factor` times as much."""
    settings = BatchSettings()
    _watch_options(settings)
    _scale_loaders(settings, factor)
    return settings


def install_checkpointing(recorder: Recorder, patterns: tuple[str, ...]) -> Callable[[], bool]:
    """Run the modules whose paths match under activation checkpointing, as a user would wrap them.

    Returns a function that says whether any did.
    """
    wanted = PathPatterns(patterns)
    inner = torch.nn.Module.__call__
    names = recorder.writer.names
    is_wanted: dict[int, bool] = {}  # by the number of a path
    told: set[int] = set()  # models that checkpoint their layers themselves

    def matches(module: torch.nn.Module) -> bool:
        path = path_of(module)
        if path is None:
            return False
        if path not in is_wanted:
            is_wanted[path] = wanted.match(list(names)[path])
        return is_wanted[path]

    def tell(root: torch.nn.Module) -> None:
        for module in root.modules():
            if hasattr(module, _ENABLE) and id(module) not in told:
                told.add(id(module))
                getattr(module, _ENABLE)(gradient_checkpointing_kwargs={"use_reentrant": False})
                return

    def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if path_of(module) is None:
            tell(module)
            return inner(module, *args, **kwargs)
        if told or not torch.is_grad_enabled() or not matches(module):
            return inner(module, *args, **kwargs)
        return checkpoint(inner, module, *args, use_reentrant=False, **kwargs)

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]
    return lambda: bool(told) or any(is_wanted.values())


def _watch_options(settings: BatchSettings) -> None:
    parse = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found = parse(self, *args, **kwargs)
        for action in self._actions:
            value = getattr(found[0], action.dest, None)
            is_size = type(value) is int and value > 0 and _A_BATCH.search(action.dest)
            if action.option_strings and is_size:
                longest = max(action.option_strings, key=len)
                settings.options[longest] = value
        return found

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _scale_loaders(settings: BatchSettings, factor: float) -> None:
    init = DataLoader.__init__

    def __init__(self: Any, dataset: Any, batch_size: int | None = 1, *args: Any, **kwargs: Any) -> None:
        sampler = args[2] if len(args) > 2 else kwargs.get("batch_sampler")
        if type(batch_size) is int and sampler is None:
            settings.loaders.append(batch_size)
            batch_size = max(1, round(batch_size * factor))
        init(self, dataset, batch_size, *args, **kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
