"""The only place that imports torch, mindspore and our own modules that need them; they are imported on first use."""

from __future__ import annotations

from importlib import import_module, reload
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from windtunnel.errors import MissingFramework

__all__ = ["is_installed", "load", "load_again", "load_door", "location_of", "require"]


def load(module: str, framework: str) -> ModuleType:
    """Import one of our modules that needs a framework, when it is first needed."""
    try:
        if framework == "torch":
            # First: otherwise a missing name would be a traceback while our module is imported.
            room = module.split(".")[1]
            import_module("windtunnel.torch_compatibility").require(room, import_module)
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise  # our own bug, or one of the user's packages: do not blame the framework
        raise _missing(framework) from error


def require(framework: str) -> None:
    """Raise if a framework is not installed, before anything is started for it. Does not import it."""
    if not is_installed(framework):
        raise _missing(framework)


def is_installed(package: str) -> bool:
    """Whether a top-level package can be imported here. Does not import it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # raised by finders and modules that the user installed
        return False


def _missing(framework: str) -> MissingFramework:
    return MissingFramework(
        f"{framework} is not installed in this Python", hint=f"pip install 'windtunnel[{framework}]'"
    )


def load_door(module: str) -> ModuleType:
    """Import one of our own modules by name, for the lazy names of `windtunnel/__init__.py`."""
    return import_module(module)


def load_again(module: ModuleType) -> None:
    """Run a module once more in its own namespace: what it found out when it was imported is no longer so."""
    reload(module)


def location_of(package: str) -> Path | None:
    """The folder of an installed top-level package, found without importing it; None if there is none."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None
