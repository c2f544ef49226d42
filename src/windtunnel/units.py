"""Parse and format bytes and seconds.

k, M, G, T are powers of 1024, with or without the i: the tools that windtunnel replaces read "5GB" as 5 GiB.
"""

from __future__ import annotations

import re

from windtunnel.errors import UsageError

__all__ = ["GIB", "KIB", "MIB", "format_bytes", "format_us", "parse_bytes"]

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_LARGEST = 1 << 60  # an exabyte: more is a mistake, and would not fit in the columns of a recording
_LONGEST = 30  # digits

_FACTORS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def parse_bytes(size: int | str, device_bytes: int | None = None) -> int:
    """Read 1024, "5GB", "512MiB", "2g" or, when the device is known, "80%"."""
    if isinstance(size, int) and not isinstance(size, bool):
        if not 0 <= size <= _LARGEST:
            raise UsageError("a size must be between 0 and an exabyte", hint='write it as "5GB"')
        return size
    text = size.strip() if isinstance(size, str) else f"{size!r:.40}"
    if text.endswith("%"):
        return _percent(text, device_bytes)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"cannot read {text[:40]!r} as a size",
            hint='write bytes, or a number with a unit such as "5GB" or "512MiB"',
        )
    number, factor = match.group(1), _FACTORS[match.group(2).lower()]
    if len(number) > _LONGEST:
        raise UsageError(
            f"cannot read a number of {len(number):,} digits as a size", hint='write it as "5GB"'
        )
    n_bytes = int(number) * factor if number.isdigit() else int(float(number) * factor)
    return parse_bytes(n_bytes)


def _percent(text: str, device_bytes: int | None) -> int:
    if device_bytes is None:
        raise UsageError(
            f"{text!r} is a percentage of the device's memory, which is unknown here",
            hint='write it as "5GB"',
        )
    try:
        share = float(text[:-1])
    except ValueError:
        share = -1.0
    if not 0 < share <= 100:
        raise UsageError(
            f"cannot read {text!r} as a percentage of memory", hint='write "80%", between 0 and 100'
        )
    return int(device_bytes * share / 100)


def format_bytes(n_bytes: float) -> str:
    """1536 -> "1.5 KiB": four significant figures at most, binary units."""
    sign, size = ("-", -n_bytes) if n_bytes < 0 else ("", n_bytes)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            value = size / factor
            return f"{sign}{value:.2f} {unit}" if value < 100 else f"{sign}{value:.1f} {unit}"
    return f"{sign}{int(size)} B"


def format_us(microseconds: float) -> str:
    """1500 -> "1.5 ms"."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.1f} ms"
    return f"{microseconds:.0f} us"
