"""Enter the protection of the disk and the network, in the process that will start the ranks.

    Order ──> the layer as root, or in a user namespace, or the guard ──> state.json for the parent

It is called before anything that starts a thread is imported. What works is tried in a child first: where namespaces are
restricted, some calls succeed before one fails, and a half-entered layer could not be left again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from windtunnel.isolation.offline import cut_sockets, offline_environment

__all__ = ["Order", "State", "enter", "enter_by_order"]

STATE_FILE = "state.json"


@dataclass(frozen=True)
class Order:
    """How to protect, as the parent asks for it."""

    base: str  # folder for what is written; this process has it for itself
    real: tuple[str, ...]  # folders that are not protected: where the run's own files go
    is_network_allowed: bool
    kind: str = "auto"  # or "guard": no layer even where one can be had

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class State:
    """What is in force."""

    kind: str  # "layer" or "guard"
    sentence: str
    is_network_off: bool
    folders: dict[str, str]  # of a layer: the parts of each overlay -> what it covers
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, base: Path) -> State | None:
        """As the process in there wrote it; None if it never came so far."""
        try:
            fields = json.loads((base / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls(**{**fields, "notes": tuple(fields["notes"])})


def enter_by_order(text: str) -> State | None:
    """`enter`, as a command line says; an empty order asks for nothing."""
    if not text:
        return None
    fields = json.loads(text)
    return enter(Order(**{**fields, "real": tuple(fields["real"])}))


def enter(order: Order) -> State:
    """Protect this process and all it starts; cannot be undone."""
    base = Path(order.base)
    base.mkdir(exist_ok=True)
    real = [Path(path) for path in order.real]
    state_file = os.open(
        base / STATE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
    )  # while it is the real one
    os.environ.update(offline_environment(os.environ, order.is_network_allowed))
    state = _enter_layer(base, real, order) if order.kind != "guard" else None
    if state is None:
        state = _enter_guard(base, real, order)
    os.environ["WINDTUNNEL_ISOLATION"] = state.kind
    with os.fdopen(state_file, "w", encoding="utf-8") as file:
        json.dump(asdict(state), file)
    return state


# -- the layer ---------------------------------------------------------------------------------------------


def _working_flags(base: Path, order: Order) -> int | None:
    """The namespaces that a layer can be had with; None if with none."""
    if not sys.platform.startswith("linux"):
        return None
    from windtunnel.isolation import linux

    networks = (0,) if order.is_network_allowed else (linux.NEW_NETWORK, 0)
    for number, (network, user) in enumerate((n, u) for n in networks for u in (0, linux.NEW_USER)):
        flags = linux.NEW_MOUNTS | network | user
        if _works(base / f"try{number}", flags):
            return flags
    return None


def _works(folder: Path, flags: int) -> bool:
    from windtunnel.isolation.overlay import try_overlay

    folder.mkdir()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try_overlay(folder, flags)
            code = 0
        finally:
            os._exit(code)  # an error here is an answer, not a traceback
    return os.waitpid(child, 0)[1] == 0


def _enter_layer(base: Path, real: Sequence[Path], order: Order) -> State | None:
    """None where none can be had."""
    flags = _working_flags(base, order)
    if flags is None:
        return None
    from windtunnel.isolation import linux, overlay, user_renames

    is_user, is_network_off = bool(flags & linux.NEW_USER), bool(flags & linux.NEW_NETWORK)
    try:
        covered = (overlay.enter_as_user if is_user else overlay.enter_as_root)(base, real, flags)
    except OSError:
        return None
    if is_user:
        user_renames.install()
    if not is_network_off and not order.is_network_allowed:
        cut_sockets()
    sentence = "files are protected by a copy-on-write layer" + (" in a user namespace" if is_user else "")
    notes: tuple[str, ...] = ()
    if covered.read_only:
        notes = (
            f"read-only in this dry run, for no layer could be put over it: {', '.join(covered.read_only)}",
        )
    return State("layer", sentence, is_network_off, covered.folders, notes)


# -- the guard ---------------------------------------------------------------------------------------------


def _enter_guard(base: Path, real: Sequence[Path], order: Order) -> State:
    from windtunnel.isolation.guard import enter_guard

    sentence = enter_guard(base, real)
    if not order.is_network_allowed:
        cut_sockets()
    return State("guard", sentence, not order.is_network_allowed, {})
