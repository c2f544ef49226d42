"""The one door to torch and mindspore, and to our own late-loaded parts. It opens on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from windtunnel.errors import MissingFramework

__all__ = ["load", "load_door", "location_of", "require"]


def load(room: str, part: str, framework: str) -> ModuleType:
    """Import e.g. `windtunnel.capture.torch_rank`, only when it is wanted."""
    try:
        if framework == "torch":
            # First, for a name that is missing would be a traceback while our file is imported.
            import_module("windtunnel.torch_compatibility").require(room, import_module)
        return import_module(f"windtunnel.{room}.{framework}_{part}")
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise  # our own bug, or a package of the user's: do not blame the framework
        raise _missing(framework) from error


def require(framework: str) -> None:
    """Say that it is not installed before anything is started for it; it is not imported."""
    try:
        is_there = find_spec(framework) is not None
    except (ImportError, ValueError):  # what a finder or a module of the user's may say instead
        is_there = False
    if not is_there:
        raise _missing(framework)


def _missing(framework: str) -> MissingFramework:
    return MissingFramework(
        f"{framework} is not installed in this Python", hint=f"pip install 'windtunnel[{framework}]'"
    )


def load_door(module: str) -> ModuleType:
    """Import one of our own modules by name, for the lazy names of `windtunnel/__init__.py`."""
    return import_module(module)


def location_of(package: str) -> Path | None:
    """The folder of an installed top-level package, found without importing it; None if there is none."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None
