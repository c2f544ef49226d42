"""The kinds of rows in a recording, and their qualifiers.

    numbers in the columns of a recording ──> Kind, Phase, CallFlag, Role

The numbers are part of the file format: add, never renumber.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = ["CallFlag", "Kind", "Phase", "Role"]


class Kind(IntEnum):
    """The kind of a row."""

    OP = 1
    ALLOC = 2
    FREE = 3
    MODULE_ENTER = 4
    MODULE_EXIT = 5
    STEP = 6
    MARK = 7
    RECORD_STREAM = 8
    EMPTY_CACHE = 9
    SYNC = 10
    BUILD = 11
    GROUP = 12
    COLLECTIVE = 13
    WAIT = 14
    SAVE = 15
    LOAD = 16
    UNSAVE = 17
    CALL = 18
    RETURN = 19
    BACKWARD_END = 20
    RESIZE = 21
    EVENT_RECORD = 22
    EVENT_WAIT = 23
    PART = 24


class Phase(IntEnum):
    """Where in a training step the program was."""

    BUILD = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class CallFlag(IntFlag):
    """What rerunning a `Call` depends on besides its name and its tensors."""

    GRAD = 1  # gradients were being recorded
    ODD = 2  # it reads more than storages and their geometry, or has its own generator
    COVERS = 4  # what it writes into is all of that storage
    SEEDED = 8  # it draws random numbers


class Role(IntEnum):
    """What a storage is for. `UNKNOWN` is determined later from its lifetime (activation or temporary)."""

    UNKNOWN = 0
    WEIGHT = 1
    GRADIENT = 2
    OPTIMIZER = 3
    INPUT = 4
    ACTIVATION = 5
    TEMPORARY = 6
    WORKSPACE = 7
    COMMUNICATION = 8
    FROZEN = 9  # a weight that needs no gradient
    COPY = 10  # of a weight, kept by the program: an exponential moving average, an old policy
