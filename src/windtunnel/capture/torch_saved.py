"""What autograd saves for backward: recorded, and held only weakly.

    autograd saves a tensor ──> SAVE row, a handle (geometry, weak reference to the storage)
    the program lets go of the storage ──> FREE row, although autograd still needs it
    autograd asks for it ──> the storage if it lives, else one copy of the same size ──> LOAD row

So the recording tells apart what the program holds and what autograd alone holds: only the latter can be dropped
and computed again. Which operators made it is told by torch_calls. Installed on request; an ordinary dry run leaves
saved tensors to torch.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from windtunnel import torch_custom_saves
from windtunnel.capture.recorder import Recorder
from windtunnel.capture.torch_calls import CallRecorder
from windtunnel.capture.torch_storage import SimStorage, attach, new_storage, sim_of
from windtunnel.events.model import NO_NAME, Kind

__all__ = ["install_saves"]

Tensor = torch.Tensor
_SAVE, _LOAD, _UNSAVE = int(Kind.SAVE), int(Kind.LOAD), int(Kind.UNSAVE)
_MADE_FOR_THIS = 1
_SMALL = 1 << 12  # bytes of known values below which nobody would evict them
_sequence_nr = torch._C._autograd._get_sequence_nr
_strong = torch.UntypedStorage._new_with_weak_ptr  # type: ignore[attr-defined]

_kept: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()  # by the key of the SimStorage


def install_saves(recorder: Recorder) -> None:
    """Record what autograd saves from now on; the program's own hooks go on top and hide theirs from us."""
    _Handle.recorder = recorder
    calls = CallRecorder(recorder)
    engine = torch.autograd.Variable._execution_engine
    torch.autograd.Variable._execution_engine = _Engine(engine, calls)  # type: ignore[assignment]
    torch_custom_saves.watch()
    torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
    calls.start()


class _Engine:
    """Autograd's engine, without the recorder of calls; it raises what a hook found wrong once backward is over.

    A hook cannot raise: on a device whose guard is written in Python, as the simulated one's is, torch aborts.
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
    """A storage some handles are for, without holding it."""

    __slots__ = ("__weakref__", "copy", "original", "sim")

    def __init__(self, sim: SimStorage, storage: torch.UntypedStorage) -> None:
        self.sim = sim
        self.original = StorageWeakRef(storage)
        self.copy: StorageWeakRef | None = None  # what was made for autograd after the storage was gone


class _Handle:
    """What autograd holds instead of the tensor."""

    __slots__ = ("dtype", "id", "kept", "offset", "origin", "shape", "strides", "tensor", "values", "version")

    recorder: Recorder  # of the process; on the class so that handles can die at any time
    n_handles = 0

    def __init__(self, tensor: Tensor, kept: _Kept) -> None:
        _Handle.n_handles += 1
        self.id = _Handle.n_handles
        self.kept = kept
        self.shape, self.strides, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        self.dtype = tensor.dtype
        known = kept.sim.values
        self.values = known.clone() if known is not None else None  # what a fresh storage will hold
        # views share one version, and the base lives longer than most of them
        self.tensor = weakref.ref(tensor._base if tensor._is_view() else tensor)
        self.version = tensor._version
        node = tensor.grad_fn
        name = node.name().partition("Backward")[0] if node is not None else ""
        self.origin = f", which is output {tensor.output_nr} of {name}," if name else ""

    def __del__(self) -> None:
        self.write(_UNSAVE, -1)

    def write(self, kind: int, storage: int, extra: int = -1, device: int = 0) -> None:
        recorder = self.recorder
        recorder.rows.append(
            (kind, self.id, storage, extra, recorder.is_collecting, recorder.module, recorder.phase,
             recorder.stream, device, NO_NAME, (), ())
        )  # fmt: skip


def _pack(tensor: Tensor) -> Tensor | _Handle:
    is_custom = torch_custom_saves.is_custom(tensor)
    if tensor.is_leaf and tensor.requires_grad:
        return tensor
    sim = sim_of(tensor)
    # What a custom function saves may have been written by kernels torch does not see.
    if sim is None or is_custom or not _can_be_made_again(tensor, sim):
        # Not the tensor itself: one that is saved by the node that made it would keep that node alive.
        return tensor.detach() if tensor.requires_grad else tensor
    kept = _kept.get(sim.key)
    if kept is None or kept.sim is not sim:  # another storage was at this address
        kept = _kept[sim.key] = _Kept(sim, tensor.untyped_storage())
    handle = _Handle(tensor, kept)
    handle.write(_SAVE, sim.id, 1 if _is_own_result(tensor) else -1, device=sim.device_index)
    return handle


def _is_own_result(tensor: Tensor) -> bool:
    """Whether the node that saves the tensor, the newest there is, is the one that made it."""
    node = tensor.grad_fn
    return node is not None and node._sequence_nr() == _sequence_nr() - 1


def _can_be_made_again(tensor: Tensor, sim: SimStorage) -> bool:
    if sim.device_index < 0 or (sim.values is not None and sim.n_bytes < _SMALL):
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
    saved.write(_LOAD, given.id, _MADE_FOR_THIS if is_fresh else -1, given.device_index)
    return tensor


def _check_version(saved: _Handle) -> None:
    """Torch leaves this check to the hooks once there are any; it says the same."""
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
