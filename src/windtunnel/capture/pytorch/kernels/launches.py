"""Record the launch of a kernel that only a device can run: Triton's, or any other that torch does not know.

record_launch("triton.add", "grid=(4,)", read, written) ──> windtunnel::launch ──> OP row named triton.add
                                                        what it writes ──> has unknown values from now on

The launch is an operator, so that dispatch modes (and with them `windtunnel remat`) see which tensors change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.kernels import locate_backward
from windtunnel.capture.pytorch.kernels.known_values import discard_values
from windtunnel.capture.pytorch.kernels.shape_inference import tensor_spec
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.events.model import Signature

__all__ = ["record_launch", "tensors_in"]

Tensor = torch.Tensor
_SCHEMA = "launch(Tensor(a!)[] written, Tensor[] read, str name, str scalars) -> ()"
_libraries: list[torch.library.Library] = []  # an operator lives as long as its library
_signatures: dict[Any, int] = {}


def record_launch(name: str, scalars: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """One row with what a kernel reads and writes, and its bytes; nothing is computed."""
    read, written = _distinct(read), _distinct(written)
    if not (read or written):
        _write_row(written, read, name, scalars)
        return
    launch = _operator()
    # A real launch is below autograd: it changes no version, and may write to weights.
    with torch._C._AutoDispatchBelowAutograd(), torch._C._AutoDispatchBelowADInplaceOrView():
        launch(written, read, name, scalars)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of one argument: itself, those of a tuple, and what a descriptor or a wrapper points to."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(base := getattr(value, "base", None), Tensor):
        yield base


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


@cache
def _operator() -> Any:
    library = torch.library.Library("windtunnel", "FRAGMENT")
    _libraries.append(library)
    library.define(_SCHEMA)
    library.impl("launch", _write_row, "PrivateUse1")
    library.impl("launch", lambda *_: None, "Meta")
    return torch.ops.windtunnel.launch.default


def _write_row(written: Sequence[Tensor], read: Sequence[Tensor], name: str, scalars: str) -> None:
    recorder = world.recorder
    locate_backward(recorder)
    key = (name, scalars, len(read), *((t.shape, t.stride(), t.dtype) for t in (*read, *written)))
    signature = _signatures.get(key)
    if signature is None:
        n_bytes = sum(t.numel() * t.element_size() for t in (*read, *written))
        described = Signature(
            name,
            tuple(map(tensor_spec, read)),
            tuple(map(tensor_spec, written)),
            f"bytes={n_bytes} {scalars}".rstrip(),
        )
        signature = _signatures[key] = recorder.writer.signature(described)
    inputs = [sim for t in read if (sim := sim_of(t)) is not None]
    outputs = [sim for t in written if (sim := sim_of(t)) is not None]
    for tensor in written:
        discard_values(tensor)
    id = recorder.n_ops
    recorder.n_ops = id + 1
    indices = [sim.device_index for sim in (*inputs, *outputs) if sim.device_index >= 0]
    if not (inputs or outputs):  # it was given addresses only
        indices = [index for index in (world.index_of_device[world.default_device],) if index >= 0]
    if indices:
        recorder.write_op(id, signature, indices[0], [s.id for s in inputs], [s.id for s in outputs])
