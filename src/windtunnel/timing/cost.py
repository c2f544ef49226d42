"""Seconds of operators for planning: as measured where a real run has been measured, else by the roofline.

Signature, DeviceProfile ──> roofline ──> seconds
measured seconds by cost_key ──> CostTable ──> used instead, where there are any
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from windtunnel.devices import DeviceProfile
from windtunnel.errors import CorruptFile
from windtunnel.events.model import Signature
from windtunnel.foreign_files import parse_json
from windtunnel.timing.roofline.model import roofline_of
from windtunnel.timing.roofline.moved_bytes import bytes_moved

__all__ = ["CostTable", "bytes_moved", "cost_key", "op_seconds", "seconds_of"]

_FORMAT = 1


def cost_key(name: str, shapes: Iterable[Sequence[int]]) -> str:
    """What a measured time is filed under: the operator and the shapes of its tensors, in order.

    Without the overload: whether a number came as a number or as a tensor of one changes nothing.
    """
    return f"{name[: name.rfind('.')]} {' '.join('x'.join(map(str, shape)) for shape in shapes)}"


def op_seconds(signature: Signature, device: DeviceProfile) -> float:
    """The roofline's estimate for one operator."""
    return roofline_of(device).cost(signature).seconds


class CostTable:
    """Measured seconds by `cost_key`."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = dict(seconds or {})

    def __len__(self) -> int:
        return len(self._seconds)

    def find(self, key: str) -> float | None:
        return self._seconds.get(key)

    def find_signature(self, signature: Signature) -> float | None:
        """The measured time of a recorded operator, if it ran with these shapes."""
        return self._seconds.get(cost_key(signature.name, (spec.shape for spec in signature.inputs)))

    def to_json(self) -> str:
        return json.dumps({"version": _FORMAT, "seconds": dict(sorted(self._seconds.items()))}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        try:
            table = parse_json(text)
            version, seconds = table["version"], table["seconds"]
            if version != _FORMAT or not all(isfinite(s) and s >= 0 for s in seconds.values()):
                raise ValueError("not this format")
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise CorruptFile(
                f"this is not a table of operator costs: {error}",
                hint="write one with windtunnel.dtr.save_costs(path) in a real run",
            ) from None
        return cls(seconds)


def seconds_of(
    signatures: Iterable[Signature], device: DeviceProfile, table: CostTable | None = None
) -> list[float]:
    """Seconds of each signature: as measured where the table has it, else by the roofline."""
    found = []
    for signature in signatures:
        measured = table.find_signature(signature) if table is not None else None
        found.append(op_seconds(signature, device) if measured is None else measured)
    return found
