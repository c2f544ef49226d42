"""FSDP 1 and a device given by its number: `FSDP(model, device_id=torch.cuda.current_device())`.

import of torch.distributed.fsdp ──> its reader of `device_id` takes numbers of the simulated card

Torch makes a device of a number by asking which accelerator it was built for, and here that is the extension backend.
Torch imports FSDP only when a program does, which takes seconds: so the reader is replaced when that happens.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from windtunnel.capture.torch_storage import world

__all__ = ["install_fsdp1"]

_MODULE = "torch.distributed.fsdp._init_utils"


def install_fsdp1() -> None:
    if _MODULE in sys.modules:
        _patch(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Watcher())


class _Watcher:
    """Lets the others find the module, and is there when it has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
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
