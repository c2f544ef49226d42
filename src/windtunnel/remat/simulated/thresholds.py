"""Which thresholds to try: as a user writes them, or from what the program needs to the memory of the device.

    "2GB..9GB:0.5GB" | "4GB,6GB,80%" | nothing ──> Thresholds(sizes, left_out)

Without a step there are about ten of them, apart by a power of two, so that they are numbers people would write.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.errors import UsageError
from windtunnel.units import GIB, KIB, MIB, format_bytes, parse_bytes

__all__ = ["Thresholds", "default_thresholds", "parse_thresholds", "write_size"]

_MOST = 12  # thresholds, where their number is ours to choose
_MOST_ASKED = 256
_HOW = "write --thresholds 2GB..9GB:1GB, 4GB,6GB,8GB or 40%..90%:10%"


@dataclass(frozen=True, slots=True)
class Thresholds:
    sizes: tuple[int, ...]  # bytes, ascending
    left_out: tuple[int, ...] = ()  # of a range: above the memory of the device


def parse_thresholds(text: str, device_bytes: int) -> Thresholds:
    """Read what the user wrote; percentages are of the device memory."""
    parts = [part.strip() for part in text.split(",")]
    sizes: set[int] = set()
    left_out: set[int] = set()
    for part in parts:
        if ".." in part:
            found = _range(part, device_bytes)
            left_out.update(size for size in found if size > device_bytes)
            sizes.update(size for size in found if size <= device_bytes)
        else:
            sizes.add(_one(part, text, device_bytes))
    if not sizes:
        _refuse_above(min(left_out), device_bytes)
    _refuse_many(len(sizes), text)
    return Thresholds(tuple(sorted(sizes)), tuple(sorted(left_out)))


def default_thresholds(least_bytes: int, most_bytes: int) -> Thresholds:
    """About ten round numbers from the lowest to the highest useful threshold."""
    most_bytes = max(most_bytes, 1)
    least_bytes = min(max(least_bytes, 1), most_bytes)
    step = _round_step(most_bytes - least_bytes)
    sizes = range(-(-least_bytes // step) * step, most_bytes + 1, step)
    return Thresholds(tuple(sizes) or (most_bytes,))


def write_size(n_bytes: int) -> str:
    """A size as the settings of the runtime take it, exact: "7.5GB"."""
    for unit, factor in (("GB", GIB), ("MB", MIB), ("KB", KIB)):
        quarters, rest = divmod(n_bytes * 4, factor)
        if n_bytes >= factor and not rest:
            return f"{quarters / 4:g}{unit}"
    return str(n_bytes)


def _range(text: str, device_bytes: int) -> range:
    ends, colon, step_text = text.partition(":")
    first_text, _, last_text = ends.partition("..")
    first = _size(first_text, text, device_bytes)
    last = _size(last_text, text, device_bytes)
    if last < first:
        raise UsageError(
            f"the range {text} runs from {format_bytes(first)} down to {format_bytes(last)}",
            hint=f"write the smaller end first: {last_text.strip()}..{first_text.strip()}",
        )
    step = _size(step_text, text, device_bytes) if colon else _round_step(last - first)
    _refuse_many((last - first) // step + 1, text)
    return range(first, last + 1, step)


def _one(part: str, text: str, device_bytes: int) -> int:
    size = _size(part, text, device_bytes)
    if size > device_bytes:
        _refuse_above(size, device_bytes)
    return size


def _size(part: str, text: str, device_bytes: int) -> int:
    try:
        size = parse_bytes(part.strip(), device_bytes)
    except UsageError as error:
        raise UsageError(f"cannot read --thresholds {text!r}: {error.message}", hint=_HOW) from None
    if size == 0:
        raise UsageError(f"--thresholds {text!r} contains a size of 0", hint=_HOW)
    return size


def _round_step(span: int) -> int:
    step = KIB
    while span // step + 1 > _MOST:
        step *= 2
    return step


def _refuse_above(size: int, device_bytes: int) -> None:
    raise UsageError(
        f"a threshold of {format_bytes(size)} is above the {format_bytes(device_bytes)} of the device",
        hint="a threshold must be below the memory of the device; try 80%",
    )


def _refuse_many(n: int, text: str) -> None:
    if n > _MOST_ASKED:
        raise UsageError(
            f"--thresholds {text!r} gives {n:,} thresholds; the limit is {_MOST_ASKED}",
            hint="write a larger step",
        )
