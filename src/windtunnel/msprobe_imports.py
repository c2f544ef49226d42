"""Answer `from msprobe.… import …` with windtunnel's probe where msProbe is not installed.

    from msprobe.pytorch import PrecisionDebugger ──> the installed msProbe, if there is one
                                                  └─> else windtunnel.pytorch.PrecisionDebugger

Python asks the finder below last, so an installed msProbe always wins. Names load on first use: a script for MindSpore
does not need torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from windtunnel.frameworks import load_door

__all__ = ["answer_msprobe", "module_of_names"]

_STEPS = ("MsprobeInitStep", "MsprobeStep")
# module of msProbe -> ours, and the names that both have
_MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "msprobe.pytorch": ("windtunnel.pytorch", ("PrecisionDebugger", "seed_all")),
    "msprobe.mindspore": ("windtunnel.mindspore", ("PrecisionDebugger", "seed_all", *_STEPS)),
    "msprobe.mindspore.common.utils": ("windtunnel.mindspore", ("seed_all", *_STEPS)),
}
_PACKAGES = {"msprobe", "msprobe.mindspore", "msprobe.mindspore.common"}
_Spec: Any = type(sys.__spec__)


def answer_msprobe() -> None:
    """Answer later imports of msProbe that Python itself cannot answer; calling it twice does no harm."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def module_of_names(name: str, door: str, names: tuple[str, ...]) -> ModuleType:
    """Return a module whose names are those of another one of ours."""
    module = ModuleType(name, f"The names of msProbe's {name}, from {door}.")
    _fill(module, door, names)
    return module


class _Finder:
    """Finds and loads the modules of the table."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _MODULES and name not in _PACKAGES:
            return None
        return _Spec(name, self, origin="windtunnel", is_package=name in _PACKAGES)

    def create_module(self, spec: Any) -> None:
        return None  # an ordinary module

    def exec_module(self, module: ModuleType) -> None:
        _fill(module, *_MODULES.get(module.__name__, ("", ())))


def _fill(module: ModuleType, door: str, names: tuple[str, ...]) -> None:
    def __getattr__(name: str) -> Any:
        if name in names:
            return getattr(load_door(door), name)
        if name.startswith("__") or not names:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        # Not an AttributeError: Python would replace its text by "cannot import name".
        raise ImportError(
            f"windtunnel's probe has no {name}; of {module.__name__} it has {', '.join(names)}."
            " Install msProbe (pip install mindstudio-probe) to use its own",
            name=module.__name__,
        )

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
    module.__dict__["__all__"] = list(names)
