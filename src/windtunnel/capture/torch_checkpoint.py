"""Saving and loading: simulated weights are never written as if they were real.

    torch.save(state with simulated tensors, path) ──> said, a small marker file unless something is there already
    torch.load(real file, map_location="cuda")     ──> its shapes and dtypes on the simulated device

A dry run must not cost anyone a checkpoint: an existing file is never replaced, neither by saving nor by the
usual rename of a temporary file over it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_named_device import resolve_device
from windtunnel.capture.torch_pickling import find_simulated, install_pickling, loading_onto
from windtunnel.capture.torch_storage import world
from windtunnel.units import format_bytes

__all__ = ["install_checkpoints", "is_saved", "load_saved", "move_storage", "pretend_to_save"]

_MARKER = "windtunnel simulated checkpoint: no weights are stored here\n"
_saved: dict[str, bytes] = {}  # what this run "saved", as descriptions, so that it can load it again
_write: Callable[..., None] = torch.save  # torch's own


def install_checkpoints() -> None:
    """Replace torch.save and torch.load for this process, and let no marker replace a real file."""
    install_pickling()
    torch.save = save  # type: ignore[assignment]
    torch.load = _load(torch.load)  # type: ignore[assignment]
    torch.serialization.save, torch.serialization.load = torch.save, torch.load
    torch.serialization.register_package(5, lambda storage: None, _to_device)
    os.replace = _keep_real(os.replace)  # type: ignore[assignment]
    os.rename = _keep_real(os.rename)  # type: ignore[assignment]


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """torch.save: real objects as always; what holds simulated tensors only as a description."""
    tensors = find_simulated(obj)
    if not tensors:
        return _write(obj, f, *args, **kwargs)
    pretend_to_save(obj, f, tensors)
    return None


def pretend_to_save(obj: Any, f: Any, tensors: list[torch.Tensor]) -> None:
    """Say that nothing was saved; leave a marker where no file is, and remember shapes for loading."""
    n_bytes = sum(t.numel() * t.element_size() for t in tensors)
    is_path = isinstance(f, (str, os.PathLike))
    world.recorder.notice(
        f"saved nothing to {f if is_path else 'a stream'}: its {len(tensors)} tensors ({format_bytes(n_bytes)}) have no values"
    )
    description = io.BytesIO()
    _write(obj, description)
    if not is_path:
        f.write(description.getvalue())
        return
    path = Path(f)
    _saved[str(path.resolve())] = description.getvalue()
    if not path.exists():
        path.write_text(_MARKER, encoding="utf-8")


def is_saved(path: Any) -> bool:
    """Whether this run pretended to save this file."""
    return isinstance(path, (str, os.PathLike)) and str(Path(path).resolve()) in _saved


def load_saved(path: Any, device: Any = None) -> Any:
    """What was pretended to be saved, on the device it was on or another."""
    with loading_onto(device):
        return _read(io.BytesIO(_saved[str(Path(path).resolve())]), weights_only=False)


_read: Callable[..., Any] = torch.load  # torch's own


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        device = map_location if isinstance(map_location, (str, torch.device, int)) else None
        if is_saved(f):
            return load_saved(f, device)
        if device is not None and resolve_device(device).type != "cpu":
            map_location = str(resolve_device(device))
        with loading_onto(device):
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


def _keep_real(original: Callable[..., None]) -> Callable[..., None]:
    """A marker never replaces a file that was there before the dry run."""

    def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if _is_marker(source) and os.path.isfile(target) and not _is_marker(target):
            world.recorder.notice(f"kept {target} as it is: a dry run does not replace files")
            os.unlink(source)
            return None
        moved_from = str(Path(source).resolve())
        result = original(source, target, *args, **kwargs)
        moved_to = str(Path(target).resolve())
        for path in [p for p in _saved if p == moved_from or p.startswith(moved_from + os.sep)]:
            _saved[moved_to + path[len(moved_from) :]] = _saved.pop(path)
        return result

    return move


def _is_marker(path: Any) -> bool:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) != len(_MARKER):
            return False
        return Path(path).read_text(encoding="utf-8", errors="replace") == _MARKER
    except (OSError, TypeError, ValueError):
        return False
