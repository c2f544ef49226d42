"""Save and load checkpoints: a file of simulated weights describes them and never holds values that look real.

    torch.save(state with simulated tensors, file) ──> shapes, dtypes, storages with their sizes, in torch's own format
    torch.load(such a file)                        ──> the same tensors, simulated
    torch.load(real file, map_location="cuda")     ──> its shapes and dtypes on the simulated device

Where a script writes does not matter here: `isolation` protects its files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.device_argument import resolve_device
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.pytorch.torch_api.pickling import (
    find_simulated,
    install_pickling,
    loading_onto,
    rebuild_simulated,
)

__all__ = ["describe", "install_checkpoints", "is_description", "load_description", "move_storage"]

_NO_VALUES = "checkpoints written by a dry run contain shapes but no values"
_ARCHIVE = b"PK\x03\x04"  # how torch's format begins
_write: Callable[..., None] = torch.save  # torch's own
_read: Callable[..., Any] = torch.load


def install_checkpoints() -> None:
    """Replace torch.save and torch.load for this process."""
    install_pickling()
    torch.save = save
    torch.load = _load(torch.load)
    torch.serialization.save, torch.serialization.load = torch.save, torch.load
    torch.serialization.register_package(5, lambda storage: None, _to_device)


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """torch.save: real objects as always; what holds simulated tensors as a description."""
    is_path = isinstance(f, (str, os.PathLike))
    if not find_simulated(obj):
        if not is_path or os.environ.get("WINDTUNNEL_ISOLATION") != "guard":
            return _write(obj, f, *args, **kwargs)
        with open(
            f, "wb"
        ) as file:  # torch's own writer would bypass the guard, which redirects Python's functions
            return _write(obj, file, *args, **kwargs)
    description = describe(obj)
    if not is_path:
        f.write(description)
        return None
    with open(f, "wb") as file:
        file.write(description)
    return None


def describe(obj: Any) -> bytes:
    """The contents of a file of this object in a dry run."""
    world.recorder.notice(_NO_VALUES)
    description = io.BytesIO()
    _write(obj, description)
    return description.getvalue()


def is_description(content: Any) -> bool:
    """Whether a file or bytes, supposedly of another format, are a description."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content[:4]) == _ARCHIVE
    try:
        with open(content, "rb") as file:
            return file.read(4) == _ARCHIVE
    except (OSError, TypeError, ValueError):
        return False


def load_description(content: Any, device: Any = None) -> Any:
    """What was saved, on the device it was on or another."""
    with loading_onto(device):
        if isinstance(content, (bytes, bytearray, memoryview)):
            return _read(io.BytesIO(content), weights_only=False)
        with open(content, "rb") as file:
            return _read(file, weights_only=False)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        device = map_location if isinstance(map_location, (str, torch.device, int)) else None
        if device is not None and resolve_device(device).type != "cpu":
            map_location = str(resolve_device(device))
        torch.serialization.add_safe_globals([rebuild_simulated])  # a script may have cleared the list
        with loading_onto(device, is_mapped=bool(kwargs.get("mmap"))):
            return original(f, map_location, *args, **kwargs)

    return load


def _to_device(storage: Any, location: str) -> Any:
    """torch.load's hook: a real storage read from a file becomes a simulated one on the device it names."""
    if not location.startswith((world.device_type, store.SIM.type)) or world.device_type == "cpu":
        return None
    untyped = storage.untyped() if hasattr(storage, "untyped") else storage
    return move_storage(untyped, resolve_device(location))


def move_storage(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """A simulated storage of the same size; small ones keep their values."""
    made = store.new_storage(storage.nbytes(), device)
    if storage._cdata in store.sims:
        store.sims[made._cdata].values = store.sims[storage._cdata].values
    elif storage.nbytes() <= store.KNOWN_VALUE_LIMIT:
        store.sims[made._cdata].values = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
    return made
