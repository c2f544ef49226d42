"""Simulate `torch_npu`: the module that scripts import, and support for scripts that still say "cuda".

import torch_npu                                   ──> torch.npu, torch_npu.npu_fusion_attention …
from torch_npu.contrib import transfer_to_npu      ──> "cuda" means npu from here on
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from windtunnel.capture.pytorch.packages.torch_npu_ops import npu_functions
from windtunnel.capture.pytorch.tensors.storage import World

__all__ = ["npu_module"]

_Spec = type(sys.__spec__)  # libraries ask for a module's spec to see whether it is installed
_TRANSFER = "torch_npu.contrib.transfer_to_npu"


def npu_module() -> types.ModuleType:
    """`torch.npu`, and an importable `torch_npu` for scripts written for Ascend."""
    module = types.ModuleType("torch.npu")
    if hasattr(torch, "npu"):
        torch.npu = module
    else:
        torch._register_device_module("npu", module)
    plugin, contrib, transfer = _module("torch_npu"), _module("torch_npu.contrib"), _Transfer(_TRANSFER)
    plugin.npu, plugin.contrib, plugin.__version__ = module, contrib, "2.13.0+simulated"  # type: ignore[attr-defined]
    for name, function in npu_functions().items():
        setattr(plugin, name, function)
    for each in (module, plugin, contrib, transfer):
        sys.modules[each.__name__] = each
    return module


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = _Spec(name, None, is_package=True)
    module.__path__ = []
    return module


class _Transfer(types.ModuleType):
    """Importing it has the effect: Python reads the `__spec__` of a loaded module when it is imported."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__spec__":
            _alias_cuda_to_npu()
            return _Spec(_TRANSFER, None)
        return super().__getattribute__(name)


def _alias_cuda_to_npu() -> None:
    if World.aliases:
        return
    World.aliases = frozenset({"cuda"})
    for name, value in vars(torch.npu).items():  # type: ignore[attr-defined]  # registered by npu_module
        if not name.startswith("__"):
            setattr(torch.cuda, name, value)
            for part in (
                torch.cuda.random,
                torch.cuda.memory,
            ):  # libraries reach for these by their full names
                if hasattr(part, name):
                    setattr(part, name, value)
    torch.Tensor.is_cuda = torch.Tensor.is_npu  # type: ignore[attr-defined]  # set by tensor_methods
