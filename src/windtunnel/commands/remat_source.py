"""The input of `windtunnel remat`: the recording of one rank, and what is known about it.

recording.arrows | rankR/ | the folder of a run ──> open_recording ──> RematSource
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from windtunnel.devices import known_devices
from windtunnel.errors import UsageError
from windtunnel.events.foreign_recording import read_foreign_recording
from windtunnel.events.model import Recording

__all__ = ["RematSource", "open_recording"]

_NAME = "recording.arrows"


@dataclass(frozen=True)
class RematSource:
    recording: Recording
    subject: str  # what the user called it
    rank: int
    world_size: int
    device: str | None  # as --device spells it, if it is one of the built-in ones
    torch: str  # version, as "2.13"
    notes: tuple[str, ...] = ()


def open_recording(path: Path, rank: int | None) -> RematSource:
    """Read the recording of a rank; in a folder, of the first rank unless `rank` is given."""
    file, notes = _file_in(path, rank) if path.is_dir() else (path, ())
    recording = read_foreign_recording(file)
    header = recording.header
    device = str(header.get("device", ""))
    return RematSource(
        recording,
        str(path),
        int(header.get("rank", 0)),
        int(header.get("world_size", 1)),
        device if device in known_devices() else None,
        ".".join(str(header.get("torch", "2.13")).split(".")[:2]),
        notes,
    )


def _file_in(folder: Path, rank: int | None) -> tuple[Path, tuple[str, ...]]:
    ranks = {
        int(found[1]): child / _NAME
        for child in folder.iterdir()
        if (found := re.fullmatch(r"rank(\d+)", child.name)) and (child / _NAME).is_file()
    }
    if (folder / _NAME).is_file() and rank is None:
        return folder / _NAME, ()
    if not ranks:
        raise UsageError(
            f"{folder} has no recording",
            hint="pass the output folder of `windtunnel run` or `windtunnel remat`",
        )
    chosen = min(ranks) if rank is None else rank
    if chosen not in ranks:
        known = ", ".join(map(str, sorted(ranks)[:8]))
        raise UsageError(f"{folder} has no recording of rank {rank}", hint=f"it has ranks {known}")
    more = len(ranks) - 1
    if rank is None and more:
        return ranks[chosen], (f"this is rank {chosen}; use --rank for one of the {more} others",)
    return ranks[chosen], ()
