"""Simulate `torch_npu`: the modules that scripts import, and support for scripts that still say "cuda".

import torch_npu                                   ──> torch.npu, torch_npu.npu_fusion_attention …
import torch_npu.utils.collect_env                 ──> every submodule below, each importable by its full name
from torch_npu.contrib import transfer_to_npu      ──> "cuda" means npu from here on

The modules replace an installed torch_npu too: that one would look for a driver.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from windtunnel.capture.pytorch.packages.torch_npu_modules import TORCH_NPU_VERSION, torch_npu_modules
from windtunnel.capture.pytorch.packages.torch_npu_ops import npu_functions
from windtunnel.capture.pytorch.tensors.storage import World
from windtunnel.capture.pytorch.torch_api.npu_names import npu_names
from windtunnel.capture.pytorch.torch_api.npu_profiler import profiler_names

__all__ = ["complete_npu_module", "npu_module"]

_Spec: Any = type(sys.__spec__)  # libraries ask for a module's spec to see whether it is installed
_TRANSFER = "torch_npu.contrib.transfer_to_npu"
# Parts of torch.npu that are files of their own; each has those names of torch.npu that belong to it.
_PARTS = {
    "memory": ("memory", "cache", "ipc", "Alloc", "alloc"),
    "random": ("seed", "rng_state"),
    "streams": ("Stream", "Event"),
    "utils": ("stream", "synchronize", "device", "overflow", "dump", "cann", "bf16"),
    "npu_config": ("option", "compile", "aoe", "format_nd", "matmul", "conv"),
}


def npu_module() -> types.ModuleType:
    """`torch.npu`, and an importable `torch_npu` for scripts written for Ascend."""
    module = _module("torch_npu.npu")
    if hasattr(torch, "npu"):
        torch.npu = module
    else:
        torch._register_device_module("npu", module)
    sys.modules["torch.npu"] = sys.modules["torch_npu.npu"] = module
    tables = torch_npu_modules() | {"torch_npu.profiler": profiler_names()}
    tables["torch_npu"] = tables.get("torch_npu", {}) | npu_functions() | {"__version__": TORCH_NPU_VERSION}
    _add_modules(tables | {"torch_npu.npu": {}, "torch_npu.contrib": tables.get("torch_npu.contrib", {})})
    sys.meta_path.insert(0, _Transfer())  # before an installed one
    return module


def complete_npu_module(module: Any) -> None:
    """What torch.npu has and torch.cuda has not; and its parts, after it has all its names."""
    for name, value in npu_names().items():
        setattr(module, name, value)
    parts = {
        f"torch_npu.npu.{part}": {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("__") and any(word in name for word in words)
        }
        for part, words in _PARTS.items()
    }
    amp = {"autocast": _autocast, "GradScaler": torch.amp.GradScaler}
    parts["torch_npu.npu.amp"] = amp
    parts["torch_npu.npu.amp.autocast_mode"] = {"autocast": _autocast}
    parts["torch_npu.npu.amp.grad_scaler"] = {"GradScaler": torch.amp.GradScaler}
    _add_modules(parts)


class _autocast(torch.amp.autocast):
    """`torch.npu.amp.autocast`: torch's own, for this device."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def _add_modules(tables: dict[str, dict[str, Any]]) -> None:
    """Make these modules importable, parents first, each an attribute of its parent."""
    names = {name.rsplit(".", n)[0] for name in tables for n in range(name.count(".") + 1)}
    for name in sorted(names):
        module = sys.modules.get(name)
        if module is None or getattr(module, "__file__", None) != __file__:  # not there, or an installed one
            module = sys.modules[name] = _module(name)
        vars(module).update(tables.get(name, {}))
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = _Spec(name, None, is_package=True, origin=__file__)
    module.__file__ = __file__
    module.__path__ = []
    return module


class _Transfer:
    """Finds and loads the module whose import has an effect."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return _Spec(name, self, origin=__file__) if name == _TRANSFER else None

    def create_module(self, spec: Any) -> None:
        return None  # an ordinary module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = __file__
        _alias_cuda_to_npu()


def _alias_cuda_to_npu() -> None:
    if World.aliases:
        return
    World.aliases = frozenset({"cuda"})
    for name, value in vars(torch.npu).items():  # type: ignore[attr-defined]  # registered by npu_module
        if not name.startswith("__") and not isinstance(value, types.ModuleType):
            setattr(torch.cuda, name, value)
            for part in (
                torch.cuda.random,
                torch.cuda.memory,
            ):  # libraries reach for these by their full names
                if hasattr(part, name):
                    setattr(part, name, value)
    torch.Tensor.is_cuda = torch.Tensor.is_npu  # type: ignore[attr-defined]  # set by tensor_methods
