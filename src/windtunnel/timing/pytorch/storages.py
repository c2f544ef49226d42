"""Real memory for the tensors of a program that is run again, one storage after another.

    storage, shape ──> its memory if an operator made it, else new memory with harmless values ──> tensor

What the program computes before the step is not known. Weights then have small values of both signs, other
floating-point numbers are small and positive (no square root of a negative number, no denormal), integers are valid
indices wherever the program looks something up, and truth values are true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch

from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.operators.operator_classes import OpClass, base_name, class_of

__all__ = ["Shape", "Storages", "index_bound", "span_bytes"]

Tensor = torch.Tensor
_BLOCK = 1 << 14  # values that are made; the rest is copies of them
_MIDDLE = 0.02  # of the numbers that are made
_INDEXING = (OpClass.LOOKUP, OpClass.SCATTER, OpClass.LOSS, OpClass.POOLING)
_INTEGERS = ("int64", "int32")


@dataclass(frozen=True, slots=True)
class Shape:
    """A spec as torch has it. Equal ones have the same number."""

    number: int
    spec: TensorSpec
    dtype: torch.dtype
    n_bytes: int  # from its first byte to its last


class _Memory:
    """A storage and the tensors that were made on it: most are reused."""

    __slots__ = ("storage", "views")

    def __init__(
        self, storage: torch.UntypedStorage, shape: Shape | None = None, tensor: Tensor | None = None
    ) -> None:
        self.storage = storage
        self.views: dict[int, Tensor] = {}
        if shape is not None and tensor is not None:
            self.views[shape.number] = tensor


class Storages:
    def __init__(
        self,
        sizes: dict[int, int],
        bound: int,
        device: torch.device,
        *,
        weights: Iterable[int] = (),
        keeps_results: bool = True,
    ) -> None:
        """`keeps_results` False: every tensor is cut from one pool, for programs larger than this machine."""
        self._sizes = sizes
        self._bound = bound
        self._device = device
        self._weights = set(weights)
        self._keeps_results = keeps_results
        self._store: dict[int, _Memory] = {}
        self._blocks: dict[torch.dtype, Tensor] = {}
        self._pools: dict[torch.dtype, torch.UntypedStorage] = {}

    def tensor(self, storage: int, shape: Shape) -> Tensor:
        memory = self._store.get(storage)
        if memory is None:
            memory = self._first_use(storage, shape)
        found = memory.views.get(shape.number)
        if found is None:
            if memory.storage.nbytes() < shape.n_bytes:  # the recording has another number for it
                memory = self._store[storage] = _Memory(self._fresh(shape.n_bytes, shape.dtype))
            found = torch.empty(0, dtype=shape.dtype, device=self._device)
            found.set_(memory.storage, 0, shape.spec.shape, shape.spec.strides)
            if self._keeps_results:
                memory.views[shape.number] = found
        return found

    def put(self, storages: list[int], results: list[Tensor], shapes: tuple[Shape, ...] = ()) -> None:
        """Keep what an operator returned under the numbers the recording has for it."""
        if not self._keeps_results:
            return
        if len(storages) == len(results) == len(shapes) == 1:  # nearly all
            self._store[storages[0]] = _Memory(results[0].untyped_storage(), shapes[0], results[0])
            return
        left = list(storages)
        for result in results:
            if not left:
                return
            made = result.untyped_storage()
            # Kernels allocate their results in any order: they are matched by size.
            n_bytes = made.nbytes()
            which = next((s for s in left if self._sizes.get(s) == n_bytes), left[0])
            left.remove(which)
            self._store[which] = _Memory(made)

    def make(self, storage: int) -> None:
        if self._keeps_results:
            n_bytes = self._sizes.get(storage, 0)
            made = torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
            self._store[storage] = _Memory(made.untyped_storage())

    def drop(self, storage: int) -> None:
        self._store.pop(storage, None)

    def is_large(self, storage: int) -> bool:
        """Giving it back may go to the operating system."""
        return self._sizes.get(storage, 0) >= 1 << 16

    def clear(self) -> None:
        self._store.clear()

    def _first_use(self, storage: int, shape: Shape) -> _Memory:
        """Of what the program made before the step."""
        if not self._keeps_results:
            return _Memory(self._pool(shape.n_bytes, shape.dtype))
        n_bytes = max(shape.n_bytes, self._sizes.get(storage, 0))
        made = self._fresh(n_bytes, shape.dtype)
        if storage in self._weights and shape.dtype.is_floating_point:
            whole = made.nbytes() // shape.dtype.itemsize
            torch.empty(0, dtype=shape.dtype, device=self._device).set_(made, 0, (whole,), (1,)).sub_(_MIDDLE)
        memory = self._store[storage] = _Memory(made)
        return memory

    def _pool(self, needed: int, dtype: torch.dtype) -> torch.UntypedStorage:
        pool = self._pools.get(dtype)
        if pool is None or pool.nbytes() < needed:
            self._pools.pop(dtype, None)
            pool = self._pools[dtype] = self._fresh(needed, dtype)
        return pool

    def _fresh(self, n_bytes: int, dtype: torch.dtype) -> torch.UntypedStorage:
        block = self._block(dtype)
        n = -(-n_bytes // dtype.itemsize)
        made = torch.empty(n, dtype=dtype, device=self._device)
        whole = n // _BLOCK * _BLOCK
        if whole:
            made[:whole].view(-1, _BLOCK).copy_(block.expand(n // _BLOCK, _BLOCK))
        made[whole:].copy_(block[: n - whole])
        return made.untyped_storage()

    def _block(self, dtype: torch.dtype) -> Tensor:
        found = self._blocks.get(dtype)
        if found is None:
            steps = torch.arange(_BLOCK, device=self._device)
            mixed = steps * 7919  # a prime: neighbours are not neighbours any more
            if dtype is torch.bool:
                found = torch.ones(_BLOCK, dtype=dtype, device=self._device)
            elif dtype.is_floating_point or dtype.is_complex:
                found = (_MIDDLE * (0.5 + (mixed % 1021) / 1021)).to(dtype)
            else:
                found = (mixed % min(self._bound, 127 if dtype.itemsize == 1 else self._bound)).to(dtype)
            self._blocks[dtype] = found
        return found


def span_bytes(spec: TensorSpec, dtype: torch.dtype) -> int:
    """From the first byte of a tensor to its last."""
    if not prod(spec.shape):
        return 0
    last = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
    return (last + 1) * dtype.itemsize


def index_bound(signatures: Iterable[Signature]) -> int:
    """The largest number that is a valid index in every lookup of the program, plus one."""
    bounds = [_bound_of(each) for each in signatures if _has_indices(each)]
    return max(1, min(bounds, default=2))


def _has_indices(signature: Signature) -> bool:
    if class_of(signature.name) not in _INDEXING:
        return False
    return any(spec.dtype in _INTEGERS and spec.shape for spec in signature.inputs)


def _bound_of(signature: Signature) -> int:
    base = base_name(signature.name)
    tables = [spec.shape for spec in (*signature.inputs, *signature.outputs) if spec.dtype not in _INTEGERS]
    tables = [shape for shape in tables if len(shape)]
    if base in ("embedding", "embedding_bag") and tables:
        return tables[0][0]
    if base == "embedding_dense_backward" and signature.outputs:
        return signature.outputs[0].shape[0]
    if base.startswith("nll_loss") and tables:
        scores = max(tables, key=len)
        return scores[1] if len(scores) > 1 else scores[0]
    if base == "index_select" and signature.scalars.startswith("_,0,") and tables:
        return tables[0][0]
    return min((size for shape in tables for size in shape), default=1)
