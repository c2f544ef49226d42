"""Checksums of a tensor's bytes, as msProbe writes them into "md5".

bytes in C order ──> CRC-32 ──> "fbc81450"
                └──> xor of 64-bit words ──> "0x3c29d0eb3d1f4efa"
"""

from __future__ import annotations

import zlib

import numpy as np

try:  # the same polynomial, about thirty times faster
    from isal import isal_zlib
except ImportError:
    isal_zlib = None  # type: ignore[assignment]

__all__ = ["crc32", "crc_text", "xor_text", "xor_words"]

crc32 = zlib.crc32 if isal_zlib is None else isal_zlib.crc32


def crc_text(crc: int) -> str:
    """Eight lower-case hexadecimal digits."""
    return f"{crc:08x}"


def xor_words(block: np.ndarray, start: int = 0) -> int:
    """The xor of `start` and all 64-bit little-endian words of a contiguous block; a short last word is padded with zeros.

    Blocks of one tensor may be folded one after the other if all but the last are a multiple of eight bytes.
    """
    raw = block.reshape(-1).view(np.uint8)
    whole = raw.size & ~7
    folded = start
    if whole:
        folded ^= int(np.bitwise_xor.reduce(raw[:whole].view("<u8")))
    if whole != raw.size:
        folded ^= int.from_bytes(raw[whole:].tobytes(), "little")
    return folded


def xor_text(word: int) -> str:
    """A 64-bit word as msProbe writes it."""
    return f"0x{word & 0xFFFF_FFFF_FFFF_FFFF:016x}"
