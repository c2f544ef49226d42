"""Every error a user can meet. Each message is one sentence: the fact, the number, the next step.

WindtunnelError                exit code 1
├── UsageError                 2   wrong option, wrong file, wrong name
│   ├── MissingFramework       2   torch or mindspore is not installed
│   ├── UnsupportedFramework   2   the installed torch lacks what windtunnel needs of it
│   └── ProbeConfigError       2   a key or value of a probe's config.json is wrong
├── NoToolchain                1   MindSpore's loader stubs cannot be made here; the meta route remains
├── ScriptError                3   the user's script failed, or its parallel strategy is wrong
├── PredictedOutOfMemory       4   an allocation did not fit the simulated device
└── CorruptFile                2   a file from elsewhere cannot be trusted or read
"""

from __future__ import annotations

__all__ = [
    "CorruptFile",
    "MissingFramework",
    "NoToolchain",
    "PredictedOutOfMemory",
    "ProbeConfigError",
    "ScriptError",
    "UnsupportedFramework",
    "UsageError",
    "WindtunnelError",
]


class WindtunnelError(Exception):
    """Something windtunnel can say in one sentence; `hint` names the next step."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(WindtunnelError):
    """The command line or an argument is wrong."""

    exit_code = 2


class MissingFramework(UsageError):
    """A framework or optional package is not installed in this Python."""


class UnsupportedFramework(UsageError):
    """The installed version of a framework lacks something windtunnel needs."""


class ProbeConfigError(UsageError):
    """The configuration of a probe, from its file or its arguments, cannot be used."""


class CorruptFile(UsageError):
    """A file is damaged, foreign or unsafe to read."""


class NoToolchain(WindtunnelError):
    """What MindSpore's Ascend plugin needs to start without CANN cannot be made on this machine."""


class ScriptError(WindtunnelError):
    """The user's script raised, or its parallel strategy cannot work."""

    exit_code = 3


class PredictedOutOfMemory(WindtunnelError):
    """An allocation does not fit the simulated device."""

    exit_code = 4

    def __init__(
        self, message: str, hint: str | None = None, *, requested_bytes: int = 0, free_bytes: int = 0
    ) -> None:
        super().__init__(message, hint)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
