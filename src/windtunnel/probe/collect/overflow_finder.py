"""Tasks that look for certain calls and keep only those, with all their tensors.

    inputs held, outputs computed ──> statistics of both ──> keep this call? ──> written, tensors saved

`NonFinite` finds calls that produce a NaN or an infinity from finite inputs; a call that received one only passes it on
(a mask of -inf, everything after the first NaN). `Deviation` finds calls whose inputs equal those of an earlier dump
and whose outputs do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.values import ValueWords
from windtunnel.probe.files.dump_entries import DumpEntries
from windtunnel.probe.files.notices import tell
from windtunnel.probe.measure.statistics import Statistics

__all__ = ["Deviation", "NonFinite", "finder_for"]


class _Finder:
    """Counts the calls it finds; after as many as the config asks for, it stops looking."""

    def __init__(self, collector: Collector, meter: Any, words: ValueWords, n_wanted: int) -> None:
        self.collector = collector
        self.meter = meter
        self.words = words
        self.n_found = 0
        self.n_wanted = n_wanted  # -1: all there are

    @property
    def is_satisfied(self) -> bool:
        return 0 <= self.n_wanted <= self.n_found

    def inputs(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The inputs to keep until the outputs are known: copies, if the call may write to them."""
        api = name.split(".")[-3] if name.count(".") >= 3 else ""
        is_in_place = (api.endswith("_") and not api.endswith("__")) or api.startswith("__i")
        if is_in_place or kwargs.get("inplace"):
            return self.words.copied(args), self.words.copied(kwargs)
        return args, kwargs

    def found(self, name: str, inputs: Any, outputs: Any) -> bool:
        """Whether to keep this call; tells the user if so."""
        what = None if self.is_satisfied else self._find(name, inputs, outputs)
        if what is None:
            return False
        self.n_found += 1
        step = self.collector.step
        where = f"; its inputs and outputs are saved in {step.folder.path}" if step is not None else ""
        tell(f"{name} {what}{where}")
        return True

    def _find(self, name: str, inputs: Any, outputs: Any) -> str | None:
        raise NotImplementedError

    def _measure(self, value: Any) -> list[Statistics]:
        measured = [self.meter.measure(tensor) for tensor in self.words.tensors_in(value)]
        if any(item.stats is None for item in measured):
            self.meter.settle()
        return [item.stats for item in measured if item.stats is not None]  # all have settled


class NonFinite(_Finder):
    """Task overflow_check."""

    def __init__(self, collector: Collector, meter: Any, words: ValueWords) -> None:
        super().__init__(collector, meter, words, collector.config.overflow_nums)

    def _find(self, name: str, inputs: Any, outputs: Any) -> str | None:
        defects = [stats for stats in self._measure(outputs) if _n_defects(stats)]
        if not defects or any(not math.isfinite(number) for number in _numbers_in(inputs)):
            return None
        if any(_n_defects(stats) for stats in self._measure(inputs)):
            return None
        n_nan, n_inf = (
            sum(stats.nan_count or 0 for stats in defects),
            sum(stats.inf_count or 0 for stats in defects),
        )
        return f"produces {n_nan} NaN and {n_inf} infinite values from finite inputs"


class Deviation(_Finder):
    """Task tensor with bench_path: an earlier dump that has checksums."""

    def __init__(self, collector: Collector, meter: Any, words: ValueWords, bench: Path) -> None:
        super().__init__(collector, meter, words, collector.config.diff_nums)
        self.bench = bench
        self._entries: dict[Path, dict] = {}  # folder -> entries of the earlier dump

    def _find(self, name: str, inputs: Any, outputs: Any) -> str | None:
        entry = self._entry(name)
        if entry is None:
            return None
        before = entry["input"] if "input" in entry else [entry.get("input_args"), entry.get("input_kwargs")]
        if self._checksums(inputs) != list(_checksums(before)):
            return None
        if self._checksums(outputs) == list(_checksums(entry.get("output"))):
            return None
        return f"has the same inputs as in {self.bench} but different outputs"

    def _checksums(self, value: Any) -> list[str | None]:
        return [stats.crc for stats in self._measure(value)]

    def _entry(self, name: str) -> dict | None:
        step = self.collector.step
        if step is None:
            return None
        folder = step.folder.path
        if folder not in self._entries:
            self._entries = {folder: self._read(self.bench / folder.parent.name, folder.name)}
        return self._entries[folder].get(name)

    def _read(self, step: Path, rank: str) -> dict:
        folder = step / rank
        if rank.startswith("proc"):  # named after a process id, which differs in every run
            others = sorted(step.glob("proc*"))
            folder = others[0] if len(others) == 1 else folder
        entries = DumpEntries(folder)
        try:
            found = dict(entries)
            if not found:
                raise CorruptFile("it has no entries")
        except CorruptFile as error:
            tell(
                f"{folder} cannot be used for comparison ({error.message}); "
                "bench_path must be the dump_path of an earlier md5 dump"
            )
            return {}
        if entries.n_recovered:
            tell(
                f"{folder} is incomplete: {entries.n_recovered} of its {len(found)} entries were read from its journal"
            )
        return found


def finder_for(collector: Collector, meter: Any, words: ValueWords) -> NonFinite | Deviation | None:
    """The finder that the config asks for; None if every call is kept."""
    config = collector.config
    if config.task == "overflow_check":
        return NonFinite(collector, meter, words)
    if config.bench_path is not None:
        return Deviation(collector, meter, words, config.bench_path)
    return None


def _n_defects(stats: Statistics) -> int:
    return (stats.nan_count or 0) + (stats.inf_count or 0)


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers_in(item)


def _checksums(value: Any) -> Iterator[str | None]:
    """The checksums of a value as a dump has it, in order."""
    if isinstance(value, dict):
        if "md5" in value:
            yield value["md5"]
        else:
            for item in value.values():
                yield from _checksums(item)
    elif isinstance(value, list):
        for item in value:
            yield from _checksums(item)
