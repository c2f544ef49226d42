"""The protection of one run, seen from the parent process: where writes go, what they were, and their removal.

    Isolation ──> an Order for each process that enters ──> the run ──> Files: what is in force, what would have changed

The folder that receives the writes contains this process's id in its name: the next run removes the folders of runs
that were killed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import UsageError
from windtunnel.isolation.entrance import Order, State
from windtunnel.isolation.file_changes import FileChange, Files
from windtunnel.isolation.list_layer_changes import layer_changes, written_content
from windtunnel.isolation.overlay import SHARED_MEMORY, can_hold_layer

__all__ = ["PREFIX", "Isolation", "SharedIsolation", "SharedView", "check_keep_folder", "together"]

PREFIX = "windtunnel-layer-"
_REMOVALS, _PAUSE_S = 5, 0.05
_MOST_CHANGES = 2000  # listed one by one; the smaller ones are only counted, and the report says so
_NOT_REPORTED = re.compile(r"/__pycache__/[^/]+\.pyc(\.\d+)?$")


class Isolation:
    """The parent's side; one per run."""

    def __init__(self, real: Sequence[Path], is_network_allowed: bool = False, kind: str = "auto") -> None:
        self._real = tuple(str(Path(path).resolve()) for path in real)
        self._is_network_allowed = is_network_allowed
        self._kind = kind
        places = _places()
        _sweep(places)
        place = next((p for p in places if can_hold_layer(p)), places[0])
        self._base = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        self._n_orders = 0

    def order(self) -> Order:
        """The order for one more process that enters; processes that it starts share its view."""
        self._n_orders += 1
        return Order(str(self._base / str(self._n_orders)), self._real, self._is_network_allowed, self._kind)

    def files(self) -> Files:
        """Which protection is in force, and what would have changed so far."""
        states = self._states()
        if not states:
            return Files("none", "no process of the script was started", not self._is_network_allowed, ())
        return together(
            Files(
                state.kind,
                state.sentence,
                state.is_network_off,
                tuple(_changes(base, state)),
                notes=state.notes,
            )
            for base, state in states
        )

    def keep(self, folder: Path, here: Path) -> int:
        """Copy what was written to `folder`, files of the working folder by relative path; returns how many."""
        n_kept = 0
        for base, state in self._states():
            for change in _changes(base, state):
                if change.n_bytes is None or change.what == "metadata" or _NOT_REPORTED.search(change.path):
                    continue
                is_layer = state.kind == "layer"
                written = (
                    written_content(state.folders, change.path) if is_layer else f"{base}/upper{change.path}"
                )
                source = change.moved_from or written
                path = Path(change.path)
                target = folder / (
                    path.relative_to(here) if path.is_relative_to(here) else path.relative_to("/")
                )
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(source, target)
                n_kept += 1
        return n_kept

    def remove(self) -> None:
        """Remove what was written. Call it when no process of the run is left."""
        _remove(self._base)
        for path in Path(SHARED_MEMORY).glob(f"{self._base.name}-*"):
            _remove(path)

    def _states(self) -> list[tuple[Path, State]]:
        bases = [self._base / str(number + 1) for number in range(self._n_orders)]
        states = ((base, State.read(base)) for base in bases)
        return [(base, state) for base, state in states if state is not None]


@dataclass(frozen=True)
class SharedView:
    """The view of a process that has entered and still runs, for others to join."""

    order: Order
    pid: int
    folder: str  # the working folder of those that join

    def isolation(self) -> SharedIsolation:
        return SharedIsolation(self)


class SharedIsolation(Isolation):
    """The protection of a run whose processes join the view of another process, which removes what was written."""

    def __init__(self, view: SharedView) -> None:
        self._view = view
        self._is_network_allowed = view.order.is_network_allowed

    def order(self) -> Order:
        return replace(self._view.order, joins=self._view.pid, folder=self._view.folder)

    def remove(self) -> None:
        """Leave it to the run that made the view."""

    def _states(self) -> list[tuple[Path, State]]:
        base = Path(self._view.order.base)
        state = State.read(base)
        return [] if state is None else [(base, state)]


def together(every: Iterable[Files]) -> Files:
    """Merge what several processes or machines would have changed; the weakest protection is reported."""
    found = list(every)
    weakest = next((files for files in found if files.protection != "layer"), found[0])
    changes = {change.path: change for files in found for change in files.changes}
    worth = [change for path, change in changes.items() if not _NOT_REPORTED.search(path)]
    worth.sort(key=_n_bytes, reverse=True)
    listed, counted = worth[:_MOST_CHANGES], worth[_MOST_CHANGES:]
    return Files(
        weakest.protection,
        weakest.sentence,
        all(files.is_network_off for files in found),
        tuple(sorted(listed, key=lambda change: change.path)),
        len(counted) + sum(files.n_more for files in found),
        sum(map(_n_bytes, counted)) + sum(files.more_bytes for files in found),
        tuple(dict.fromkeys(note for files in found for note in files.notes)),
    )


def check_keep_folder(folder: Path) -> None:
    """Raise if `keep` would mix its files with others in this folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--keep-files {folder} is not an empty folder", hint="name a new folder")


def _n_bytes(change: FileChange) -> int:
    return change.n_bytes or change.n_bytes_before or 0


def _places() -> list[str]:
    """Where a layer may be stored, the best first: on disk, where there is more space than in memory."""
    wanted = (os.environ.get("TMPDIR"), "/var/tmp", "/tmp", SHARED_MEMORY, tempfile.gettempdir())
    return [
        place
        for place in dict.fromkeys(wanted)
        if place and os.path.isdir(place) and os.access(place, os.W_OK)
    ]


def _sweep(places: Sequence[str]) -> None:
    """Remove the folders of runs that were killed."""
    for place in (*places, SHARED_MEMORY):
        with suppress(OSError):
            for path in Path(place).glob(f"{PREFIX}*"):
                pid = path.name[len(PREFIX) :].partition("-")[0]
                if path.lstat().st_uid == os.geteuid() and pid.isdecimal() and not _is_alive(int(pid)):
                    _remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _changes(base: Path, state: State) -> list[FileChange]:
    if state.kind == "layer":
        return layer_changes(state.folders)
    from windtunnel.isolation.list_shadow_changes import shadow_changes

    return shadow_changes(base)


def _copy(source: str, target: Path) -> None:
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.unlink(missing_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(folder: Path) -> None:
    """More than once: a process that left the script's session may still write there. What is left the next run removes."""
    for _ in range(_REMOVALS):
        for top, names, _ in os.walk(folder):
            for name in names:
                path = os.path.join(top, name)
                if not os.path.islink(path):
                    with suppress(OSError):
                        os.chmod(path, stat.S_IRWXU)  # the kernel's own work folder has no permissions at all
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE_S)
