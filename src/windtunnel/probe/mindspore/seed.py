"""Make a MindSpore program deterministic, so that two runs of it can be compared.

seed_all(1234, mode=True) ──> random, numpy, mindspore seeded; deterministic kernels and collectives
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import mint, ops

from windtunnel.probe.collect.plain_seed import seed_python

__all__ = ["seed_all"]


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed random, numpy and MindSpore; `mode` asks for deterministic kernels, `rm_dropout` turns dropout off.

    Dropout is off in every layer created from here on.
    """
    seed_python(seed, mode, rm_dropout)
    mindspore.set_seed(seed)
    if mode:
        mindspore.set_context(deterministic="ON")  # set_deterministic() can be called but once in a process
        os.environ["HCCL_DETERMINISTIC"] = "true"
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    """Change the classes themselves, so that names imported before are covered too."""
    for kind in (ops.Dropout, ops.Dropout2D, ops.Dropout3D):
        _fix_first(kind, "keep_prob", 1.0)
    _fix_first(mint.nn.Dropout, "p", 0.0)
    functional = mint.nn.functional
    if not hasattr(functional.dropout, "_windtunnel_original"):
        functional.dropout = _without(functional.dropout)


def _fix_first(kind: Any, name: str, value: float) -> None:
    """Let the first argument of a class be `value`, whatever is given."""
    original = kind.__init__
    if hasattr(original, "_windtunnel_original"):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop(name, None)
        original(self, value, *args[1:], **kwargs)

    init._windtunnel_original = original  # type: ignore[attr-defined]
    kind.__init__ = init


def _without(original: Callable) -> Callable:
    """Not with functools.wraps: MindSpore's compiler would follow __wrapped__ and read the original."""

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    dropout.__module__, dropout.__doc__ = original.__module__, original.__doc__
    dropout._windtunnel_original = original  # type: ignore[attr-defined]
    return dropout
