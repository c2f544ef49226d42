"""safetensors in a dry run: real files load as simulated tensors, and simulated weights are saved as descriptions."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.device_argument import resolve_device
from windtunnel.capture.pytorch.tensors.storage import CPU
from windtunnel.capture.pytorch.torch_api.pickling import describing_views, find_simulated
from windtunnel.capture.pytorch.torch_api.saving import describe, is_description, load_description

__all__ = ["install_safetensors"]


def install_safetensors() -> None:
    """Replace what safetensors reads and writes, if it is installed."""
    try:
        import safetensors
        import safetensors.torch as library
    except ImportError:
        return
    write, read, serialize, deserialize = library.save_file, library.load_file, library.save, library.load
    open_file = safetensors.safe_open
    package: Any = safetensors  # its names are replaced below

    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        if not find_simulated(tensors) and os.environ.get("WINDTUNNEL_ISOLATION") != "guard":
            return write(tensors, filename, metadata)
        with open(
            filename, "wb"
        ) as file:  # the library's own writer would bypass the guard, which redirects Python's functions
            file.write(save(tensors, metadata))

    def save(tensors: dict[str, torch.Tensor], metadata: Any = None) -> bytes:
        if not find_simulated(tensors):
            return serialize(tensors, metadata)
        with describing_views():
            return describe(tensors)

    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, torch.Tensor]:
        if is_description(filename):
            return dict(load_description(filename, device))
        tensors = read(filename, device="cpu", **options)
        return tensors if resolve_device(device) == CPU else {k: t.to(device) for k, t in tensors.items()}

    def load(data: bytes) -> dict[str, torch.Tensor]:
        return dict(load_description(data)) if is_description(data) else deserialize(data)

    class safe_open(_File):
        def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any) -> None:
            file: Any
            if is_description(filename):
                file = _Saved(load_description(filename))
            else:
                file = open_file(filename, framework=framework, device="cpu", **options)
            is_torch = framework in ("pt", "torch", "pytorch")
            # None means the CPU: transformers 4 passes it for a device without an index, and moves tensors itself.
            super().__init__(file, resolve_device(device) if is_torch and device is not None else CPU)

    library.save_file, library.load_file, library.save, library.load = save_file, load_file, save, load
    package.safe_open = package.torch.safe_open = safe_open
    _replace_where_imported({id(write): save_file, id(read): load_file, id(open_file): safe_open})


_TAKEN_AS = ("save_file", "safe_save_file", "load_file", "safe_load_file", "safe_open")


def _replace_where_imported(replacements: dict[int, Any]) -> None:
    """Replace these functions in libraries that imported them before the dry run."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name in _TAKEN_AS:
            if id(names.get(name)) in replacements:
                setattr(module, name, replacements[id(names[name])])


class _File:
    """An open safetensors file whose tensors go to a device."""

    def __init__(self, file: Any, device: torch.device) -> None:
        self._file, self._device = file, device

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return _placed(self._file.get_tensor(name), self._device)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)


class _Slice:
    def __init__(self, part: Any, device: torch.device) -> None:
        self._part, self._device = part, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return _placed(self._part[index], self._device)


def _placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor if device == CPU else tensor.to(device)


class _Saved:
    """A file that this run saved as a description."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> _Saved:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def keys(self) -> list[str]:
        return list(self._tensors)

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    get_slice = get_tensor
