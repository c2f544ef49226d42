"""Loader stubs that let MindSpore's own Ascend plugin start where CANN is not installed.

    installed wheel ──> what its plugin needs ──> compiled once ──> cache/<version>-<machine>-<hash>/ ──> CannStubs
                                                                                 (reused by every later run)

The stubs are our own code, built on the user's machine. They only work for MindSpore's simulation levels 0 and 1, which
never call the device. Neither the wheel nor the user's environment is changed: a run gets four environment variables.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.caches import cache_folder
from windtunnel.capture.mindspore.cann.build import MARKS_LIBRARY, REPAIRS_LIBRARY, SOURCES, build_stubs
from windtunnel.capture.mindspore.cann.symbols import CANN_LIBRARY, plugin_of, wanted_from_cann
from windtunnel.errors import NoToolchain

__all__ = ["TRIED_VERSIONS", "CannStubs", "stubs_for", "version_of"]

TRIED_VERSIONS = ("2.7.1", "2.8.0", "2.9.0", "2.10.0")
# MindSpore cuts the path of libascendcl.so after the last "cann", in 2.7 after "latest", and appends lib64.
_FOLDER = Path("latest", "cann")
_STALE_SECONDS = 3600  # a build takes seconds: an older folder is from a build that was killed
# MindSpore imports CANN's Python package for communication before it starts a group.
_HCCL_PACKAGE = "class sys_version:  # noqa: N801\n    __sys_version__ = '0'\n"


@dataclass(frozen=True)
class CannStubs:
    """A folder that looks like an installed CANN to the loader."""

    folder: Path  # ends in "cann"

    def environment(self) -> dict[str, str]:
        """The environment variables a run needs; existing paths in them follow ours."""
        ours = {
            "LD_LIBRARY_PATH": self.folder / "lib64",
            "LD_PRELOAD": self.folder / "lib" / REPAIRS_LIBRARY,
            "PYTHONPATH": self.folder / "py",
        }
        paths = {name: [str(path), *filter(None, [os.environ.get(name)])] for name, path in ours.items()}
        joined = {name: os.pathsep.join(both) for name, both in paths.items()}
        return joined | {"ASCEND_OPP_PATH": str(self.folder / "opp")}

    @property
    def marks(self) -> Path:
        """The library that writes marks into MindSpore's memory tracker."""
        return self.folder / "lib" / MARKS_LIBRARY


def stubs_for(
    mindspore_folder: Path, cache: Path | None = None, tell: Callable[[str], None] = lambda text: None
) -> CannStubs:
    """The stubs for an installed MindSpore, built now if this is their first use."""
    if sys.platform != "linux":
        raise NoToolchain(f"MindSpore's Ascend plugin is a Linux library, this is {sys.platform}")
    version = version_of(mindspore_folder)
    home = (cache or cache_folder() / "cann-stubs") / _key(mindspore_folder, version)
    if (home / _FOLDER / "lib" / CANN_LIBRARY).exists():
        return CannStubs(home / _FOLDER)
    if version not in TRIED_VERSIONS:
        tell(f"loader stubs were tested with mindspore {', '.join(TRIED_VERSIONS)}; this is {version}")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(home.parent)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=home.parent))
    except OSError as error:
        return _temporary(mindspore_folder, home, error, tell)
    tell(f"building loader stubs for mindspore {version}, once")
    try:
        _build(mindspore_folder, version, building / _FOLDER)
        _move(building, home)
    except OSError as error:
        raise NoToolchain(
            f"loader stubs could not be written to {home.parent}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder with a few MB of free space",
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return CannStubs(home / _FOLDER)


def _build(mindspore_folder: Path, version: str, folder: Path) -> None:
    build_stubs(wanted_from_cann(mindspore_folder), folder)
    (folder / "lib64").symlink_to("lib")
    (folder.parent / "lib64").symlink_to("cann/lib")
    for name in ("opp", "opp_kernel"):  # 2.7 needs both to exist
        (folder / name).mkdir()
    package = folder / "py" / "hccl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_HCCL_PACKAGE, encoding="utf-8")
    _check(plugin_of(mindspore_folder), version, CannStubs(folder))


def _check(plugin: Path, version: str, stubs: CannStubs) -> None:
    """Load the plugin with all its symbols in a separate process: better to fail here than in the middle of a run."""
    load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", load, str(plugin)],
        env={**os.environ, **stubs.environment()},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise NoToolchain(
            f"{plugin.name} of mindspore {version} cannot be loaded with loader stubs: {said[-1]}",
            hint=f"they were tested with mindspore {', '.join(TRIED_VERSIONS)}",
        )


def _move(building: Path, home: Path) -> None:
    building.chmod(0o755)
    try:
        building.rename(home)
    except OSError:
        # Another process was faster: it built the same.
        if not (home / _FOLDER / "lib" / CANN_LIBRARY).exists():
            raise


_temporary_homes: dict[Path, Path] = {}


def _temporary(mindspore_folder: Path, home: Path, error: OSError, tell: Callable[[str], None]) -> CannStubs:
    """Stubs for this process only."""
    if home not in _temporary_homes:
        tell(f"loader stubs are built for this run only: {home.parent} is not writable ({error.strerror})")
        folder = Path(tempfile.mkdtemp(prefix="windtunnel-"))
        atexit.register(_remove_by_its_maker, folder, os.getpid())
        _build(mindspore_folder, version_of(mindspore_folder), folder / _FOLDER)
        _temporary_homes[home] = folder
    return CannStubs(_temporary_homes[home] / _FOLDER)


def _remove_by_its_maker(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child ends earlier than we do
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(cache: Path) -> None:
    for folder in cache.glob(".building-*"):
        try:
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue  # the process that built it, or another one that cleans up, was faster


def version_of(mindspore_folder: Path) -> str:
    """The version of the wheel, without importing it."""
    try:
        text = (mindspore_folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"""__version__\s*=\s*['"]([\w.+-]{1,60})['"]""", text)
    if not match:
        raise NoToolchain(
            f"{mindspore_folder} has no version in version.py",
            hint="reinstall mindspore in this Python",
        )
    return match[1]


def _key(mindspore_folder: Path, version: str) -> str:
    """Everything that the stubs depend on: the wheel, this machine, and our own sources."""
    plugin = plugin_of(mindspore_folder)
    digest = hashlib.sha256(f"{plugin.name} {plugin.stat().st_size}".encode())
    for source in (*SOURCES, *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(source.read_bytes())
    return f"{version}-{os.uname().machine}-{digest.hexdigest()[:12]}"
