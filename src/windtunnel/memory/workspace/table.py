"""The table of workspace models: which operators take scratch memory on which devices, how much, and by which source.

    workspaces.toml + the user's file ──> WorkspaceTable ──> demand_of(Signature) ──> bytes of one call, kept handles

An entry is data: devices, operators, an expression (`expression`) over named dimensions
(`dimensions`), how long the memory is held, and whether the figure is exact, fitted, a bound or a single measurement.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from windtunnel.devices import DeviceProfile
from windtunnel.errors import UsageError
from windtunnel.events.model import Signature
from windtunnel.foreign_files import parse_toml, read_at_most
from windtunnel.memory.workspace.dimensions import Dimensions, base_name, is_dimension
from windtunnel.memory.workspace.expression import Expression, NotANumber, parse
from windtunnel.units import MIB

__all__ = [
    "ACCURACIES",
    "FAMILIES",
    "LIFETIMES",
    "Demand",
    "Kept",
    "Workspace",
    "WorkspaceTable",
    "family_of",
]

FAMILIES = ("cuda", "rocm", "npu", "cpu")
LIFETIMES = ("call", "handle", "process")
ACCURACIES = ("exact", "fitted", "bound", "single")
_FIELDS = {
    "devices", "capability", "operators", "when", "let", "bytes", "lifetime", "handle", "adds", "accuracy", "source",
}  # fmt: skip
_HINT = "docs/workspace.md shows an entry"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Workspace:
    """One entry of the table."""

    name: str
    families: tuple[str, ...]
    capability: tuple[int, int]  # from, to, both included: 80 is 8.0
    operators: tuple[str, ...]  # `mm`, `flash_attn_3.bwd`, or with stars: `aten.*`
    when: Expression | None
    let: tuple[tuple[str, Expression], ...]
    sizes: tuple[Expression, ...]  # one allocation each
    lifetime: (
        str  # call: while the operator runs; handle: kept per thread and stream; process: kept per device
    )
    handle: str  # what is kept is shared by all entries of this handle
    adds: bool  # on top of scratch the recording already has for the operator; else that counts towards it
    accuracy: str
    source: str

    def applies_to(self, device: DeviceProfile) -> bool:
        level = device.capability[0] * 10 + device.capability[1]
        return family_of(device) in self.families and self.capability[0] <= level <= self.capability[1]

    def specificity(self, name: str) -> int:
        """2: names this operator; 1: by a pattern; 0: not at all."""
        if name in self.operators or base_name(name) in self.operators or _short(name) in self.operators:
            return 2
        return int(any("*" in pattern and fnmatchcase(name, pattern) for pattern in self.operators))


@dataclass(frozen=True, slots=True)
class Kept:
    """A workspace that stays after the operator."""

    handle: str
    sizes: tuple[int, ...]
    is_per_thread: bool  # and stream; else one for the device


@dataclass(frozen=True, slots=True)
class Demand:
    """The workspace of one operator."""

    call: tuple[int, ...] = ()  # bytes of each allocation while it runs
    adds: bool = False
    kept: tuple[Kept, ...] = ()
    used: tuple[str, ...] = ()  # entries that gave it
    failed: tuple[str, ...] = ()  # entries that could not be evaluated, and why


@dataclass(frozen=True, slots=True)
class WorkspaceTable:
    """Entries, those that win first."""

    entries: tuple[Workspace, ...] = ()

    @classmethod
    def built_in(cls) -> WorkspaceTable:
        return cls(_read(Path(__file__).parent / "workspaces.toml"))

    def with_file(self, path: Path) -> WorkspaceTable:
        """Add the user's entries. One of the same name takes the place of ours; others come before ours."""
        mine = _read(Path(path))
        names = {entry.name for entry in mine}
        return WorkspaceTable((*mine, *(entry for entry in self.entries if entry.name not in names)))

    def for_device(self, device: DeviceProfile) -> WorkspaceTable:
        return WorkspaceTable(tuple(entry for entry in self.entries if entry.applies_to(device)))

    def entry(self, name: str) -> Workspace:
        return next(entry for entry in self.entries if entry.name == name)

    def demand_of(
        self, signature: Signature, device: DeviceProfile, settings: Mapping[str, float] | None = None
    ) -> Demand:
        """What an operator takes on this device.

        Of the entries for one call the first that applies counts, one that names the operator before a pattern. Of
        those that are kept the first of each handle counts.
        """
        matching = [(entry.specificity(signature.name), entry) for entry in self.entries]
        matching = sorted((pair for pair in matching if pair[0]), key=lambda pair: -pair[0])
        demand, seen = Demand(), set()
        for _, entry in matching:
            key = entry.handle if entry.lifetime != "call" else ""
            if key in seen or not entry.applies_to(device):
                continue
            try:
                sizes = _sizes(entry, Dimensions(signature, device, settings))
            except NotANumber as reason:
                seen.add(key)
                demand = replace(demand, failed=(*demand.failed, f"{entry.name}: {reason}"))
                continue
            if sizes is None:
                continue  # its condition does not hold: another entry may apply
            seen.add(key)
            demand = _with(demand, entry, tuple(size for size in sizes if size))
        return demand


def family_of(device: DeviceProfile) -> str:
    """AMD devices are `cuda` to a program, but have their own libraries."""
    return "rocm" if device.kind == "cuda" and device.name.startswith("AMD") else device.kind


def _with(demand: Demand, entry: Workspace, sizes: tuple[int, ...]) -> Demand:
    if not sizes:
        return demand
    used = (*demand.used, entry.name)
    if entry.lifetime == "call":
        return replace(demand, call=sizes, adds=entry.adds, used=used)
    kept = Kept(entry.handle, sizes, entry.lifetime == "handle")
    return replace(demand, kept=(*demand.kept, kept), used=used)


def _sizes(entry: Workspace, dimensions: Dimensions) -> list[int] | None:
    for name, expression in entry.let:
        dimensions.define(name, expression.value(dimensions))
    if entry.when is not None and not entry.when.value(dimensions):
        return None
    sizes = []
    for expression in entry.sizes:
        size = math.ceil(expression.value(dimensions))
        if size < 0:
            raise NotANumber(f"{expression.text!r} is {size}")
        sizes.append(size)
    return sizes


def _short(name: str) -> str:
    """`flash_attn_3.bwd.default` -> `flash_attn_3.bwd`"""
    return ".".join(name.split(".")[:2])


# -- reading ------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[Workspace, ...]:
    try:
        table = parse_toml(read_at_most(path, MIB))
    except OSError as error:
        raise UsageError(f"cannot read the workspace file {path}: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise UsageError(f"the workspace file {path} is not TOML: {error}", hint=_HINT) from error
    return tuple(_entry(path, name, fields) for name, fields in table.items())


def _entry(path: Path, name: str, fields: Any) -> Workspace:
    def refuse(fact: str) -> UsageError:
        return UsageError(f"workspace {name!r} in {path.name}: {fact}", hint=_HINT)

    if not isinstance(fields, dict):
        raise refuse(f"it is {fields!r}, not a table")
    if not _NAME.fullmatch(name):
        raise refuse("its name has letters other than a-z, 0-9, '_', '.' and '-'")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise refuse(f"{unknown[0]!r} is not a field of an entry ({', '.join(sorted(_FIELDS))})")
    if missing := sorted({"devices", "operators", "bytes", "source"} - fields.keys()):
        raise refuse(f"it lacks {', '.join(missing)}")
    try:
        let = tuple((key, _expression(text)) for key, text in _table(fields.get("let", {})))
        local = {key for key, _ in let}
        entry = Workspace(
            name,
            _choices(fields["devices"], FAMILIES),
            _capability(fields.get("capability", "")),
            _texts(fields["operators"]),
            _expression(fields["when"]) if "when" in fields else None,
            let,
            tuple(_expression(text) for text in _as_list(fields["bytes"])),
            _choices([fields.get("lifetime", "call")], LIFETIMES)[0],
            _texts([fields.get("handle", name)])[0],
            _is_true(fields.get("adds", False)),
            _choices([fields.get("accuracy", "fitted")], ACCURACIES)[0],
            _texts([fields["source"]])[0],
        )
    except NotANumber as reason:
        raise refuse(str(reason)) from None
    if not entry.sizes:
        raise refuse("bytes is an empty list")
    expressions = (*entry.sizes, *(e for _, e in let), *((entry.when,) if entry.when else ()))
    for used in sorted(set().union(*(e.names for e in expressions))):
        if used not in local and not is_dimension(used):
            raise refuse(f"{used!r} is not a dimension of any operator")
    return entry


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _expression(text: Any) -> Expression:
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise NotANumber(f"{text!r} is not an expression")
    return parse(str(text))


def _table(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not all(str(key).isidentifier() for key in value):
        raise NotANumber(f"let is {value!r}, not a table of names and expressions")
    return list(value.items())


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
        raise NotANumber(f"{values!r} is not a list of names")
    return tuple(values)


def _choices(values: Any, allowed: tuple[str, ...]) -> tuple[str, ...]:
    for value in _texts(values):
        if value not in allowed:
            raise NotANumber(f"{value!r} is none of {', '.join(allowed)}")
    return _texts(values)


def _is_true(value: Any) -> bool:
    if not isinstance(value, bool):
        raise NotANumber(f"adds is {value!r}, not true or false")
    return value


def _capability(text: Any) -> tuple[int, int]:
    """`9.0`, `8.0-8.9` or `9.0-`"""
    if text == "":
        return 0, sys.maxsize
    found = re.fullmatch(r"(\d{1,3})\.(\d)(-(?:(\d{1,3})\.(\d))?)?", text) if isinstance(text, str) else None
    if not found:
        raise NotANumber(f"capability is {text!r}; write '9.0', '8.0-8.9' or '9.0-'")
    first = int(found[1]) * 10 + int(found[2])
    if not found[3]:
        return first, first
    return first, int(found[4]) * 10 + int(found[5]) if found[4] else sys.maxsize
