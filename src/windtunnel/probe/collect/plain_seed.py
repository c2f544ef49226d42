"""The part of seed_all that needs no framework.

arguments ──> checked ──> random, numpy, and the hash seed of processes started from here
"""

from __future__ import annotations

import os
import random

import numpy

from windtunnel.errors import UsageError

__all__ = ["seed_python"]

_LARGEST = 2**32 - 1


def seed_python(seed: int, mode: bool, rm_dropout: bool) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST:
        raise UsageError(f"seed {seed!r} is not a valid seed", hint=f"pass an integer from 0 to {_LARGEST}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}", hint="pass True or False")
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    numpy.random.seed(seed)
