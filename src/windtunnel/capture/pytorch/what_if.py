"""Change a training program in exactly the way that a what-if requests.

    RankTask.checkpointed ──> modules with these paths run under torch.utils.checkpoint
    RankTask.batch_factor ──> every DataLoader makes batches that many times as large
    RankTask.loss_chunks  ──> logits and cross-entropy in that many chunks (chunked_loss.py)

So the benefit of a piece of advice is measured by a real dry run that follows it, not estimated.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from windtunnel.capture.path_patterns import PathPatterns
from windtunnel.capture.pytorch.chunked_loss import install_chunked_loss
from windtunnel.capture.pytorch.phases_and_roles import path_of
from windtunnel.capture.recorder import Recorder
from windtunnel.capture.task import RankTask

__all__ = ["BatchSettings", "Changes", "install_changes"]

_A_BATCH = re.compile(r"batch|^m?bsz?$", re.I)  # names of options that may set the batch size
# transformers' models checkpoint their layers themselves: this method switches it on, each such layer has a flag.
_ENABLE = "gradient_checkpointing_enable"
_LAYER, _FLAG = "GradientCheckpointingLayer", "gradient_checkpointing"


class BatchSettings:
    """What sets the batch size of this program: options it parsed, and loaders it created."""

    def __init__(self) -> None:
        self.options: dict[str, int] = {}  # "--batch-size" -> 8
        self.loaders: list[int] = []  # batch sizes, before any factor

    def as_footer(self) -> dict[str, Any]:
        return {"options": self.options, "loaders": self.loaders}


@dataclass(frozen=True)
class Changes:
    """The changes that a task asks for, as far as the program lets them happen."""

    batches: BatchSettings
    has_effect: dict[str, Callable[[], bool]]  # by the sentence to say if there is none

    def without_effect(self) -> list[str]:
        return [sentence for sentence, has_effect in self.has_effect.items() if not has_effect()]


def install_changes(task: RankTask, recorder: Recorder) -> Changes:
    """Change the program as the task asks, and collect what sets its batch size."""
    batches = _watch_batch_settings(task.batch_factor)
    found: dict[str, Callable[[], bool]] = {}
    if task.checkpointed:
        sentence = f"--checkpoint {', '.join(task.checkpointed)} matches no module that was called"
        found[sentence] = _install_checkpointing(recorder, task.checkpointed)
    if task.batch_factor != 1:
        sentence = "--batch-factor changed nothing: the script created no DataLoader with a batch_size"
        found[sentence] = lambda: bool(batches.loaders)
    if task.loss_chunks != 1:
        sentence = "--chunk-loss changed nothing: no projection went straight into a cross-entropy"
        found[sentence] = install_chunked_loss(task.loss_chunks)
    return Changes(batches, found)


def _watch_batch_settings(factor: float) -> BatchSettings:
    """Collect what sets the batch size; loaders get `factor` times their batch size."""
    settings = BatchSettings()
    _watch_options(settings)
    _scale_loaders(settings, factor)
    return settings


def _install_checkpointing(recorder: Recorder, patterns: tuple[str, ...]) -> Callable[[], bool]:
    """Run the modules whose paths match under activation checkpointing, as a user would wrap them.

    Returns a function that returns whether any module matched.
    """
    wanted = PathPatterns(patterns)
    inner = torch.nn.Module.__call__
    names = recorder.writer.names
    is_wanted: dict[int, bool] = {}  # by the number of a path
    self_checkpointing: dict[
        int, bool
    ] = {}  # models that checkpoint their layers themselves: does a layer match?

    def matches(module: torch.nn.Module) -> bool:
        path = path_of(module)
        if path is None:
            return False
        if path not in is_wanted:
            is_wanted[path] = wanted.match(list(names)[path])
        return is_wanted[path]

    def enable(root: torch.nn.Module) -> None:
        for module in root.modules():
            if hasattr(module, _ENABLE) and id(module) not in self_checkpointing:
                getattr(module, _ENABLE)(gradient_checkpointing_kwargs={"use_reentrant": False})
                self_checkpointing[id(module)] = _restrict(root, wanted, recorder)
                return

    def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if path_of(module) is None:
            enable(module)
            return inner(module, *args, **kwargs)
        if self_checkpointing or not torch.is_grad_enabled() or not matches(module):
            return inner(module, *args, **kwargs)
        return checkpoint(inner, module, *args, use_reentrant=False, **kwargs)

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]
    return lambda: any(self_checkpointing.values()) or any(is_wanted.values())


def _restrict(root: torch.nn.Module, wanted: PathPatterns, recorder: Recorder) -> bool:
    """Switch checkpointing off in layers that do not match; returns whether any does."""
    layers = {
        path: module
        for path, module in root.named_modules()
        if any(each.__name__ == _LAYER for each in type(module).__mro__)
    }
    if not layers:
        recorder.notice(
            f"{type(root).__name__} checkpoints all of its layers or none: --checkpoint checkpoints all"
        )
        return True
    for path, layer in layers.items():
        setattr(layer, _FLAG, wanted.match(path))
    return any(wanted.match(path) for path in layers)


def _watch_options(settings: BatchSettings) -> None:
    parse = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found = parse(self, *args, **kwargs)
        for action in self._actions:
            value: Any = getattr(found[0], action.dest, None)
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
