"""Parts of a training step that are not the update: a rollout, a reference's or a reward's forward pass, an evaluation.

    a model called without gradients ──> "generate POLICY" (below a function of that name) or "inference MODEL"
    a model called with gradients, or an optimizer's step, after such a part ──> "training"
    with windtunnel.phase("reward") ──> that name, whatever runs in it

A program that calls no model without gradients, and names no phase, has no parts: nothing is recorded.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import torch

from windtunnel import mocking
from windtunnel.capture.recorder import Recorder
from windtunnel.events.model import NO_NAME, Kind, Phase

__all__ = ["StepParts"]

TRAINING = "training"
_LABEL = "_windtunnel_label"
_WRAPPERS = (
    "module",
    "_orig_mod",
)  # of DDP, DeepSpeed, torch.compile: the model in them is what a reader knows
_NEAR = 12  # frames between a model's forward and the `generate` that calls it


class StepParts:
    """Follows one rank from part to part."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._current: str | None = None  # None: no part has begun
        self._named: list[str] = []  # by the user, innermost last
        self._n_of_class: Counter[str] = Counter()
        mocking.phase_listeners.append(self._name)

    def enter_model(self, model: torch.nn.Module) -> None:
        """A model is called from outside any module."""
        if self._named or self._recorder.phase == Phase.BACKWARD:
            return
        if torch.is_grad_enabled():
            self.train()
        else:
            self._begin(f"{'generate' if _is_generating() else 'inference'} {self._label(model)}")

    def train(self) -> None:
        """A model is called with gradients, or an optimizer steps."""
        if self._current not in (None, TRAINING) and not self._named:
            self._begin(TRAINING)

    def _name(self, name: str | None) -> None:
        if name is not None:
            self._named.append(name)
        else:
            self._named.pop()
        self._begin(self._named[-1] if self._named else "")

    def _begin(self, name: str) -> None:
        if name == self._current:
            return
        self._current = name
        self._recorder.plain_row(Kind.PART, self._recorder.writer.name(name) if name else NO_NAME)

    def _label(self, model: torch.nn.Module) -> str:
        """The class of a model, with a number if another of its class was called before."""
        for name in _WRAPPERS:
            inner = model._modules.get(name)
            if inner is not None and len(model._modules) == 1:
                model = inner
        label = model.__dict__.get(_LABEL)
        if label is None:
            name = type(model).__name__
            self._n_of_class[name] += 1
            n = self._n_of_class[name]
            label = model.__dict__[_LABEL] = name if n == 1 else f"{name} ({n})"
        return str(label)


def _is_generating() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == "generate":
            return True
        frame = frame.f_back
    return False
