"""Make packages of fused kernels that need an accelerator importable in a dry run, and report it.

    import flash_attn ──> the real one, if it is installed
                      └─> else the simulated one: its kernels as operators; the report says so when one is used

Python asks the finder below last, so an installed package always wins. A package is offered only for the kind of
device that it supports, and only with the names listed here: importing anything else fails, as if the package were not
installed. WINDTUNNEL_WITHOUT=flash_attn,… hides packages that the cluster does not have.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from windtunnel.capture.pytorch.packages.apex import SOFTMAX_MODULES, apex_modules
from windtunnel.capture.pytorch.packages.cann import acl_modules, torchair_modules
from windtunnel.capture.pytorch.packages.flash_attn import FLASH_ATTN_VERSION, flash_attn_modules
from windtunnel.capture.pytorch.packages.mindspeed import mindspeed_modules
from windtunnel.capture.pytorch.packages.mindspeed_builders import answer_op_builders
from windtunnel.capture.pytorch.packages.torch_npu_modules import TORCH_NPU_VERSION

__all__ = ["install_packages"]

Modules = dict[str, dict[str, Any]]  # module name -> its attributes
_Spec: Any = type(sys.__spec__)

# kind of device -> package -> its modules, made when one is first imported
_OFFERED: dict[str, dict[str, Callable[[], Modules]]] = {
    "cuda": {"flash_attn": flash_attn_modules, "apex": apex_modules},
    "npu": {"mindspeed": mindspeed_modules, "torch_npu": dict},  # torch_npu itself: torch_api/npu.py
}
# The driver's own Python side: these come before installed ones, which would look for a device.
_REPLACED: dict[str, dict[str, Callable[[], Modules]]] = {
    "npu": {"acl": acl_modules, "torchair": torchair_modules},
}
# Modules of installed packages whose compiled kernels are ours -> what is done to them after they were imported.
_COMPLETED: dict[str, dict[str, Callable[[types.ModuleType], None]]] = {
    "npu": {"mindspeed.op_builder.": answer_op_builders},
}
# Apex builds these beside its package, not in it.
_EXTENSIONS = dict.fromkeys(SOFTMAX_MODULES, "apex")


class Distribution:
    """What `importlib.metadata` knows about an installed package, as far as libraries ask for it."""

    files = requires = None
    entry_points = ()

    def __init__(self, name: str, package: str, version: str) -> None:
        self.name, self.package, self.version = name, package, version
        self.metadata = {"Name": name, "Version": version}
        self._normalized_name = package

    def read_text(self, filename: str) -> str | None:
        return self.package if filename == "top_level.txt" else None


_VERSIONED = {
    "flash_attn": Distribution("flash-attn", "flash_attn", FLASH_ATTN_VERSION),
    "torch_npu": Distribution("torch-npu", "torch_npu", TORCH_NPU_VERSION),
}


def install_packages(device_type: str) -> None:
    """Offer this device's packages to every later import."""
    hidden = {name.strip() for name in os.environ.get("WINDTUNNEL_WITHOUT", "").split(",")}
    for place, offered in ((0, _REPLACED), (len(sys.meta_path) + 1, _OFFERED)):
        packages = {name: make for name, make in offered.get(device_type, {}).items() if name not in hidden}
        sys.meta_path.insert(place, _Finder(packages, is_whole=offered is _REPLACED))
    if device_type in _COMPLETED:
        sys.meta_path.insert(0, _Completer(_COMPLETED[device_type]))


class _Finder:
    """Finds and loads the given packages; a package's modules are created once."""

    def __init__(self, packages: dict[str, Callable[[], Modules]], is_whole: bool) -> None:
        self.packages = packages
        self.is_whole = is_whole  # `import acl` gives acl.rt too
        self.modules: dict[str, Modules] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        modules = self._modules_of(name)
        is_package = any(other.startswith(f"{name}.") for other in modules)
        return _Spec(name, self, is_package=is_package) if is_package or name in modules else None

    def _modules_of(self, name: str) -> Modules:
        top = name.partition(".")[0]
        package = _EXTENSIONS.get(top, top)
        if package not in self.packages:
            return {}
        if package not in self.modules:
            self.modules[package] = self.packages[package]()
        return self.modules[package]

    def find_distributions(self, context: Any) -> list[Distribution]:
        """Libraries ask for a package's version in its metadata before they use it."""
        wanted = (getattr(context, "name", None) or "").replace("-", "_").lower()
        return [_VERSIONED[name] for name in self.packages if name in _VERSIONED and wanted in ("", name)]

    def create_module(self, spec: Any) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        name, modules = module.__name__, self._modules_of(module.__name__)
        vars(module).update(modules.get(name, {}))
        if not self.is_whole:
            return
        for child in {
            other.removeprefix(f"{name}.").partition(".")[0]
            for other in modules
            if other.startswith(f"{name}.")
        }:
            spec = self.find_spec(f"{name}.{child}")
            part = sys.modules[spec.name] = types.ModuleType(spec.name)
            part.__spec__, part.__path__ = spec, []
            setattr(module, child, part)
            self.exec_module(part)


class _Completer:
    """Imports some modules of installed packages as usual, then hands them over."""

    def __init__(self, complete: dict[str, Callable[[types.ModuleType], None]]) -> None:
        self.complete = complete

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        complete = next((do for start, do in self.complete.items() if name.startswith(start)), None)
        if complete is None:
            return None
        for finder in sys.meta_path:
            spec: Any = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _CompletingLoader(spec.loader, complete)
                return spec
        return None


class _CompletingLoader:
    """An installed module's own loader, and what comes after it."""

    def __init__(self, loader: Any, complete: Callable[[types.ModuleType], None]) -> None:
        self.loader, self.complete = loader, complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        self.complete(module)
