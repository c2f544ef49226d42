"""Find the steps and ranks below a path, and pair those of two dumps.

    path ──> find_parts ──> DumpPart per step and rank ──┐
                                                         ├──> pair_parts ──> PartPair: what to compare with what
    path ──> find_parts ──> DumpPart per step and rank ──┘

A path is a dump_path (step*/rank* or proc*, also below graph/ and pynative/), a step, a rank, or its dump.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import UsageError
from windtunnel.probe.files.dump_entries import DATA_FILES
from windtunnel.probe.files.journal import JOURNAL_NAME

__all__ = ["EAGER", "GRAPH", "DumpPart", "PartPair", "find_parts", "pair_parts"]

GRAPH, EAGER = "graph", "pynative"  # folders of compiled and of eager code, where these are separate
_STEP = re.compile(r"step(\d{1,12})")
_RANK = re.compile(r"(rank|proc)(\d{1,12})")


@dataclass(frozen=True, slots=True)
class DumpPart:
    """One step of one rank."""

    folder: Path
    files: tuple[str, ...]  # of DATA_FILES; none if a killed process left only its journal
    area: str = ""  # "graph", "pynative" or neither
    step: int | None = None
    rank: int | None = None  # None: one process without a rank
    order: int = 0  # rank or process number: only for sorting
    is_step_named: bool = False  # the user's path names a step, or a rank
    is_rank_named: bool = False


@dataclass(frozen=True, slots=True)
class PartPair:
    """What is compared: one rank with one rank, or one rank with several that share its work."""

    area: str
    step: int | None
    rank: int | None
    a: tuple[DumpPart, ...]
    b: tuple[DumpPart, ...]


def find_parts(path: Path) -> tuple[DumpPart, ...]:
    """Everything dumped below `path`, by area, step and rank."""
    if path.is_file():
        if path.name not in DATA_FILES:
            raise UsageError(
                f"{path} is not a dump.json", hint="pass a dump folder, a step, a rank or its dump.json"
            )
        parts = [_part_of(path.parent, (path.name,))]
    elif path.name in DATA_FILES and (path.parent / JOURNAL_NAME).is_file():
        parts = [_part_of(path.parent, ())]  # its process was killed before writing it
    elif path.is_dir():
        parts = _below(path)
    else:
        raise UsageError(f"{path} does not exist", hint="pass a dump folder, a step, a rank or its dump.json")
    if not parts:
        raise UsageError(
            f"{path} contains no dump: there is no dump.json in it or in its step*/rank* folders",
            hint="pass the dump_path of a run, and check that its rank and step filters matched something",
        )
    named = _part_of(path if path.is_dir() else path.parent, ())
    is_rank = _RANK.fullmatch(named.folder.absolute().name) is not None
    parts = [replace(part, is_step_named=named.step is not None, is_rank_named=is_rank) for part in parts]
    return tuple(sorted(parts, key=lambda part: (part.area, part.step or 0, part.order)))


def pair_parts(a: tuple[DumpPart, ...], b: tuple[DumpPart, ...]) -> tuple[list[PartPair], list[str]]:
    """Which parts to compare, in execution order, and a note for every step that has no counterpart."""
    groups_a, groups_b = _by_step(a), _by_step(b)
    if not {area for area, _ in groups_a} & {
        area for area, _ in groups_b
    }:  # one side has no areas, the other has
        groups_a, groups_b = _without_areas(groups_a), _without_areas(groups_b)
    first_a, first_b = next(iter(groups_a)), next(iter(groups_b))
    if len(groups_a) == 1 and len(groups_b) == 1 and _may_differ(first_a, first_b, (*a, *b)):
        keys = [(first_a, first_b)]
    else:
        keys = [(key, key) for key in groups_a if key in groups_b]
    if not keys:
        raise UsageError(
            f"the dumps have no step in common: {_steps(groups_a)} against {_steps(groups_b)}",
            hint="pass one step folder on each side to compare different steps",
        )
    keys.sort(key=lambda pair: (pair[0][1] or 0, pair[0][0]))  # by step, then area
    notes = [
        f"only in {side}: {_steps(alone)}"
        for side, mine, chosen in (
            ("A", groups_a, {key for key, _ in keys}),
            ("B", groups_b, {key for _, key in keys}),
        )
        if (alone := [key for key in mine if key not in chosen])
    ]
    pairs = [pair for key_a, key_b in keys for pair in _pair_ranks(groups_a[key_a], groups_b[key_b])]
    return pairs, notes


def _may_differ(
    key_a: tuple[str, int | None], key_b: tuple[str, int | None], parts: tuple[DumpPart, ...]
) -> bool:
    """Whether two steps are compared whatever their numbers: the user named one, or a dump has none."""
    return (
        key_a == key_b
        or None in (key_a[1], key_b[1])
        or any(part.is_step_named or part.is_rank_named for part in parts)
    )


def _below(path: Path) -> list[DumpPart]:
    if (part := _rank_folder(path)) is not None:
        return [part]
    found = []
    for child in _folders(path):
        if _RANK.fullmatch(child.name):
            part = _rank_folder(child)
            found += [part] if part is not None else []
        elif _STEP.fullmatch(child.name) or child.name in (GRAPH, EAGER):
            found += _below(child)
    return found


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="check its permissions"
        ) from error


def _rank_folder(path: Path) -> DumpPart | None:
    files = tuple(name for name in DATA_FILES if (path / name).is_file())
    return _part_of(path, files) if files or (path / JOURNAL_NAME).is_file() else None


def _part_of(folder: Path, files: tuple[str, ...]) -> DumpPart:
    """Parse the names of a folder and its parents."""
    whole = folder.absolute()
    rank = _RANK.fullmatch(whole.name)
    step = _STEP.fullmatch(whole.parent.name) if rank else _STEP.fullmatch(whole.name)
    above = whole.parent.parent if rank else whole.parent
    return DumpPart(
        folder,
        files,
        area=above.name if above.name in (GRAPH, EAGER) else "",
        step=int(step.group(1)) if step else None,
        rank=int(rank.group(2)) if rank and rank.group(1) == "rank" else None,
        order=int(rank.group(2)) if rank else 0,
    )


def _by_step(parts: tuple[DumpPart, ...]) -> dict[tuple[str, int | None], list[DumpPart]]:
    groups: dict[tuple[str, int | None], list[DumpPart]] = {}
    for part in parts:
        groups.setdefault((part.area, part.step), []).append(part)
    return groups


def _without_areas(
    groups: dict[tuple[str, int | None], list[DumpPart]],
) -> dict[tuple[str, int | None], list[DumpPart]]:
    """Merge graph and eager code of a step, rank by rank."""
    found: dict[tuple[str, int | None], list[DumpPart]] = {}
    for (_, step), parts in groups.items():
        found.setdefault(("", step), []).extend(parts)
    return {key: sorted(parts, key=lambda part: (part.order, part.area)) for key, parts in found.items()}


def _pair_ranks(a: list[DumpPart], b: list[DumpPart]) -> list[PartPair]:
    """Rank by rank; if the sizes differ, consecutive ranks of the larger side share the work of one rank."""
    few, many = sorted((len(a), len(b)))
    ranks_a, ranks_b = {part.rank for part in a}, {part.rank for part in b}
    if few == many and None not in ranks_a | ranks_b and ranks_a != ranks_b:
        common = ranks_a & ranks_b
        if common:
            a, b = ([part for part in side if part.rank in common] for side in (a, b))
        elif not any(part.is_rank_named for part in (*a, *b)):
            raise UsageError(
                f"the dumps have no rank in common: {_ranks(ranks_a)} against {_ranks(ranks_b)}",
                hint="pass one rank folder on each side to compare different ranks",
            )
        few = many = len(a)
    if many % few:
        raise UsageError(
            f"{len(a)} ranks cannot be compared with {len(b)}: {many} is not a multiple of {few}",
            hint="pass one rank folder on each side",
        )
    share_a, share_b = len(a) // few, len(b) // few
    pairs = []
    for index in range(few):
        mine, other = a[index * share_a : (index + 1) * share_a], b[index * share_b : (index + 1) * share_b]
        pairs.append(PartPair(mine[0].area, mine[0].step, mine[0].rank, tuple(mine), tuple(other)))
    return pairs


def _ranks(numbers: set[int | None]) -> str:
    names = [f"rank{number}" for number in sorted(number for number in numbers if number is not None)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _steps(keys: Iterable[tuple[str, int | None]]) -> str:
    names = [f"{area + '/' if area else ''}step{'' if step is None else step}" for area, step in keys]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
