"""Dynamic tensor rematerialisation in two lines.

    import windtunnel.dtr as dtr
    dtr.eviction_threshold = "5GB"
    dtr.enable()

Activations that do not fit under the threshold are evicted and recomputed when backward needs them; losses,
gradients and weights stay bit-identical. Settings may be changed at any time and take effect at the next operator.
Environment variables `WINDTUNNEL_DTR_EVICTION_THRESHOLD` and so on set the defaults.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.frameworks import load
from windtunnel.mocking import is_dry_run
from windtunnel.remat.evict_and_recompute import BY_ADDRESS, Settings
from windtunnel.remat.policy import DEFAULT_POLICY, POLICIES
from windtunnel.remat.statistics import Statistics
from windtunnel.timing.cost import CostTable
from windtunnel.units import MIB, parse_bytes

__all__ = [
    "disable",
    "enable",
    "enable_sqrt_sampling",
    "evictee_minimum_size",
    "eviction_threshold",
    "is_enabled",
    "limit",
    "memory_limit",
    "policies",
    "policy",
    "save_costs",
    "stats",
]

eviction_threshold: int | str  # bytes, "5GB" or "80%"; 0: act only when an allocation does not fit
evictee_minimum_size: int  # bytes: smaller tensors are never evicted
memory_limit: int | str  # bytes, "8GB" or "50%": the most this process may use of the device; 0: all of it
enable_sqrt_sampling: bool  # consider about sqrt(n) candidates instead of all n
policy: str  # one of `policies()`

_PREFIX = "WINDTUNNEL_DTR_"


class _Control:
    """The settings as the user wrote them, and the runtime once there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.settings = Settings()
        self.written_threshold: int | str = 0
        self.written_limit: int | str = 0
        self.runtime: Any = None
        self.set_threshold(_from_environment(environment, "EVICTION_THRESHOLD", "0"))
        self.set_minimum(_from_environment(environment, "EVICTEE_MINIMUM_SIZE", str(MIB)))
        self.set_limit(_from_environment(environment, "MEMORY_LIMIT", "0"))
        self.set_sampling(_switch(_from_environment(environment, "ENABLE_SQRT_SAMPLING", "0")))
        self.set_policy(_from_environment(environment, "POLICY", DEFAULT_POLICY))

    def set_threshold(self, size: int | str | None) -> None:
        """None and 0: no threshold, act only when an allocation does not fit."""
        size = 0 if size is None else size
        self.settings.threshold = _bytes("eviction_threshold", size) or None
        self.written_threshold = size

    def set_minimum(self, size: int | str) -> None:
        self.settings.minimum_size = _bytes("evictee_minimum_size", size)

    def set_limit(self, size: int | str | None) -> None:
        """None and 0: all that the device has. A device is told; on the CPU the runtime keeps the limit itself."""
        size = 0 if size is None else size
        limit = _bytes("memory_limit", size) or None
        if limit != self.settings.memory_limit:
            load("windtunnel.remat.pytorch.runtime", "torch").limit_device(limit)
        self.settings.memory_limit = limit
        self.written_limit = size

    def set_sampling(self, is_wanted: bool) -> None:
        if not isinstance(is_wanted, bool):
            raise UsageError(f"enable_sqrt_sampling must be True or False, not {is_wanted!r}")
        self.settings.is_sampling = is_wanted

    def set_policy(self, name: str) -> None:
        if name not in policies():
            raise UsageError(f"there is no policy {name!r}", hint=f"try one of {', '.join(policies())}")
        self.settings.policy = name


def enable() -> None:
    """Start evicting activations when memory exceeds the threshold.

    In a dry run this does nothing: `windtunnel remat` predicts it, for every threshold at once.
    """
    if is_dry_run():
        warnings.warn(
            "windtunnel.dtr does nothing in a dry run; `windtunnel remat` predicts what it would do",
            stacklevel=2,
        )
        return
    if _control.runtime is None:
        _control.runtime = load("windtunnel.remat.pytorch.runtime", "torch").runtime_here(_control.settings)
    _control.runtime.start()


def disable() -> None:
    """Stop evicting. Evicted tensors are still rematerialised when backward needs them."""
    if _control.runtime is not None:
        _control.runtime.stop()


def is_enabled() -> bool:
    return _control.runtime is not None and _control.runtime.is_on


@contextmanager
def limit(eviction_threshold: int | str | None = None) -> Iterator[None]:
    """Enable inside a `with` block, with this threshold or the current one; afterwards restore the previous state."""
    was_on, before = is_enabled(), _control.written_threshold
    if eviction_threshold is not None:
        _control.set_threshold(eviction_threshold)
    try:
        enable()
        yield
    finally:
        if not was_on:
            disable()
        _control.set_threshold(before)


def stats() -> dict[str, float]:
    """What was evicted and recomputed since `enable()` was first called, in bytes and seconds."""
    found = asdict(Statistics() if _control.runtime is None else _control.runtime.engine.statistics)
    return found | {"overhead_seconds": found["eviction_seconds"] + found["rematerialisation_seconds"]}


def save_costs(path: str | Path) -> None:
    """Write the seconds each operator took in this run, for `windtunnel remat --costs`."""
    if _control.runtime is None:
        raise UsageError("nothing has been measured yet", hint="call dtr.enable() and train for a step first")
    Path(path).write_text(CostTable(_control.runtime.costs.table).to_json(), encoding="utf-8")


def policies() -> tuple[str, ...]:
    """The names `dtr.policy` may have."""
    return (*POLICIES, BY_ADDRESS)


def _bytes(name: str, size: int | str) -> int:
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise UsageError(f"{name} cannot be {size!r}", hint='write bytes, "5GB" or "80%"')
    device_bytes = None
    if isinstance(size, str) and size.strip().endswith("%"):
        device_bytes = load("windtunnel.remat.pytorch.runtime", "torch").device_bytes()
    try:
        return parse_bytes(
            int(size) if isinstance(size, str) and size.strip().isdigit() else size, device_bytes
        )
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", error.hint) from None


def _switch(text: str) -> bool:
    if text.strip().lower() not in ("0", "1", "true", "false"):
        raise UsageError(f"{_PREFIX}ENABLE_SQRT_SAMPLING must be 0 or 1, not {text!r}")
    return text.strip().lower() in ("1", "true")


def _from_environment(environment: Mapping[str, str], name: str, default: str) -> str:
    return environment.get(_PREFIX + name, "").strip() or default


_control = _Control(os.environ)


class _SettingsModule(types.ModuleType):
    """This module, with settings that are checked on assignment."""

    eviction_threshold = property(
        lambda self: _control.written_threshold, lambda self, size: _control.set_threshold(size)
    )
    evictee_minimum_size = property(
        lambda self: _control.settings.minimum_size, lambda self, size: _control.set_minimum(size)
    )
    enable_sqrt_sampling = property(
        lambda self: _control.settings.is_sampling, lambda self, is_wanted: _control.set_sampling(is_wanted)
    )
    memory_limit = property(lambda self: _control.written_limit, lambda self, size: _control.set_limit(size))
    policy = property(lambda self: _control.settings.policy, lambda self, name: _control.set_policy(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in __all__:
            raise AttributeError(
                f"windtunnel.dtr has no setting {name!r}; its settings are eviction_threshold, evictee_minimum_size,"
                " memory_limit, enable_sqrt_sampling and policy"
            )
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _SettingsModule
