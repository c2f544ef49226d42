"""The unpacked size of a compressed batch of a recording, before it is unpacked.

    Arrow message ──> its table of buffers ──> the declared length of each ──> unpacked_bytes

A buffer begins with its unpacked length, which Arrow trusts. A file of some megabytes can unpack to 255 times as much, so
the sum is checked first. Only the few fields that lead to these lengths are read; the layout is that of
Arrow's Message.fbs and of FlatBuffers, where a table begins with the distance back to the list of its fields.
"""

from __future__ import annotations

from struct import error as StructError
from struct import unpack_from

import pyarrow as pa

__all__ = ["unpacked_bytes"]

_HEADER = 2  # fields of a Message
_BUFFERS, _COMPRESSION = 2, 3  # fields of a RecordBatch
_NOT_PACKED = -1  # a buffer that compression would have made longer


def unpacked_bytes(message: pa.Message) -> int:
    """Return the bytes of all buffers of a batch; ValueError if the message is not a batch."""
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    try:
        batch = _follow(metadata, _field(metadata, _follow(metadata, 0), _HEADER))
        is_packed = _field(metadata, batch, _COMPRESSION, None) is not None
        buffers = _follow(metadata, _field(metadata, batch, _BUFFERS))
        total = 0
        for i in range(unpack_from("<I", metadata, buffers)[0]):
            start, length = unpack_from("<qq", metadata, buffers + 4 + 16 * i)
            if start < 0 or length < 0 or start + length > len(body):
                raise ValueError("a buffer is outside of its batch")
            unpacked = unpack_from("<q", body, start)[0] if is_packed and length else _NOT_PACKED
            if unpacked < _NOT_PACKED:
                raise ValueError("a buffer has a negative length")
            total += length if unpacked == _NOT_PACKED else unpacked
        return total
    except StructError as error:
        raise ValueError("its table of buffers is damaged") from error


def _field(data: memoryview, table: int, number: int, *missing: None) -> int | None:
    """The position of a field of a table."""
    fields = table - unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    n_bytes = unpack_from("<H", data, fields)[0]
    offset = unpack_from("<H", data, fields + place)[0] if place < n_bytes else 0
    if not offset and not missing:
        raise ValueError("a field is missing")
    return table + offset if offset else None


def _follow(data: memoryview, place: int | None) -> int:
    assert place is not None  # without `missing`, `_field` raises instead of returning None
    return place + unpack_from("<I", data, place)[0]
