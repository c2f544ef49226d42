"""`windtunnel run` as a real process in each of the ways it may be allowed to protect files.

as_is        the user who runs the tests
user         an ordinary user, where the tests run as root
forbidden    no namespaces, as in a container under Docker's default profile
capability   root without CAP_SYS_ADMIN

site(mode) ──> place/ (fingerprinted), out/, tmp/ ──> start(site, script) ──> its report
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import windtunnel
from tests.commands.cli import COMMAND, environment, read_json
from tests.isolation.tree import give_to, plant

__all__ = [
    "DRIVER", "MODES", "PROGRAMS", "SCRIPTS", "Site", "leftovers", "protection_expected", "report_of", "site", "start", "wait",
]  # fmt: skip

HERE = Path(__file__).parent
SCRIPTS, PROGRAMS, DRIVER = HERE / "scripts", HERE / "programs", HERE / "driver.py"
MODES = ["as_is", "user", "forbidden", "capability"]
_SOMEBODY = 54321  # an id that owns nothing on any machine


@dataclass(frozen=True)
class Site:
    """A run to be: its mode, its folders and how its process is started."""

    mode: str
    root: Path

    @property
    def place(self) -> Path:
        return self.root / "place"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"


@contextlib.contextmanager
def site(mode: str, *names: str) -> Iterator[Site]:
    """A planted place for each of the scripts; or a reason why there is no such mode here."""
    protection_expected(mode)  # which skips where the mode cannot be
    # pytest's own temporary folders are closed to other users
    root = Path(tempfile.mkdtemp(prefix="isolation-"))
    try:
        root.chmod(0o755)
        made = Site(mode, root)
        for each in (made.place, made.tmp, root / "home"):
            each.mkdir()
        for name in names:
            plant(made.place / name)
        if mode == "user":
            give_to(root, _SOMEBODY, _SOMEBODY)
        yield made
    finally:
        shutil.rmtree(root)


def start(
    at: Site, script: Path, *args: object, options: tuple[str, ...] = (), name: str | None = None
) -> subprocess.Popen:
    """Begin a run; with a name in the folder planted for it, otherwise above all of them."""
    home, cwd = (at.place / name / "home", at.place / name / "here") if name else (at.root / "home", at.place)
    command, more, who = _command(at.mode)
    folders = {"HOME": home, "TMPDIR": at.tmp, "SCRATCH": cwd.parent / "scratch"}
    log = open(at.root / "said.txt", "w")  # noqa: SIM115  the process has it
    with log:
        return subprocess.Popen(
            [*command, "run", "--level", "0", "--force", "--out", str(at.out), *options, str(script), *map(str, args)],
            cwd=cwd, env=environment(**more, **{key: str(folder) for key, folder in folders.items()}),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, **who,
        )  # fmt: skip


def wait(at: Site, process: subprocess.Popen, timeout: float = 300) -> tuple[int, str]:
    """Exit code and everything that was said."""
    try:
        code = process.wait(timeout)
    finally:
        process.kill()
    return code, (at.root / "said.txt").read_text(errors="replace")


def report_of(at: Site) -> dict:
    return read_json(at.out)


def leftovers(at: Site) -> list[Path]:
    """Layers that a run left in the temporary folder."""
    return sorted(at.tmp.glob("windtunnel-layer-*"))


def protection_expected(mode: str) -> str:
    """What the machine allows: without namespaces there can only be a guard, and without Landlock nothing is promised."""
    if mode != "forbidden" and _layers_work(mode):
        return "layer"
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 3:  # which version of Landlock is it?
        pytest.skip("no namespaces here, and no Landlock that could refuse all that the guard refuses")
    return "guard"


@cache
def _command(mode: str) -> tuple[list[str], dict[str, str], dict]:
    """How windtunnel is started: the command, its environment, its user. Skips the test where it cannot be."""
    if sys.platform != "linux":
        pytest.skip("namespaces and Landlock are Linux's")
    wrapper = [sys.executable, str(HERE / "without_namespaces.py")]
    if mode == "as_is":
        return COMMAND, {}, {}
    if mode == "forbidden":
        return [*wrapper, "seccomp", *COMMAND], {}, {}
    if os.geteuid() != 0:
        pytest.skip("only root can become another user or give up a capability")
    if mode == "capability":
        return [*wrapper, "capability", *COMMAND], {}, {}
    who = {"user": _SOMEBODY, "group": _SOMEBODY, "extra_groups": []}
    paths = [
        Path(windtunnel.__file__).parents[1],
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    ]
    more = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, paths))),
        "USER": "somebody",
        "LOGNAME": "somebody",
    }
    # an interpreter in root's home cannot be entered by others: then the system's, if it is of the same version
    named = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for interpreter in (sys.executable, *(f"{folder}/{named}" for folder in ("/usr/bin", "/usr/local/bin"))):
        with contextlib.suppress(OSError):
            tried = [interpreter, "-c", "import numpy, windtunnel.commands.main, sysconfig"]
            if not subprocess.run(
                tried, env=environment(**more), cwd="/", capture_output=True, check=False, **who
            ).returncode:
                return [interpreter, *COMMAND[1:]], more, who
    pytest.skip(f"no {named} here that an ordinary user can run with our packages")


_TRY_A_LAYER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
if libc.unshare(0x20000):
    if libc.unshare(0x10020000):
        sys.exit(1)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as f:
            f.write(text)
for name in ("lower", "upper", "work"):
    os.mkdir(name)
failed = libc.mount(b"none", b"/", None, 0x44000, None)
failed = failed or libc.mount(b"o", b"lower", b"overlay", 0, b"lowerdir=lower,upperdir=upper,workdir=work")
sys.exit(bool(failed))
"""


@cache
def _layers_work(mode: str) -> bool:
    """Whether the kernel lets this user mount an overlay: asked of the kernel itself, not of the code under test."""
    command, more, who = _command(mode)
    with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
        os.chmod(folder, 0o777)
        asked = [*command[: command.index("-c") + 1], _TRY_A_LAYER]
        return not subprocess.run(asked, env=environment(**more), cwd=folder, check=False, **who).returncode
