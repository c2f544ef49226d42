"""Write what MindSpore's own memory tracker would have written, for the meta device, which has no tracker.

    allocated and freed storages, operators ──> MetaTracker ──> memory_block.csv, tracker_graph.ir

The files have MindSpore's own format, so both routes share everything that reads them. The clock works like MindSpore's
too: it advances before an allocation or a free takes its tick, and after an operator took its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["MetaTracker", "Operand", "Storage", "can_be_viewed"]

_PADDING = 512
_NEVER = (1 << 63) - 1
_FIRST_ADDRESS = 1 << 32
_COLUMNS = (
    "start_time_stamp", "end_time_stamp", "device_addr", "stream_id", "pool_type", "size", "type", "producer_task",
    "task_name", "node_name", "graph_name", "python_stack", "is_persistent",
)  # fmt: skip


class Operand(NamedTuple):
    """A tensor as an operator sees it."""

    storage: Storage
    dtype: str  # MindSpore's word, "BFloat16"
    shape: tuple[int, ...]


@dataclass(eq=False)
class Storage:
    """Memory that tensors share. It is allocated when an operator first uses it, and freed with its last tensor."""

    tracker: MetaTracker
    n_bytes: int
    kind: str  # of a block: "Weight", "PyNativeInput", "PyNativeOutput"
    block: _Block | None = None  # while it is allocated
    replaces: Storage | None = None  # held until this one is read

    @property
    def address(self) -> int:
        return self.block.address if self.block is not None else 0

    def touch(self, stack: str = "") -> None:
        if self.block is None:
            self.block = self.tracker.allocate(self.n_bytes, self.kind, stack)

    def release(self) -> None:
        """Free its memory; the storage may be used again."""
        if self.block is not None:
            self.tracker.free(self.block)
            self.block = None

    def resize(self, n_bytes: int) -> None:
        if n_bytes != self.n_bytes:
            self.release()
            self.n_bytes = n_bytes

    def __del__(self) -> None:
        self.release()


@dataclass(slots=True)
class _Block:
    start: int
    address: int
    size: int
    kind: str
    stack: str
    end: int = _NEVER


@dataclass
class MetaTracker:
    """Keeps blocks and operators of one rank until they are written."""

    clock: int = 0
    _blocks: list[_Block] = field(default_factory=list)
    _operators: list[str] = field(default_factory=list)
    _next_address: int = _FIRST_ADDRESS

    def allocate(self, n_bytes: int, kind: str, stack: str) -> _Block:
        self.clock += 1
        size = (n_bytes + _PADDING + 31) // _PADDING * _PADDING  # as MindSpore's pool rounds
        block = _Block(self.clock, self._next_address, size, kind, stack)
        self._next_address += size  # addresses are never reused, so a name always belongs to one block
        self._blocks.append(block)
        return block

    def free(self, block: _Block) -> None:
        self.clock += 1
        block.end = self.clock

    def operator(
        self,
        name: str,
        read: Sequence[Operand],
        written: Sequence[Operand],
        stack: str = "",
        **attributes: str,
    ) -> None:
        """An operator ran: what it reads and writes is allocated now at the latest."""
        for operand in read:
            operand.storage.replaces = None
        for operand in (*read, *written):
            if operand.storage.n_bytes:
                operand.storage.touch(stack)
        words = ";".join(f"{key}={value}" for key, value in {"stream_id": "0", **attributes}.items())
        self._operators.append(
            f"({_blocks(written)}) = {name}({_blocks(read)}), task_info: {self.clock}, attrs {{{words}}}\n"
            f"    ({_tensors(written)}) <- ({_tensors(read)})\n    # {stack}\n"
        )
        self.clock += 1

    def write(self, folder: Path) -> None:
        with (folder / "tracker_graph.ir").open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(self._operators)
        with (folder / "memory_block.csv").open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(self._lines())

    def _lines(self) -> Iterator[str]:
        yield ",".join(_COLUMNS) + ",\n"
        for block in self._blocks:
            persistent = int(block.kind == "Weight")
            yield (
                f"{block.start},{block.end},{block.address:#x},0,Meta,{block.size},{block.kind},-1,PyNative,,,"
                f"{block.stack},{persistent},\n"
            )


def can_be_viewed(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> bool:
    """Whether a tensor can have another shape without a copy: every new dimension lies within one run of memory."""
    runs: list[
        int
    ] = []  # elements of each run of dimensions that follow each other in memory, innermost first
    expected = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if runs and stride == expected:
            runs[-1] *= size
        else:
            runs.append(size)
        expected = stride * size
    wanted = [size for size in reversed(new_shape) if size != 1]
    for run in runs:
        n = 1
        while n < run and wanted:
            n *= wanted.pop(0)
        if n != run:
            return False
    return not wanted


def _blocks(operands: Sequence[Operand]) -> str:
    found = (operand.storage.block for operand in operands)
    return ", ".join(f"%{block.start}" for block in found if block is not None)


def _tensors(operands: Sequence[Operand]) -> str:
    return ", ".join(
        f"{operand.dtype}:[{', '.join(map(str, operand.shape))}]"
        for operand in operands
        if operand.storage.block is not None
    )
