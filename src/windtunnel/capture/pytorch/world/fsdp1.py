"""Let FSDP 1 accept a device by its number: `FSDP(model, device_id=torch.cuda.current_device())`.

import of torch.distributed.fsdp ──> its parser of `device_id` accepts numbers of the simulated device

Torch turns a number into a device of the accelerator it was built for, which here is the extension backend. Importing
FSDP takes seconds and only happens when a program does it, so the parser is replaced at that moment.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["install_fsdp1"]

_MODULE = "torch.distributed.fsdp._init_utils"


def install_fsdp1() -> None:
    if _MODULE in sys.modules:
        _patch(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Watcher())


class _Watcher:
    """Lets the other finders find the module, and patches it after it was loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _patch(module: ModuleType) -> None:
    read = module._get_device_from_device_id

    def _get_device_from_device_id(device_id: Any, *args: Any) -> Any:
        if isinstance(device_id, int):
            device_id = torch.device(world.device_type, device_id)
        return read(device_id, *args)

    module._get_device_from_device_id = _get_device_from_device_id  # type: ignore[attr-defined]
