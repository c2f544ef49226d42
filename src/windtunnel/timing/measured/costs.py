"""Times of operators as measured on the local device, and the file that stores them.

    pytorch.measure ──> Measured by signature ──> MeasuredCosts ──> OpCost, row by row
                                     └──> one JSON file per device ──> the next run

A file belongs to one device, number of threads and version of torch: its fingerprint. Failed measurements are
stored too, with the reason, so that they are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.foreign_files import open_file, parse_json
from windtunnel.timing.operators.flops import flops_of
from windtunnel.timing.operators.op_cost import Basis, HostCosts, OpCost
from windtunnel.timing.operators.operator_classes import class_of
from windtunnel.timing.roofline.moved_bytes import bytes_moved
from windtunnel.whole_file import whole_file

__all__ = [
    "Fingerprint", "HostSeconds", "Measured", "MeasuredCosts", "measured_of", "measured_row", "signature_of",
    "signature_row",
]  # fmt: skip

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a measured time depends on besides the operator."""

    device: str  # "cpu", "cuda"
    model: str  # "Intel(R) Xeon(R) Processor"
    cores: int  # this process may use
    threads: int  # torch computes with; 0: as many as it chooses itself
    torch: str

    def __str__(self) -> str:
        threads = f"{self.threads} threads" if self.threads else f"{self.cores} cores"
        return f"{self.model}, {threads}, torch {self.torch}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One operator: how long it took, or why that is unknown."""

    seconds: float = 0.0
    spread: float = 0.0  # (third quartile - first) / median
    n_samples: int = 0  # undisturbed by other programs; with a time and none, it is not kept
    scratch_bytes: int = 0  # most it holds at once beyond its results
    reason: str = ""  # why there is no time


@dataclass(frozen=True, slots=True)
class HostSeconds:
    """The program's own thread, beside the kernels."""

    forward: float = 0.0  # an operator called from Python and recorded by autograd
    backward: float = 0.0  # one that autograd calls
    module: float = 0.0  # a call of a module
    bytes_per_s: float = 0.0  # of a copy: what an operator that cannot be measured is bounded by


class MeasuredCosts:
    """A source of costs: every operator as it was measured here."""

    def __init__(
        self,
        fingerprint: Fingerprint,
        entries: Mapping[Signature, Measured] | None = None,
        host: HostSeconds | None = None,
        *,
        notes: tuple[str, ...] = (),
        measuring_seconds: float = 0.0,
        host_measuring_seconds: float = 0.0,
    ) -> None:
        self.fingerprint = fingerprint
        self.entries = dict(entries or {})
        self.host_seconds = host or HostSeconds()
        self.notes = notes
        self.measuring_seconds = measuring_seconds  # of this run; what was known already cost nothing
        self.host_measuring_seconds = host_measuring_seconds  # for `host`, once for each file

    @property
    def host(self) -> HostCosts:
        return HostCosts(module_seconds=self.host_seconds.module)

    @property
    def description(self) -> str:
        n_measured = sum(not each.reason for each in self.entries.values())
        return f"measured on this machine: {self.fingerprint}, {n_measured} operators"

    def cost(self, signature: Signature, *, is_backward: bool = False) -> OpCost:
        found = self.entries.get(signature)
        host = self.host_seconds.backward if is_backward else self.host_seconds.forward
        n_bytes = bytes_moved(signature)
        seconds, basis, spread = 0.0, Basis.FREE, 0.0
        if found is not None and not found.reason:
            seconds, basis, spread = found.seconds, Basis.MEASURED, found.spread
        elif n_bytes:
            rate = self.host_seconds.bytes_per_s
            seconds, basis = (n_bytes / rate if rate else 0.0), Basis.BYTES
        kind = class_of(signature.name).value
        return OpCost(seconds, host, basis, flops_of(signature), n_bytes, kind, spread)

    def fused_cost(self, n_bytes: int) -> OpCost | None:
        return None

    def unmeasured(self) -> dict[str, tuple[int, str]]:
        """Operators without a time: name -> how many signatures, and the first reason."""
        found: dict[str, tuple[int, str]] = {}
        for signature, each in self.entries.items():
            if each.reason:
                n, reason = found.get(signature.name, (0, each.reason))
                found[signature.name] = (n + 1, reason)
        return found

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        rows = [[signature_row(s), measured_row(m)] for s, m in self.entries.items()]
        text = json.dumps(
            {
                "format": _FORMAT,
                "fingerprint": asdict(self.fingerprint),
                "host": asdict(self.host_seconds),
                "entries": rows,
            },
            separators=(",", ":"),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.encode())

    @classmethod
    def load(cls, path: Path) -> MeasuredCosts:
        """Read a file of `save`; CorruptFile for anything else."""
        try:
            with open_file(path) as file:
                content = parse_json(file.read())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r} is not {_FORMAT}")
            fingerprint = _record(Fingerprint, content["fingerprint"])
            host = _record(HostSeconds, content["host"])
            entries = {signature_of(s): measured_of(m) for s, m in content["entries"]}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise CorruptFile(
                f"{path} is not a file of measured operators: {error}", hint="delete it"
            ) from None
        return cls(fingerprint, entries, host)


def signature_row(signature: Signature) -> list[Any]:
    specs = [[[*s.shape], [*s.strides], s.dtype] for s in (*signature.inputs, *signature.outputs)]
    return [signature.name, len(signature.inputs), specs, signature.scalars]


def signature_of(row: Any) -> Signature:
    name, n_inputs, rows, scalars = row
    specs = tuple(TensorSpec(_sizes(shape), _sizes(strides), _text(dtype)) for shape, strides, dtype in rows)
    if not isinstance(n_inputs, int) or not 0 <= n_inputs <= len(specs):
        raise ValueError(f"{n_inputs!r} inputs of {len(specs)} tensors")
    return Signature(_text(name), specs[:n_inputs], specs[n_inputs:], _text(scalars))


def measured_row(measured: Measured) -> list[Any]:
    return [getattr(measured, field.name) for field in fields(Measured)]


def measured_of(row: Any) -> Measured:
    names = [field.name for field in fields(Measured)]
    return _record(Measured, dict(zip(names, row, strict=True)))


def _record(kind: Any, values: Any) -> Any:
    """A record of plain numbers and texts, each of the type its field has."""
    wanted = {field.name: field.type for field in fields(kind)}
    if not isinstance(values, dict) or set(values) != set(wanted):
        raise ValueError(f"the fields of {kind.__name__} are not {sorted(wanted)}")
    for name, value in values.items():
        if wanted[name] == "str":
            _text(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}")
        elif not isfinite(value) or value < 0 or (wanted[name] == "int" and value != int(value)):
            raise ValueError(f"{name} is {value!r}")
    return kind(**values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each >= 0 for each in values):
        raise ValueError(f"{values!r} are not sizes")
    return tuple(values)
