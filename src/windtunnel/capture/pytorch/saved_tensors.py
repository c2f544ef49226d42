"""Record what autograd saves for backward, and hold it only weakly.

    autograd saves a tensor ──> SAVE row, a handle (geometry, weak reference to the storage)
    the program frees the storage ──> FREE row, although autograd still needs it
    autograd unpacks it ──> the storage if it still exists, else one copy of the same size ──> LOAD row

So the recording distinguishes what the program holds from what only autograd holds: only the latter can be evicted
and rematerialised. operator_calls.py records which operators produced it. Installed on request; an ordinary dry run
leaves saved tensors to torch.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from windtunnel import torch_custom_saves
from windtunnel.capture.pytorch.operator_calls import CallRecorder
from windtunnel.capture.pytorch.tensors.storage import SimStorage, attach, new_storage, sim_of
from windtunnel.capture.recorder import Recorder
from windtunnel.events.model import Kind

__all__ = ["install_saves"]

Tensor = torch.Tensor

_MADE_FOR_THIS = 1
_SMALL = 1 << 12  # bytes: smaller tensors with known values are not worth evicting
_sequence_nr = torch._C._autograd._get_sequence_nr
_strong = torch.UntypedStorage._new_with_weak_ptr

_kept: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()  # by the key of the SimStorage


def install_saves(recorder: Recorder) -> None:
    """Record what autograd saves from now on. The program's own hooks take precedence and hide what they save."""
    _Handle.recorder = recorder
    calls = CallRecorder(recorder)
    engine = torch.autograd.Variable._execution_engine
    torch.autograd.Variable._execution_engine = _Engine(engine, calls)  # type: ignore[assignment]
    torch_custom_saves.watch()
    torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
    calls.start()


class _Engine:
    """Autograd's engine, with the call recorder off; errors found by a hook are raised when backward is over.

    A hook cannot raise: with a device guard written in Python, as the simulated device has, torch would abort.
    """

    found_wrong: RuntimeError | None = None

    def __init__(self, engine: Any, calls: CallRecorder) -> None:
        self._engine = engine
        self._calls = calls

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        is_suspended = self._calls.suspend()
        try:
            result = self._engine.run_backward(*args, **kwargs)
        finally:
            _Handle.recorder.plain_row(Kind.BACKWARD_END)
            if is_suspended:
                self._calls.start()
        error, _Engine.found_wrong = _Engine.found_wrong, None
        if error is not None:
            raise error
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _Kept:
    """A storage that handles refer to, without keeping it alive."""

    __slots__ = ("__weakref__", "copy", "original", "sim")

    def __init__(self, sim: SimStorage, storage: torch.UntypedStorage) -> None:
        self.sim = sim
        self.original = StorageWeakRef(storage)
        self.copy: StorageWeakRef | None = None  # created for autograd after the storage was freed


class _Handle:
    """What autograd holds instead of the tensor."""

    __slots__ = ("dtype", "id", "kept", "offset", "origin", "shape", "strides", "tensor", "values", "version")

    recorder: Recorder  # of the process; on the class so that handles can be freed at any time
    n_handles = 0

    def __init__(self, tensor: Tensor, kept: _Kept) -> None:
        _Handle.n_handles += 1
        self.id = _Handle.n_handles
        self.kept = kept
        self.shape, self.strides, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        self.dtype = tensor.dtype
        known = kept.sim.values
        self.values = known.clone() if isinstance(known, Tensor) else known  # what a fresh storage will hold
        # views share one version counter, and the base outlives most of them
        self.tensor = weakref.ref(tensor._base if tensor._is_view() else tensor)
        self.version = tensor._version
        node = tensor.grad_fn
        name = node.name().partition("Backward")[0] if node is not None else ""
        self.origin = f", which is output {tensor.output_nr} of {name}," if name else ""

    def __del__(self) -> None:
        self.write(Kind.UNSAVE, -1)

    def write(self, kind: Kind, storage: int, extra: int = -1, device: int = 0) -> None:
        self.recorder.write_saved(kind, self.id, storage, extra, device)


def _pack(tensor: Tensor) -> Tensor | _Handle:
    is_custom = torch_custom_saves.is_custom(tensor)
    if tensor.is_leaf and tensor.requires_grad:
        return tensor
    sim = sim_of(tensor)
    # What a custom function saves may have been written by kernels torch does not see.
    if sim is None or is_custom or not _can_be_made_again(tensor, sim):
        # Not the tensor itself: saved by the node that made it, it would keep that node alive.
        return tensor.detach() if tensor.requires_grad else tensor
    kept = _kept.get(sim.key)
    if kept is None or kept.sim is not sim:  # another storage was at this address
        kept = _kept[sim.key] = _Kept(sim, tensor.untyped_storage())
    handle = _Handle(tensor, kept)
    handle.write(Kind.SAVE, sim.id, 1 if _is_own_result(tensor) else -1, device=sim.device_index)
    return handle


def _is_own_result(tensor: Tensor) -> bool:
    """Whether the node that saves the tensor, the newest one, is also the one that made it."""
    node = tensor.grad_fn
    return node is not None and node._sequence_nr() == _sequence_nr() - 1


def _can_be_made_again(tensor: Tensor, sim: SimStorage) -> bool:
    if sim.device_index < 0 or (isinstance(sim.values, Tensor) and sim.n_bytes < _SMALL):
        return False  # the host's, or a few numbers
    if type(tensor) is not Tensor or tensor.is_conj() or tensor.is_neg():
        return False  # more than a storage and its geometry
    base = tensor._base if tensor._is_view() else None
    return base is None or not (base.is_leaf and base.requires_grad)  # a view of a weight


def _unpack(saved: Tensor | _Handle) -> Tensor:
    if not isinstance(saved, _Handle):
        return saved
    _check_version(saved)
    kept = saved.kept
    storage = _strong(kept.original.cdata)
    if storage is None and kept.copy is not None:
        storage = _strong(kept.copy.cdata)
    is_fresh = storage is None
    if storage is None:
        storage = new_storage(kept.sim.n_bytes, kept.sim.device)
        kept.copy = StorageWeakRef(storage)
    tensor = attach(storage, saved.offset, saved.shape, saved.strides, saved.dtype)
    given = sim_of(tensor)
    assert given is not None
    if is_fresh:
        given.values = saved.values
    saved.write(Kind.LOAD, given.id, _MADE_FOR_THIS if is_fresh else -1, given.device_index)
    return tensor


def _check_version(saved: _Handle) -> None:
    """Once there are hooks, torch leaves this check to them; the message is torch's own."""
    tensor = saved.tensor()
    if tensor is None or tensor._version == saved.version:
        return
    advice = (
        "the backtrace further above shows the operation that failed to compute its gradient. The variable in"
        " question was changed in there or anywhere later. Good luck!"
        if torch.is_anomaly_enabled()
        else "enable anomaly detection to find the operation that failed to compute its gradient, with"
        " torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    _Engine.found_wrong = _Engine.found_wrong or RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation:"
        f" [{tensor.type()} {list(saved.shape)}]{saved.origin} is at version {tensor._version};"
        f" expected version {saved.version} instead. Hint: {advice}"
    )
