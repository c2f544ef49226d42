"""Every error a user can meet, each with its exit code. A message is one sentence: the fact, the number, the next step.

WindtunnelError                exit code 1
├── UsageError                 2   wrong option, wrong file, wrong name
│   ├── MissingFramework       2   torch or mindspore is not installed
│   ├── UnsupportedFramework   2   the installed torch lacks something windtunnel needs
│   └── ProbeConfigError       2   a key or value of a probe's config.json is wrong
├── NoToolchain                1   MindSpore's loader stubs cannot be built here; its meta device can still be used
├── ScriptError                3   the user's script failed, or its parallel strategy is wrong
├── PredictedOutOfMemory       4   an allocation did not fit the simulated device
└── CorruptFile                2   a file from elsewhere is damaged or unsafe to read
"""

from __future__ import annotations

from windtunnel.exit_codes import BAD_USAGE, DOES_NOT_FIT, INTERNAL_ERROR, SCRIPT_FAILED

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
    """An error that windtunnel explains in one sentence; `hint` names the next step."""

    exit_code = INTERNAL_ERROR

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(WindtunnelError):
    """The command line or an argument is wrong."""

    exit_code = BAD_USAGE


class MissingFramework(UsageError):
    """A framework or optional package is not installed in this Python."""


class UnsupportedFramework(UsageError):
    """The installed version of a framework lacks something windtunnel needs."""


class ProbeConfigError(UsageError):
    """The configuration of a probe, from its file or its arguments, cannot be used."""


class CorruptFile(UsageError):
    """A file is damaged, foreign or unsafe to read."""


class NoToolchain(WindtunnelError):
    """The stubs that let MindSpore's Ascend plugin start without CANN cannot be built on this machine."""


class ScriptError(WindtunnelError):
    """The user's script raised, or its parallel strategy cannot work."""

    exit_code = SCRIPT_FAILED


class PredictedOutOfMemory(WindtunnelError):
    """An allocation does not fit the simulated device."""

    exit_code = DOES_NOT_FIT

    def __init__(
        self, message: str, hint: str | None = None, *, requested_bytes: int = 0, free_bytes: int = 0
    ) -> None:
        super().__init__(message, hint)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
