"""Seconds of everything a program does, each distinct operator looked up once.

    Program, DeviceProfile, CostTable ──> ProgramCosts.call(call), .op(signature), .key(call)

A call costs what was measured for it; else the sum of the roofline times of its parts on the device.
"""

from __future__ import annotations

from windtunnel.devices import DeviceProfile
from windtunnel.remat.simulated.program import Call, Program
from windtunnel.timing.cost import CostTable, cost_key, seconds_of

__all__ = ["ProgramCosts"]


class ProgramCosts:
    def __init__(self, program: Program, device: DeviceProfile, table: CostTable | None = None) -> None:
        self._signatures = program.signatures
        self._table = table or CostTable()
        self._seconds = seconds_of(program.signatures, device, table)
        self._keys: dict[int, str] = {}
        self._calls: dict[tuple[int, tuple[int, ...]], float] = {}

    def op(self, signature: int) -> float:
        """Of one operator on the device."""
        return self._seconds[signature]

    def key(self, call: Call) -> str:
        """What the runtime files the call under."""
        known = self._keys.get(call.signature)
        if known is None:
            signature = self._signatures[call.signature]
            shapes = (spec.shape for spec in signature.inputs)
            known = self._keys[call.signature] = cost_key(signature.name, shapes)
        return known

    def call(self, call: Call) -> float:
        """Of one call, as measured or from its parts."""
        place = (call.signature, call.parts)
        known = self._calls.get(place)
        if known is None:
            known = self._table.find(self.key(call))
            if known is None:
                known = sum(self._seconds[part] for part in call.parts)
            self._calls[place] = known
        return known
