"""Modules as they are usually checkpointed: the repeated blocks of a model, and the other modules.

    ModuleShare of every module ──> repeated blocks (`layers.0-27`), other modules ──> CheckpointUnit, largest first

A block is a numbered module with modules in it: `layers.3`, not `layers.3.mlp` and not the third of a row of plain
layers. Of two repeated levels the outer one counts, unless a few of its members hold nearly everything in blocks of
their own (stages of blocks, chunks of a pipeline): a unit that is most of the model needs all of its memory again
when it is recomputed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from windtunnel.memory.attribution import ModuleShare, fold_paths

__all__ = ["CheckpointUnit", "checkpoint_units", "seconds_in"]

_FEW = 4  # a member with more than a fourth of its group is not a small unit
_NEARLY_ALL = 0.75  # of a group, in blocks further in


@dataclass(frozen=True, slots=True)
class CheckpointUnit:
    """Equal modules that could each be wrapped in a checkpoint."""

    module: str  # `model.layers.0-27`; empty: outside of all modules
    members: frozenset[str]  # their paths
    n_bytes: int  # activations they hold together
    is_whole: bool  # with everything inside; otherwise only what the modules compute themselves
    is_repeated: bool


def checkpoint_units(shares: Iterable[ModuleShare]) -> tuple[CheckpointUnit, ...]:
    """Every byte of activations in exactly one unit."""
    shares = list(shares)
    held: defaultdict[str, int] = defaultdict(int)
    for share in shares:
        if share.role == "activations" and share.n_bytes:
            held[share.module] += share.n_bytes
    parents = {above for share in shares for above in _above(share.module)}
    block_of = _blocks(held, parents)
    above_blocks = {above for block in block_of.values() for above in _above(block)}
    above_all = set.intersection(*({*_above(path)} for path in held)) if held else set()
    single_of = {path: _single(path, above_blocks | above_all) for path in held if path not in block_of}
    bytes_of: defaultdict[str, int] = defaultdict(int)
    for path, n_bytes in held.items():
        bytes_of[block_of.get(path) or single_of[path]] += n_bytes
    blocks = set(block_of.values())
    # Blocks and plain modules are folded apart: `0-3` are convolutions, `4-19` blocks.
    units = [*_folded(blocks, bytes_of, True, above_blocks)]
    units += _folded(set(single_of.values()), bytes_of, False, above_blocks)
    return tuple(sorted(units, key=lambda unit: (-unit.n_bytes, unit.module)))


def seconds_in(unit: CheckpointUnit, seconds_by_module: Mapping[str, float]) -> float:
    """Add up the times of the operators of a unit's modules."""
    if not unit.is_whole:
        return sum(seconds_by_module.get(member, 0.0) for member in unit.members)
    return sum(
        seconds
        for path, seconds in seconds_by_module.items()
        if path in unit.members or not unit.members.isdisjoint(_above(path))
    )


def _above(path: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _blocks(held: Mapping[str, int], parents: set[str]) -> dict[str, str]:
    """The block of every path that lies in one."""
    levels = {path: found for path in held if (found := _numbered(path, parents))}
    inner = dict.fromkeys(levels, 0)
    while True:
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for path, level in inner.items():
            groups[_template(levels[path][level])].append(path)
        coarse = [paths for paths in groups.values() if _is_coarse(paths, levels, inner, held)]
        if not coarse:
            return {path: levels[path][level] for path, level in inner.items()}
        for path in (path for paths in coarse for path in paths):
            if inner[path] + 1 < len(levels[path]):
                inner[path] += 1
            else:  # beside the inner blocks: on its own
                del inner[path]


def _numbered(path: str, parents: set[str]) -> list[str]:
    """The numbered modules with modules in them on the way to a path, itself included, from outside."""
    return [each for each in [*_above(path), path] if each in parents and each.rpartition(".")[2].isdecimal()]


def _is_coarse(
    paths: list[str], levels: Mapping[str, list[str]], inner: Mapping[str, int], held: Mapping[str, int]
) -> bool:
    by_member: defaultdict[str, int] = defaultdict(int)
    for path in paths:
        by_member[levels[path][inner[path]]] += held[path]
    total = sum(by_member.values())
    further_in = sum(held[path] for path in paths if inner[path] + 1 < len(levels[path]))
    return max(by_member.values()) * _FEW > total and further_in > _NEARLY_ALL * total


def _template(path: str) -> str:
    return ".".join("#" if part.isdecimal() else part for part in path.split("."))


def _single(path: str, too_large: set[str]) -> str:
    """The outermost module around a path that holds neither blocks nor everything there is."""
    return next((each for each in _above(path) if each not in too_large), path)


def _folded(
    paths: set[str], bytes_of: Mapping[str, int], is_repeated: bool, above_blocks: set[str]
) -> Iterable[CheckpointUnit]:
    folded = fold_paths(paths)
    for name in set(folded.values()):
        members = frozenset(path for path in paths if folded[path] == name)
        is_whole = name != "" and members.isdisjoint(above_blocks)
        n_bytes = sum(bytes_of[member] for member in members)
        yield CheckpointUnit(name, members, n_bytes, is_whole, is_repeated)
