"""Protect the disk and the network, in the process that will start the ranks.

    Order ──> the layer as root, or in a user namespace, or the guard ──> state.json for the parent

This runs before anything that starts a thread is imported. A child process tries what works first: where namespaces are
restricted, some calls succeed before one fails, and a layer that was entered halfway cannot be left.
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
    """Which protection the parent process requests."""

    base: str  # folder that receives the writes; used by this process only
    real: tuple[str, ...]  # folders that are not protected: where the run's own files go
    is_network_allowed: bool
    kind: str = "auto"  # or "guard": no layer even where one is possible
    joins: int = 0  # a process that entered with the same `base`: share its view instead of making a new one
    folder: str = ""  # working folder of the process, which may exist in that view only

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class State:
    """Which protection is in force."""

    kind: str  # "layer" or "guard"
    sentence: str
    is_network_off: bool
    folders: dict[str, str]  # of a layer: the parts of each overlay -> what it covers
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, base: Path) -> State | None:
        """The state that the protected process wrote; None if it did not get that far."""
        try:
            fields = json.loads((base / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls(**{**fields, "notes": tuple(fields["notes"])})


def enter_by_order(text: str) -> State | None:
    """`enter` with an order given as JSON; an empty text requests no protection."""
    if not text:
        return None
    fields = json.loads(text)
    return enter(Order(**{**fields, "real": tuple(fields["real"])}))


def enter(order: Order) -> State:
    """Protect this process and all processes it starts; cannot be undone."""
    base = Path(order.base)
    if order.joins:
        return _join(base, order)
    base.mkdir(exist_ok=True)
    real = [Path(path) for path in order.real]
    state_file = os.open(
        base / STATE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
    )  # opened while its path still leads to the real folder
    os.environ.update(offline_environment(os.environ, order.is_network_allowed))
    state = _enter_layer(base, real, order) if order.kind != "guard" else None
    if state is None:
        state = _enter_guard(base, real, order)
    os.environ["WINDTUNNEL_ISOLATION"] = state.kind
    with os.fdopen(state_file, "w", encoding="utf-8") as file:
        json.dump(asdict(state), file)
    return state


def _join(base: Path, order: Order) -> State:
    """Share the view of a process that entered before."""
    state = State.read(base)
    if state is None:
        raise OSError(f"process {order.joins} did not enter {base}")
    if state.kind == "layer":
        from windtunnel.isolation import linux, user_renames

        if linux.join(order.joins):
            user_renames.install()
            linux.drop_capabilities()
        if not state.is_network_off and not order.is_network_allowed:
            cut_sockets()
    else:
        state = _enter_guard(base, [Path(path) for path in order.real], order)
    os.environ["WINDTUNNEL_ISOLATION"] = state.kind
    os.chdir(order.folder)
    return state


# -- the layer ---------------------------------------------------------------------------------------------


def _working_flags(base: Path, order: Order) -> int | None:
    """The namespaces with which a layer works; None if no combination does."""
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
            os._exit(code)  # an error here means "does not work" and needs no traceback
    return os.waitpid(child, 0)[1] == 0


def _enter_layer(base: Path, real: Sequence[Path], order: Order) -> State | None:
    """None where no layer is possible."""
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
            f"read-only in this dry run, because no layer could be mounted on it: {', '.join(covered.read_only)}",
        )
    return State("layer", sentence, is_network_off, covered.folders, notes)


# -- the guard ---------------------------------------------------------------------------------------------


def _enter_guard(base: Path, real: Sequence[Path], order: Order) -> State:
    from windtunnel.isolation.guard import enter_guard

    sentence = enter_guard(base, real)
    if not order.is_network_allowed:
        cut_sockets()
    return State("guard", sentence, not order.is_network_allowed, {})
