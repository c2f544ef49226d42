"""Make packages of fused kernels that need an accelerator importable in a dry run, and report it.

    import flash_attn ──> the real one, if it is installed
                      └─> else the simulated one: its kernels as operators; the report says so when one is used

Python asks the finder below last, so an installed package always wins. A package is offered only for the kind of
device that it supports, and only with the names listed here: importing anything else fails, as if the package were not
installed. WINDTUNNEL_WITHOUT=flash_attn,… hides packages that the cluster does not have.

Libraries try many packages to see what a machine has. Most of ours are therefore offered to the program's own files only, which
say by importing one that the cluster has it; WINDTUNNEL_WITH=apex,… offers them to libraries too.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from windtunnel.capture.pytorch.packages.apex import SOFTMAX_MODULES, apex_modules
from windtunnel.capture.pytorch.packages.cann import acl_modules, torchair_modules
from windtunnel.capture.pytorch.packages.flash_attn import FLASH_ATTN_VERSION, flash_attn_modules
from windtunnel.capture.pytorch.packages.mindspeed import mindspeed_modules
from windtunnel.capture.pytorch.packages.mindspeed_builders import answer_op_builders
from windtunnel.capture.pytorch.packages.torch_npu_modules import TORCH_NPU_VERSION
from windtunnel.frameworks import load_door

__all__ = ["install_packages"]

Modules = dict[str, dict[str, Any]]  # module name -> its attributes
_Spec: Any = type(sys.__spec__)


def _late(module: str, function: str, *args: Any) -> Any:
    """Call a function of a module beside this one, imported only now: most programs use none of them."""
    return getattr(load_door(f"windtunnel.capture.pytorch.packages.{module}"), function)(*args)


# kind of device -> package -> its modules, made when one is first imported
_OFFERED: dict[str, dict[str, Callable[[], Modules]]] = {
    "cuda": {
        "flash_attn": flash_attn_modules,
        "flash_attn_3": partial(_late, "flash_attn_3", "flash_attn_3_modules"),
        "apex": lambda: {**apex_modules(), **_late("apex_python", "apex_python_modules")},
        "xformers": partial(_late, "xformers", "xformers_modules"),
        "causal_conv1d_cuda": partial(_late, "state_spaces", "convolution_modules"),
        "selective_scan_cuda": partial(_late, "state_spaces", "scan_modules"),
    },
    "npu": {"mindspeed": mindspeed_modules, "torch_npu": dict},  # torch_npu itself: torch_api/npu.py
}
# The driver's own Python side: these come before installed ones, which would look for a device.
_REPLACED: dict[str, dict[str, Callable[[], Modules]]] = {
    "npu": {"acl": acl_modules, "torchair": torchair_modules},
}
# Modules of installed packages whose compiled kernels are ours -> what is done to them after they were imported. A name that
# ends with a dot is the beginning of several.
_COMPLETED: dict[str, dict[str, Callable[[types.ModuleType], None]]] = {
    "npu": {"mindspeed.op_builder.": answer_op_builders},
    "cuda": {
        "triton": partial(_late, "triton_launch", "complete_triton"),
        "triton.runtime.interpreter": partial(_late, "triton_launch", "complete_interpreter"),
        "xformers._cpp_lib": partial(_late, "xformers", "answer_build"),
        "bitsandbytes.cextension": partial(_late, "bitsandbytes", "answer_library"),
        "bitsandbytes._ops": partial(_late, "bitsandbytes", "answer_operators"),
        "bitsandbytes.functional": partial(_late, "bitsandbytes", "answer_paged_memory"),
    },
    "cpu": {"triton.runtime.interpreter": partial(_late, "triton_launch", "complete_interpreter")},
}
# Offered to libraries as well as to the program's own files: what only its own package imports, and what was there first.
_FOR_EVERYBODY = frozenset(
    (
        "flash_attn",
        *SOFTMAX_MODULES,
        "mindspeed",
        "torch_npu",
        "acl",
        "torchair",
        "causal_conv1d_cuda",
        "selective_scan_cuda",
    )
)
_APEX_KERNELS = ("fused_layer_norm_cuda", "fast_layer_norm", "amp_C", "fused_weight_gradient_mlp_cuda")
# Modules that are built beside a package, not in it.
_EXTENSIONS = {
    **dict.fromkeys((*SOFTMAX_MODULES, *_APEX_KERNELS), "apex"),
    "flash_attn_interface": "flash_attn_3",
}


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
    "flash_attn_3": Distribution("flash-attn-3", "flash_attn_interface", "3.0.0"),
    "torch_npu": Distribution("torch-npu", "torch_npu", TORCH_NPU_VERSION),
}


def install_packages(device_type: str) -> None:
    """Offer this device's packages to every later import."""
    hidden = _names_in("WINDTUNNEL_WITHOUT")
    wanted = set(map(_package_of, _names_in("WINDTUNNEL_WITH")))
    for place, offered in ((0, _REPLACED), (len(sys.meta_path) + 1, _OFFERED)):
        packages = {name: make for name, make in offered.get(device_type, {}).items() if name not in hidden}
        sys.meta_path.insert(place, _Finder(packages, _FOR_EVERYBODY | wanted, is_whole=offered is _REPLACED))
    for name, complete in _COMPLETED.get(device_type, {}).items():
        if name in sys.modules:  # imported before the program started
            complete(sys.modules[name])
    if device_type in _COMPLETED:
        sys.meta_path.insert(0, _Completer(_COMPLETED[device_type]))
    if (
        device_type == "cuda"
    ):  # its kernels cannot be loaded, which it would say with a traceback, and are not needed
        logging.getLogger("bitsandbytes.cextension").addFilter(lambda record: "load error" not in record.msg)


def _names_in(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")}


class _Finder:
    """Finds and loads the given packages; a package's modules are created once."""

    def __init__(
        self,
        packages: dict[str, Callable[[], Modules]],
        for_everybody: frozenset[str] | set[str],
        is_whole: bool,
    ) -> None:
        self.packages = packages
        self.for_everybody = for_everybody
        self.is_whole = is_whole  # `import acl` gives acl.rt too
        self.modules: dict[str, Modules] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if _package_of(top) not in self.packages:
            return None
        if not (top in sys.modules or self._is_for(top, sys._getframe(1))):
            return None
        modules = self._modules_of(name)
        is_package = any(other.startswith(f"{name}.") for other in modules)
        return _Spec(name, self, is_package=is_package) if is_package or name in modules else None

    def _is_for(self, top: str, frame: types.FrameType) -> bool:
        """Whether the code that asks may see a package: a compiled module also where its package is installed."""
        package = _package_of(top)
        if self.for_everybody & {top, package} or not _is_library(frame):
            return True
        return package != top and package in sys.modules

    def _modules_of(self, name: str) -> Modules:
        package = _package_of(name.partition(".")[0])
        if package not in self.packages:
            return {}
        if package not in self.modules:
            self.modules[package] = self.packages[package]()
        return self.modules[package]

    def find_distributions(self, context: Any) -> list[Distribution]:
        """Libraries ask for a package's version in its metadata before they use it."""
        wanted = (getattr(context, "name", None) or "").replace("-", "_").lower()
        return [
            _VERSIONED[name]
            for name in self.packages
            if name in _VERSIONED and name in self.for_everybody and wanted in ("", name)
        ]

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


def _package_of(top: str) -> str:
    return _EXTENSIONS.get(top, top)


_INSTALLED = tuple(
    {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")}
)


def _is_library(frame: types.FrameType | None) -> bool:
    """Whether an installed package imports or looks for a module, rather than one of the program's own files."""
    while frame is not None:
        filename = frame.f_code.co_filename
        module = frame.f_globals.get("__name__", "")
        if not (filename.startswith("<frozen importlib") or module.partition(".")[0] == "importlib"):
            return "site-packages" in filename or filename.startswith(_INSTALLED)
        frame = frame.f_back
    return False


class _Completer:
    """Imports some modules of installed packages as usual, then hands them over."""

    def __init__(self, complete: dict[str, Callable[[types.ModuleType], None]]) -> None:
        self.complete = complete

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        complete = self.complete.get(name) or next(
            (do for start, do in self.complete.items() if start.endswith(".") and name.startswith(start)),
            None,
        )
        if complete is None:
            return None
        for finder in sys.meta_path:
            spec: Any = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                is_ours = type(spec.loader).__module__.startswith("windtunnel.")  # the compiler's own Triton
                if hasattr(spec.loader, "exec_module") and not is_ours:
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
