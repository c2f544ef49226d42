"""Export a model whose tensors have no bytes: TorchScript files, ONNX and `torch.export`.

    torch.jit.save, torch.onnx.export, torch.export.save ──> a file that says it holds no weights, and how large they are
    torch.jit.load(real file, map_location="cuda")       ──> its shapes and dtypes on the simulated device
    torch.export.export                                  ──> unchanged: fake device tensors use the simulated backend

Torch writes these files in C++, which reads a tensor's memory directly: there is none here, and the process would
crash. For exports that are not replaced below, session/rank_crash.py reports the line of the crash.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.onnx
from torch._subclasses.fake_tensor import FakeTensor

from windtunnel.capture.pytorch.kernels.device_argument import is_simulated_device, resolve_device, simulate
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.capture.pytorch.torch_api.pickling import storage_name

__all__ = ["NeedsValues", "install_exports"]

Tensor = torch.Tensor
_STATES: tuple[Any, ...] = (torch._C.ParameterDict, torch._C.BufferDict)  # of a scripted module
_MARKER = b"windtunnel: a dry run exported this file, and no weights are stored here\n"


class NeedsValues(RuntimeError):
    """The program asks for something that needs the values of tensors."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} (at {world.recorder.user_line()}) {why}, which a dry run does not have: guard it with"
            " `if not windtunnel.is_dry_run():`"
        )


def install_exports() -> None:
    """Replace what writes a model to a file or reads one, in this process."""
    _install_scripted()
    scripted = torch.jit.RecursiveScriptModule
    scripted._apply = _apply(scripted._apply)  # type: ignore[method-assign]
    torch.jit.load = torch.jit._serialization.load = _load(torch.jit.load)
    torch.onnx.export = _onnx_export(torch.onnx.export)
    torch.export.save = _save_exported(torch.export.save)
    _retarget_fake_tensors()


def _retarget_fake_tensors() -> None:
    """Torch needs a device guard for fake tensors; the simulated backend has one, an absent accelerator has not."""
    original = FakeTensor.__new__

    def __new__(cls: Any, fake_mode: Any, elem: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        is_device = device is not None and torch.device(device).type == world.device_type != "cpu"
        return original(cls, fake_mode, elem, store.SIM if is_device else device, *args, **kwargs)

    FakeTensor.__new__ = staticmethod(__new__)  # type: ignore[assignment, method-assign]


# -- TorchScript --------------------------------------------------------------------------------------------


def _install_scripted() -> None:
    kinds = {torch._C.ScriptModule: _tensors_of_module, torch._C.ScriptFunction: _tensors_of_function}
    for kind, find in kinds.items():
        for name in ("save", "_save_for_mobile"):
            if hasattr(kind, name):
                setattr(kind, name, _to_path(getattr(kind, name), find))
        for name in ("save_to_buffer", "_save_to_buffer_for_mobile"):
            if hasattr(kind, name):
                setattr(kind, name, _to_buffer(getattr(kind, name), find))


def _to_path(original: Callable[..., Any], find: Callable[[Any], list[Tensor]]) -> Callable[..., Any]:
    def save(self: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = find(self)
        if not tensors:
            return original(self, filename, *args, **kwargs)
        return _write_placeholder("torch.jit.save", filename, tensors)

    return save


def _to_buffer(original: Callable[..., Any], find: Callable[[Any], list[Tensor]]) -> Callable[..., Any]:
    def save_to_buffer(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = find(self)
        if not tensors:
            return original(self, *args, **kwargs)
        stream = io.BytesIO()
        _write_placeholder("torch.jit.save", stream, tensors)
        return stream.getvalue()

    return save_to_buffer


def _tensors_of_module(module: Any) -> list[Tensor]:
    """Simulated tensors of a scripted module: weights, buffers, and constants from freezing or tracing."""
    own = [tensor for kind in _STATES for _, tensor in kind(module).items()]
    for name in module._method_names():
        own += _constants(module._get_method(name).graph)
    found = _simulated(own)
    for _, part in torch._C.ModuleDict(module).items():
        found += _tensors_of_module(part)
    return found


def _tensors_of_function(function: Any) -> list[Tensor]:
    return _simulated(_constants(function.graph))


def _constants(block: Any) -> list[Tensor]:
    found = []
    for node in block.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            found.append(node.t("value"))
        for inner in node.blocks():
            found += _constants(inner)
    return found


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _is_marker(f):
            raise NeedsValues("torch.jit.load", "reads what a dry run exported, and needs its weights")
        device = resolve_device(map_location) if map_location is not None else None
        if device is None or not is_simulated_device(device):
            return original(f, map_location, *args, **kwargs)
        module = original(f, store.CPU, *args, **kwargs)
        _put_each(module._c, lambda tensor: simulate(tensor, device))
        return module

    return load


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """`.cuda()` of a loaded module: its weights are real, and torch swaps only tensors of one backend."""

    def apply(self: Any, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        weights = [*self.parameters(), *self.buffers()]
        if any(sim_of(weight) is not None for weight in weights):
            return original(self, fn, *args, **kwargs)
        _put_each(self._c, fn)
        return self

    return apply


def _put_each(module: Any, change: Callable[[Tensor], Tensor]) -> None:
    """Replace every weight and buffer of a scripted module."""
    for kind in _STATES:
        for name, tensor in kind(module).items():
            with torch.no_grad():
                changed = change(tensor)
            module.setattr(name, changed.requires_grad_(tensor.requires_grad))
    for _, part in torch._C.ModuleDict(module).items():
        _put_each(part, change)


# -- ONNX, torch.export -------------------------------------------------------------------------------------


def _onnx_export(original: Callable[..., Any]) -> Callable[..., Any]:
    def export(model: Any, args: Any = (), f: Any = None, *, kwargs: Any = None, **options: Any) -> Any:
        given = args if isinstance(args, tuple) else (args,)
        tensors = _simulated(_state_of(model))
        if not tensors and not _simulated(_tensors_in((given, kwargs))):
            return original(model, args, f, kwargs=kwargs, **options)
        _try_out(model, given, kwargs or {})
        if f is not None:
            _write_placeholder("torch.onnx.export", f, tensors)
        return _Program(tensors) if options.get("dynamo", True) else None

    return export


def _try_out(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the model as an exporter does: one forward, without dropout and gradients."""
    if args and isinstance(args[-1], dict) and not kwargs:
        *args, kwargs = args  # type: ignore[assignment]  # the old exporter takes keywords as the last argument
    was_training = getattr(model, "training", False)
    if was_training:
        model.eval()
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        if was_training:
            model.train()


class _Program:
    """What torch.onnx.export returns for a model without values: it can only be saved."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._marker = _marker(tensors)

    def save(self, destination: Any, **_: Any) -> None:
        _write_marker("torch.onnx.export", destination, self._marker)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what copy and pickle look for
        raise NeedsValues(f"{name} of an ONNX program", "needs the weights of the model")


def _save_exported(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(ep: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = _simulated(_tensors_in((getattr(ep, "state_dict", {}), getattr(ep, "constants", {}))))
        if not tensors:
            return original(ep, f, *args, **kwargs)
        return _write_placeholder("torch.export.save", f, tensors)

    return save


# -- placeholder files --------------------------------------------------------------------------------------


def _write_placeholder(what: str, target: Any, tensors: list[Tensor]) -> None:
    """Write a file that says what it is, and names the storages a real one would hold."""
    _write_marker(what, target, _marker(tensors))


def _marker(tensors: list[Tensor]) -> bytes:
    return _MARKER + "".join(dict.fromkeys(map(storage_name, tensors))).encode()


def _write_marker(what: str, target: Any, marker: bytes) -> None:
    world.recorder.notice(f"{what} wrote a file without weights: they have no values in a dry run")
    if not isinstance(target, (str, os.PathLike)):
        target.write(marker)
        return
    path = Path(target)
    if not path.parent.is_dir():
        raise RuntimeError(f"Parent directory {path.parent} does not exist.")  # torch's own words
    path.write_bytes(marker)


def _is_marker(f: Any) -> bool:
    if isinstance(f, (str, os.PathLike)):
        path = Path(f)
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MARKER)) == _MARKER
    if not hasattr(f, "seek"):
        return False
    at = f.tell()
    is_marker = f.read(len(_MARKER)) == _MARKER
    f.seek(at)
    return is_marker


def _state_of(model: Any) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []


def _tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _simulated(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if sim_of(tensor) is not None]
