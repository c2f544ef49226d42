"""Saving and loading: simulated weights are never written as if they were real.

    torch.save(state with simulated tensors, path) ──> said, a small marker file unless something is there already
    torch.load(real file, map_location="cuda")     ──> its shapes and dtypes on the simulated device

A dry run must not cost anyone a checkpoint: an existing file is never replaced, neither by saving nor by the
usual rename of a temporary file over it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_named_device import resolve_device
from windtunnel.capture.torch_storage import CPU, sim_of, world
from windtunnel.units import format_bytes

__all__ = ["install_checkpoints"]

_MARKER = "windtunnel simulated checkpoint: no weights are stored here\n"
_saved: dict[str, Any] = {}  # what this run "saved", so that it can load it again


def install_checkpoints() -> None:
    """Replace torch.save, torch.load and safetensors' writers for this process."""
    torch.save = _save(torch.save)  # type: ignore[assignment]
    torch.load = _load(torch.load)  # type: ignore[assignment]
    torch.serialization.save, torch.serialization.load = torch.save, torch.load
    torch.serialization.register_package(5, lambda storage: None, _to_device)
    os.replace = _keep_real(os.replace)  # type: ignore[assignment]
    os.rename = _keep_real(os.rename)  # type: ignore[assignment]
    _install_safetensors()


def _save(original: Callable[..., None]) -> Callable[..., None]:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        tensors = _simulated_tensors(obj)
        if not tensors:
            return original(obj, f, *args, **kwargs)
        _pretend(f, obj, tensors)
        return None

    return save


def _pretend(f: Any, obj: Any, tensors: list[torch.Tensor]) -> None:
    n_bytes = sum(t.numel() * t.element_size() for t in tensors)
    where = str(f) if isinstance(f, (str, os.PathLike)) else "a stream"
    world.recorder.notice(f"saved nothing to {where}: its {len(tensors)} tensors ({format_bytes(n_bytes)}) have no values")
    if isinstance(f, (str, os.PathLike)):
        path = Path(f)
        _saved[str(path.resolve())] = obj
        if not path.exists():
            path.write_text(_MARKER, encoding="utf-8")
    elif hasattr(f, "write"):
        f.write(_MARKER.encode())


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)) and str(Path(f).resolve()) in _saved:
            return _saved[str(Path(f).resolve())]
        if isinstance(map_location, (str, torch.device, int)) and resolve_device(map_location).type != "cpu":
            map_location = str(resolve_device(map_location))
        return original(f, map_location, *args, **kwargs)

    return load


def _to_device(storage: Any, location: str) -> Any:
    """torch.load's hook: a real storage read from a file becomes a simulated one on the device it names."""
    if not location.startswith((world.device_type, store.SIM.type)) or world.device_type == "cpu":
        return None
    untyped = storage.untyped() if hasattr(storage, "untyped") else storage
    made = store.new_storage(untyped.nbytes(), resolve_device(location))
    if untyped.nbytes() <= store.KNOWN_VALUE_LIMIT and untyped.device.type == "cpu":
        store.sims[made._cdata].values = torch.empty(0, dtype=torch.uint8).set_(untyped).clone()
    return made


def _simulated_tensors(obj: Any, found: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Simulated tensors anywhere inside dicts, lists, tuples and modules."""
    found = [] if found is None else found
    if isinstance(obj, torch.Tensor):
        if sim_of(obj) is not None:
            found.append(obj)
    elif isinstance(obj, dict):
        for value in obj.values():
            _simulated_tensors(value, found)
    elif isinstance(obj, (list, tuple, set)):
        for value in obj:
            _simulated_tensors(value, found)
    elif isinstance(obj, torch.nn.Module):
        found += [t for t in (*obj.parameters(), *obj.buffers()) if sim_of(t) is not None]
    return found


def _keep_real(original: Callable[..., None]) -> Callable[..., None]:
    """A marker never replaces a file that was there before the dry run."""

    def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if _is_marker(source) and os.path.isfile(target) and not _is_marker(target):
            world.recorder.notice(f"kept {target} as it is: a dry run does not replace files")
            os.unlink(source)
            return None
        moved_from = str(Path(source).resolve())
        result = original(source, target, *args, **kwargs)
        if moved_from in _saved:
            _saved[str(Path(target).resolve())] = _saved.pop(moved_from)
        return result

    return move


def _is_marker(path: Any) -> bool:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) != len(_MARKER):
            return False
        return Path(path).read_text(encoding="utf-8", errors="replace") == _MARKER
    except (OSError, TypeError, ValueError):
        return False


def _install_safetensors() -> None:
    try:
        import safetensors.torch as library
    except ImportError:
        return
    write, read = library.save_file, library.load_file

    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        found = _simulated_tensors(tensors)
        if not found:
            return write(tensors, filename, metadata)
        _pretend(filename, tensors, found)
        return None

    def load_file(filename: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
        if str(Path(filename).resolve()) in _saved:
            return dict(_saved[str(Path(filename).resolve())])
        tensors = read(filename, device="cpu")
        return tensors if resolve_device(device) == CPU else {k: t.to(device) for k, t in tensors.items()}

    library.save_file, library.load_file = save_file, load_file
