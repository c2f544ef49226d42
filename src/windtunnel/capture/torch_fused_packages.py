"""Packages of fused kernels that exist only where the accelerator is: importable in a dry run, and said so.

    import flash_attn ──> the real one, if it is installed
                      └─> else the simulated one: its kernels as operators; the report says so when one is used

Python asks the finder below last, so an installed package always wins. A package is offered only on the kind of
device that has it, and only by the names written here: what else it has fails to import, as it would if it were
not installed. WINDTUNNEL_WITHOUT=flash_attn,… hides packages that the cluster does not have.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from windtunnel.capture.torch_fused_apex import apex_modules
from windtunnel.capture.torch_fused_flash import FLASH_ATTN_VERSION, flash_attn_modules
from windtunnel.capture.torch_fused_mindspeed import mindspeed_modules

__all__ = ["install_packages"]

Modules = dict[str, dict[str, Any]]  # module name -> what it holds
_Spec = type(sys.__spec__)

# (kind of device, package) -> its modules, made when it is first imported
_OFFERED: dict[tuple[str, str], Callable[[], Modules]] = {
    ("cuda", "flash_attn"): flash_attn_modules,
    ("npu", "mindspeed"): mindspeed_modules,
    **dict.fromkeys((("cuda", name) for name in ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda",
                                                 "scaled_softmax_cuda")), apex_modules),
}  # fmt: skip


class Distribution:
    """What `importlib.metadata` says about an installed package, as far as libraries ask."""

    files = requires = None
    entry_points = ()

    def __init__(self, name: str, package: str, version: str) -> None:
        self.name, self.package, self.version = name, package, version
        self.metadata = {"Name": name, "Version": version}
        self._normalized_name = package

    def read_text(self, filename: str) -> str | None:
        return self.package if filename == "top_level.txt" else None


_VERSIONED = {"flash_attn": Distribution("flash-attn", "flash_attn", FLASH_ATTN_VERSION)}


def install_packages(device_type: str) -> None:
    """Offer this device's packages to every later import."""
    hidden = {name.strip() for name in os.environ.get("WINDTUNNEL_WITHOUT", "").split(",")}
    offered = {
        package: make
        for (kind, package), make in _OFFERED.items()
        if kind == device_type and package not in hidden
    }
    sys.meta_path.append(_Finder(offered))


class _Finder:
    """Answers for the packages it was given; a package's modules are made once."""

    def __init__(self, offered: dict[str, Callable[[], Modules]]) -> None:
        self.offered = offered
        self.made: dict[Callable[[], Modules], Modules] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        make = self.offered.get(name.partition(".")[0])
        if make is None:
            return None
        if make not in self.made:
            self.made[make] = make()
        modules = self.made[make]
        if name not in modules and not any(other.startswith(f"{name}.") for other in modules):
            return None
        return _Spec(name, self, is_package=any(other.startswith(f"{name}.") for other in modules))

    def find_distributions(self, context: Any) -> list[Distribution]:
        """Libraries ask for a package's version in its metadata before they use it."""
        wanted = (getattr(context, "name", None) or "").replace("-", "_").lower()
        return [_VERSIONED[name] for name in self.offered if name in _VERSIONED and wanted in ("", name)]

    def create_module(self, spec: Any) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        vars(module).update(self.made[self.offered[package]].get(module.__name__, {}))
