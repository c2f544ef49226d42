"""Make a program deterministic, so that two runs of it can be compared.

seed_all(1234, mode=True) ──> random, numpy, torch seeded; deterministic algorithms
"""

from __future__ import annotations

import os

import torch
from torch.nn import functional

from windtunnel.probe.collect.plain_seed import seed_python

__all__ = ["seed_all"]

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed random, numpy and torch; `mode` asks for deterministic algorithms, `rm_dropout` turns dropout off."""
    seed_python(seed, mode, rm_dropout)
    torch.manual_seed(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    """Dropout with p = 0 from now on: layers call these functions by name, so built layers are covered too."""
    for name in _DROPOUTS:
        original = getattr(functional, name)
        if not hasattr(original, "_windtunnel_original"):
            setattr(functional, name, _without(original))


def _without(original):
    def dropout(input, p=0.0, training=True, inplace=False):
        return original(input, 0.0, training, inplace)

    dropout._windtunnel_original = original
    dropout.__name__ = original.__name__
    return dropout
