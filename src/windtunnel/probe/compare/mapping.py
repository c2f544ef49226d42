"""Apply a user's mapping file: the names of one side become those of the other before anything is paired.

    rules ──> Mapping.oriented ──> readers: entry ──> EntryName as on the other side
                               └─> told: which values of two calls correspond

Left names are MindSpore's, as in msProbe's files; between dumps of one framework they are A's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from windtunnel.probe.compare.framework_names import Reader
from windtunnel.probe.compare.framework_words import PYTORCH
from windtunnel.probe.compare.mapping_file import API, CELL, DATA, LAYER, Rule
from windtunnel.probe.compare.value_pairs import Told
from windtunnel.probe.files.entry_name import EntryName, parse_entry_name

__all__ = ["NO_MAPPING", "Mapping", "OrientedMapping"]

_TOLD = "Told"  # prefix of entries that a rule pairs by their whole names
_TOP = ("TopLayer", "Cell", "Module")  # scopes of a layer mapping that mean the model itself
_ENTRY = re.compile(
    r"(.+?\.(?:forward|backward|parameters_grad)(?:\.\d+)?|.+?\.\d+(?:\.pass\d+)?\.debug)(?:\.(.+))?"
)


@dataclass(frozen=True, slots=True)
class Mapping:
    rules: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def oriented(self, frameworks: tuple[str, str]) -> OrientedMapping:
        """Left and right as the two sides have them."""
        return OrientedMapping(self.rules, is_turned=frameworks[0] == PYTORCH and frameworks[1] != PYTORCH)


NO_MAPPING = Mapping()


class OrientedMapping:
    """Rules in the order of the two sides; remembers which of them matched something."""

    def __init__(self, rules: tuple[Rule, ...], *, is_turned: bool) -> None:
        self.rules = rules
        self._is_turned = is_turned  # the left names are B's
        self._used: set[Rule] = set()
        self._cells = {rule.left: rule for rule in rules if rule.kind == CELL}
        self._apis = {rule.left: rule for rule in rules if rule.kind == API}
        self._layers = [rule for rule in rules if rule.kind == LAYER]
        self._data: dict[tuple[str, str], list[Rule]] = {}  # entries of both sides -> their rules
        for rule in rules:
            if rule.kind == DATA:
                (left, _), (right, _) = _entry_and_suffix(rule)
                self._data.setdefault((left, right), []).append(rule)

    def readers(self, entries: tuple[Sequence[str], Sequence[str]]) -> tuple[Reader, Reader]:
        """For A and B."""
        names = [parse_entry_name(entry) for entry in entries[1 if self._is_turned else 0]]
        classes = {name.path: name.class_name for name in names if name.is_module}
        told = {left: (str(n), rules) for n, ((left, _), rules) in enumerate(self._data.items())}
        left = partial(self._read_left, told, classes)
        right = partial(_read_told, {right: str(n) for n, (_, right) in enumerate(self._data)})
        return (right, left) if self._is_turned else (left, right)

    def told(self, a: Sequence[str], b: Sequence[str]) -> Told:
        """Which values of two entries the rules pair."""
        by_entry: dict[tuple[str, str], dict[str, str]] = {}
        by_api: dict[tuple[str, str], dict[str, str]] = {}
        for pair, rules in self._data.items():
            values = [(suffix, other) for (_, suffix), (_, other) in map(_entry_and_suffix, rules)]
            by_entry[pair] = {suffix: other for suffix, other in values if suffix and other}
        for rule in self.rules:
            if rule.values:
                by_api.setdefault((rule.left, rule.right), {}).update(rule.values)

        def find(i: int, j: int) -> dict[str, str]:
            left, right = (b[j], a[i]) if self._is_turned else (a[i], b[j])
            found = by_entry.get((left, right)) or by_api.get((_api(left), _api(right))) or {}
            return {y: x for x, y in found.items()} if self._is_turned else found

        return find

    def unused(self) -> list[Rule]:
        """Rules that matched no entry, once all were read."""
        return [rule for rule in self.rules if rule not in self._used]

    def _read_left(
        self, told: dict[str, tuple[str, list[Rule]]], classes: dict[str, str], entry: str
    ) -> EntryName:
        if entry in told:
            number, rules = told[entry]
            self._used.update(rules)
            return _read_told({entry: number}, entry)
        name = parse_entry_name(entry)
        if name.is_module:
            return self._with_layers(self._with_cells(name), classes)
        rule = self._apis.get(f"{name.prefix}.{name.path}")
        if rule is None:
            return name
        self._used.add(rule)
        prefix, _, path = rule.right.partition(".")
        return replace(name, prefix=prefix, path=path)

    def _with_cells(self, name: EntryName) -> EntryName:
        """A rule for the whole name before rules for parts of it."""
        whole = f"{name.path}.{name.class_name}"
        if rule := self._cells.get(whole):
            self._used.add(rule)
            whole = rule.right
        elif rule := self._cells.get(name.path):
            self._used.add(rule)
            whole = f"{rule.right}.{name.class_name}"
        else:
            for rule in self._cells.values():
                changed = f".{whole}.".replace(f".{rule.left}.", f".{rule.right}.", 1).strip(".")
                if changed != whole:
                    self._used.add(rule)
                    whole = changed
        path, _, class_name = whole.rpartition(".")
        return replace(name, path=path, class_name=class_name)

    def _with_layers(self, name: EntryName, classes: dict[str, str]) -> EntryName:
        """Rename children according to the class of the module that contains them."""
        if not self._layers:
            return name
        parts, found, at = name.path.split("."), [], 0
        while at < len(parts):
            scopes = (classes.get(".".join(parts[:at])),) if at else _TOP
            for rule in self._layers:
                size = rule.left.count(".") + 1
                if rule.scope in scopes and ".".join(parts[at : at + size]) == rule.left:
                    self._used.add(rule)
                    found.append(rule.right)
                    at += size
                    break
            else:
                found.append(parts[at])
                at += 1
        return replace(name, path=".".join(found))


def _read_told(told: dict[str, str], entry: str) -> EntryName:
    name = parse_entry_name(entry)
    return replace(name, prefix=_TOLD, path=told[entry], class_name="") if entry in told else name


def _api(entry: str) -> str:
    name = parse_entry_name(entry)
    return f"{name.prefix}.{name.path}"


def _entry_and_suffix(rule: Rule) -> tuple[tuple[str, str], tuple[str, str]]:
    """Both sides of a data rule: the entry, and the value in it as our columns name it."""
    found = []
    for text in (rule.left, rule.right):
        match = _ENTRY.fullmatch(text)
        entry, suffix = match.groups() if match else (text, "")
        suffix = suffix or ""
        found.append(
            (entry, f"input.{suffix.removeprefix('kwargs.')}" if suffix.startswith("kwargs.") else suffix)
        )
    return found[0], found[1]
