"""The bytes of a `.pt` file, as `torch.save` lays them out, without torch and without copying the tensor.

    element type, shape ──> head: pickle and small records ┐
    the tensor's own memory ───────────────────────────────┼──> one writev
    its CRC-32 ──> tail: its checksum, directory of the zip ┘

A zip with nothing compressed. Every record begins at a multiple of 64 bytes, so that `torch.load(mmap=True)` can map
the tensor. Lengths that need more than 32 bits are written as torch does (ZIP64).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from zlib import crc32 as crc32_of_small

from windtunnel.probe.files.tensor_types import ElementType

__all__ = ["data_length", "pt_head_and_tail"]

_LONGEST_32 = 0xFFFFFFFF  # from here on, a length or offset has 64 bits
_ALIGNMENT = 64
_FOLDER = b"archive/"  # every name inside begins with it; torch uses the name of the file, or this
_FLAG_UTF8 = 0x0800
_FLAG_LENGTH_FOLLOWS = 0x0008  # checksum and length come after the data


def data_length(kind: ElementType, shape: tuple[int, ...]) -> int:
    """Bytes of a contiguous tensor."""
    return kind.n_bytes * math.prod(shape)


def pt_head_and_tail(kind: ElementType, shape: tuple[int, ...], crc: int) -> tuple[bytes, bytearray]:
    """All bytes before and after those of the tensor, whose CRC-32 is given."""
    head, tail, crc_places = _layout(kind, shape)
    filled = bytearray(tail)
    for place in crc_places:
        struct.pack_into("<I", filled, place, crc)
    return head, filled


@lru_cache(maxsize=4096)  # a model has few shapes, which repeat in every step
def _layout(kind: ElementType, shape: tuple[int, ...]) -> tuple[bytes, bytes, tuple[int, ...]]:
    """Head, tail, and the offsets of the tensor's checksum in the tail."""
    records: list[_Record] = []

    def add(name: bytes, content: bytes = b"", n_bytes: int | None = None) -> _Record:
        n_bytes = len(content) if n_bytes is None else n_bytes
        records.append(_Record(name, records[-1].end if records else 0, n_bytes, content))
        return records[-1]

    add(b"data.pkl", _pickle(kind, shape))
    add(b".format_version", b"1")
    add(b".storage_alignment", str(_ALIGNMENT).encode())
    add(b"byteorder", b"little")
    head = b"".join(record.whole for record in records)
    data = add(b"data/0", n_bytes=data_length(kind, shape))
    version = add(b"version", b"3\n")
    tail = data.descriptor(0) + version.whole
    crc_places = [4] if data.n_bytes else []
    directory = b""
    for record in records:
        if record is data:
            crc_places.append(len(tail) + len(directory) + 16)
        directory += record.directory_entry
    end = _directory_end(len(records), version.end, len(directory))
    return head + data.header, tail + directory + end, tuple(crc_places)


@dataclass(frozen=True, slots=True)
class _Record:
    """One file inside the zip."""

    name: bytes
    start: int  # where its header begins
    n_bytes: int
    content: bytes = b""  # empty for the tensor, whose bytes the caller writes

    @property
    def header(self) -> bytes:
        """Local header, with padding that puts the content at a multiple of 64."""
        name = _FOLDER + self.name
        big = self._wide_fields(0)
        padding = -(self.start + 30 + len(name) + len(big) + 4) % _ALIGNMENT
        extra = big + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        fixed = struct.pack("<4s5H3I2H", b"PK\3\4", 0, self._flags, 0, 0, 0, 0, 0, 0, len(name), len(extra))
        return fixed + name + extra

    def descriptor(self, crc: int) -> bytes:
        """Checksum and lengths, behind the content."""
        if not self.n_bytes:
            return b""
        form = "<4sI2Q" if self._is_wide else "<4sI2I"
        return struct.pack(form, b"PK\7\x08", crc, self.n_bytes, self.n_bytes)

    @property
    def directory_entry(self) -> bytes:
        name = _FOLDER + self.name
        extra = self._wide_fields(self.n_bytes)
        length = min(self.n_bytes, _LONGEST_32)
        start = min(self.start, _LONGEST_32)
        lengths = (self.crc, length, length, len(name), len(extra))
        return (
            struct.pack("<4s6H3I5H2I", b"PK\1\2", 0, 0, self._flags, 0, 0, 0, *lengths, 0, 0, 0, 0, start)
            + name
            + extra
        )

    @property
    def whole(self) -> bytes:
        """Header, content and descriptor."""
        return self.header + self.content + self.descriptor(self.crc)

    @property
    def crc(self) -> int:
        return crc32_of_small(self.content)

    @property
    def end(self) -> int:
        return self.start + len(self.header) + self.n_bytes + len(self.descriptor(0))

    @property
    def _flags(self) -> int:
        return _FLAG_UTF8 | (_FLAG_LENGTH_FOLLOWS if self.n_bytes else 0)

    @property
    def _is_wide(self) -> bool:
        return self.n_bytes >= _LONGEST_32 or self.start >= _LONGEST_32

    def _wide_fields(self, stored_length: int) -> bytes:
        """Lengths and offset in 64 bits, where 32 are too few."""
        values = [self.n_bytes, stored_length] if self.n_bytes >= _LONGEST_32 else []
        values += [self.start] if self.start >= _LONGEST_32 else []
        return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values) if values else b""


def _directory_end(n_records: int, start: int, n_bytes: int) -> bytes:
    counts = (n_records, n_records, n_bytes, min(start, _LONGEST_32))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *counts, 0)
    if start < _LONGEST_32:
        return end
    wide = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0x031E, 45, 0, 0, n_records, n_records, n_bytes, start)
    return wide + struct.pack("<4sIQI", b"PK\6\7", 0, start + n_bytes, 1) + end


def _pickle(kind: ElementType, shape: tuple[int, ...]) -> bytes:
    """What torch's pickler writes for a contiguous tensor of this type and shape."""
    n_memo = 0

    def remember() -> bytes:
        nonlocal n_memo
        n_memo += 1
        return b"q" + bytes([n_memo - 1])

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode() + remember()

    def name(module: str, attribute: str) -> bytes:
        return f"c{module}\n{attribute}\n".encode() + remember()

    def numbers(values: tuple[int, ...]) -> bytes:
        if not values:
            return b")"
        body = b"".join(map(_integer, values))
        short = {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(values))
        return (body + short if short else b"(" + body + b"t") + remember()

    n_elements = math.prod(shape)
    strides = (
        tuple(accumulate((max(n, 1) for n in reversed(shape[1:])), int.__mul__, initial=1))[::-1]
        if shape
        else ()
    )
    parts = [b"\x80\x02"]
    parts.append(name("torch._utils", "_rebuild_tensor_v2" if kind.storage else "_rebuild_tensor_v3"))
    parts.append(b"((" + text("storage"))
    parts.append(name("torch", kind.storage) if kind.storage else name("torch.storage", "UntypedStorage"))
    parts.append(text("0") + text("cpu"))
    parts.append(
        _integer(n_elements if kind.storage else n_elements * kind.n_bytes) + b"t" + remember() + b"Q"
    )
    parts.append(_integer(0) + numbers(shape) + numbers(strides) + b"\x89")
    parts.append(name("collections", "OrderedDict") + b")R" + remember())
    if not kind.storage:
        parts.append(name("torch", kind.name))
    parts.append(b"t" + remember() + b"R" + remember() + b".")
    return b"".join(parts)


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + bytes([value])
    if value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    n_bytes = value.bit_length() // 8 + 1  # with room for the sign
    return b"\x8a" + bytes([n_bytes]) + value.to_bytes(n_bytes, "little")
