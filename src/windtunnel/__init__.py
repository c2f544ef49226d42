"""windtunnel: run the user's own training program on simulated devices and answer from what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.dryrun import dry_run
    from windtunnel.mocking import is_dry_run, mock, phase

__version__ = "0.1.0"
__all__ = ["__version__", "dry_run", "is_dry_run", "mock", "phase"]

_DOORS = {
    "dry_run": "windtunnel.dryrun",
    "is_dry_run": "windtunnel.mocking",
    "mock": "windtunnel.mocking",
    "phase": "windtunnel.mocking",
}


if not TYPE_CHECKING:  # or a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load public names on first use: `import windtunnel` costs nothing."""
        if name not in _DOORS:
            raise AttributeError(f"module 'windtunnel' has no attribute {name!r}")
        from windtunnel.frameworks import load_door

        return getattr(load_door(_DOORS[name]), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__]
