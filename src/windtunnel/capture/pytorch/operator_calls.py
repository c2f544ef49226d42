"""Record which operators the program calls, as a torch dispatch mode sees them.

    program ──> operator ──> CALL row, the rows of its parts on this device, RETURN row

The simulated device is below autograd, where `clone` is an allocation and a `copy_`. Rematerialisation reruns what a
dispatch mode sees, so a run for `windtunnel remat` records that level too. Views, and operators that write nothing
while gradients are off, have no rows. The mode is off during backward, like that of the rematerialisation runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from windtunnel.capture.pytorch.kernels.kernels import written_arguments
from windtunnel.capture.pytorch.kernels.shape_inference import scalars_text, tensor_spec
from windtunnel.capture.pytorch.tensors.storage import SimStorage, sim_of, world
from windtunnel.capture.recorder import Recorder
from windtunnel.events.geometry import is_dense
from windtunnel.events.model import CallFlag, Kind, Signature

__all__ = ["CallRecorder"]

Tensor = torch.Tensor
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_GRAD, _ODD, _COVERS, _SEEDED = map(int, (CallFlag.GRAD, CallFlag.ODD, CallFlag.COVERS, CallFlag.SEEDED))


class CallRecorder(TorchDispatchMode):
    supports_higher_order_operators = True  # they pass through: flex_attention and similar operators

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._n_calls = 0
        self._written: dict[Any, tuple[int, ...] | None] = {}  # None: a view
        self._signatures: dict[Any, int] = {}
        self._weights: dict[int, tuple[SimStorage, int]] = {}  # by key: its number when a call last read it

    def start(self) -> None:
        _push_mode(self)

    def suspend(self) -> bool:
        """Pop this mode if it is the innermost one; return whether it was."""
        if _get_current_dispatch_mode() is not self:
            return False
        _pop_mode()
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch would wrap the method below to hide it from dynamo: a heavy import, and time per operator.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        others = [each for each in types if each not in _PLAIN_TENSORS]
        if others:  # a wrapper (a DTensor) is recorded by its inner operators; other subclasses (a FakeTensor) have no memory
            is_wrapper = any(hasattr(each, "__tensor_flatten__") for each in others)
            return NotImplemented if is_wrapper else func(*args, **kwargs)
        written = self._written_by(func)
        if written is None or world.is_worker or not (written or torch.is_grad_enabled()):
            return func(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        targets = list(_tensors(_argument(func, args, kwargs, i) for i in written))
        for tensor in tensors:
            if _is_weight(tensor):
                self._note_weight(sim_of(tensor))
        self._n_calls += 1
        call = self._n_calls
        recorder = self.recorder
        flags = _flags(args, kwargs, tensors, targets)
        if torch.Tag.nondeterministic_seeded in func.tags:
            flags |= _SEEDED
        signature = self._signature(func, args, kwargs, tensors)
        recorder.write_call(call, signature, flags, [_storage(t) for t in tensors])
        results: list[int] = []
        try:
            out = func(*args, **kwargs)
            results = [_storage(t) for t in _tensors((out,))]
        finally:
            recorder.write_return(call, [_storage(t) for t in targets], results)
        return out

    def _note_weight(self, sim: SimStorage | None) -> None:
        """A weight is read: record it if its storage was emptied and filled again since the last read."""
        if sim is None:
            return
        known = self._weights.get(sim.key)
        if known is not None and known[0] is sim and known[1] != sim.id:
            self.recorder.plain_row(Kind.RESIZE, sim.id, known[1])
        self._weights[sim.key] = (sim, sim.id)

    def _written_by(self, func: Any) -> tuple[int, ...] | None:
        if func not in self._written:
            written = written_arguments(func)
            is_view = not written and any(r.alias_info is not None for r in func._schema.returns)
            self._written[func] = None if is_view else written
        return self._written[func]

    def _signature(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> int:
        scalars = scalars_text(args, kwargs)
        key = (func, scalars, *((t.shape, t.stride(), t.dtype) for t in tensors))
        known = self._signatures.get(key)
        if known is None:
            spec = Signature(str(func), tuple(tensor_spec(t) for t in tensors), (), scalars)
            known = self._signatures[key] = self.recorder.writer.signature(spec)
        return known


def _flags(args: Any, kwargs: Any, tensors: list[Tensor], targets: list[Tensor]) -> int:
    flags = _GRAD if torch.is_grad_enabled() else 0
    if any(map(_is_odd, tensors)) or any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
        flags |= _ODD
    if len(targets) == 1 and _covers(targets[0]):
        flags |= _COVERS
    return flags


def _is_weight(tensor: Tensor) -> bool:
    """A leaf with a gradient, or a view of one."""
    base = tensor if tensor._base is None else tensor._base
    return base.is_leaf and base.requires_grad


def _is_odd(tensor: Tensor) -> bool:
    if (
        type(tensor) not in _PLAIN_TENSORS
        or tensor.layout is not torch.strided
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return True
    if hasattr(tensor if tensor._base is None else tensor._base, "ds_id"):
        return True  # DeepSpeed replaces a weight's data to free it
    # A host scalar may be combined with any device; where the host is the device, real memory counts as well.
    return _storage(tensor) < 0 and tensor.dim() > 0 and world.device_type != "cpu"


def _covers(tensor: Tensor) -> bool:
    """Whether writing every element of the tensor writes every byte of its storage."""
    sim = sim_of(tensor)
    return (
        sim is not None
        and tensor.storage_offset() == 0
        and sim.n_bytes == tensor.numel() * tensor.element_size()
        and is_dense(tensor.shape, tensor.stride())
    )


def _storage(tensor: Tensor) -> int:
    sim = sim_of(tensor)
    return sim.id if sim is not None and sim.device_index >= 0 else -1


def _argument(func: Any, args: Any, kwargs: Any, position: int) -> Any:
    return args[position] if position < len(args) else kwargs.get(func._schema.arguments[position].name)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
