"""Which launcher a command line is, and what it asks for.

    words ──> Launch: a script and its workers
          ──> Command: any other program, such as a shell script, which runs until it starts a launcher

Only the command line is read here, and the files it names (a hostfile, a config file). Nothing is started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.capture.launcher_names import LAUNCHERS, MODULES
from windtunnel.errors import UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.session.launchers.accelerate import read_accelerate
from windtunnel.session.launchers.deepspeed import read_deepspeed
from windtunnel.session.launchers.launch import Given, Launch, combined
from windtunnel.session.launchers.mpi import Tasks, read_mpirun, read_srun
from windtunnel.session.launchers.msrun import read_msrun
from windtunnel.session.launchers.python_words import PYTEST, is_python, python_words
from windtunnel.session.launchers.torchrun import read_torchrun

__all__ = ["Command", "shell_words", "understand"]

_MPI = ("mpirun", "mpiexec", "orterun")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_SHELL_LINE = re.compile(rb"^#!\s*(\S*/)?(env\s+(-S\s+)?)?(ba|da|z|k)?sh\b")


@dataclass(frozen=True)
class Command:
    """A program that is not a launcher: it runs, and the launchers that it starts are simulated."""

    words: tuple[str, ...]
    outer: Launch | None = None  # the launcher that would start this command in every task
    folder: str = ""


def understand(
    words: Sequence[str], given: Given, environment: Mapping[str, str], outer: Launch | None = None
) -> Launch | Command:
    """Read one command line; raises UsageError for a launcher that is used wrongly."""
    name, rest = os.path.basename(words[0]), words[1:]
    found: Launch | Command | Tasks
    if is_python(words[0]):
        found = _of_python(words, given, environment)
    elif name in _MPI:
        found = read_mpirun(rest, given, environment, name)
    elif name == "srun":
        found = read_srun(rest, given, environment)
    elif name in LAUNCHERS:
        found = _of_launcher(name, rest, given, environment)
    elif name in PYTEST:
        found = Launch("python", "pytest", tuple(rest), is_module=True)
    elif name.endswith(".py"):
        found = Launch("python", words[0], tuple(rest))
    else:
        found = Command(tuple(words))
    if isinstance(found, Tasks):
        found = _of_tasks(found, given, environment)
    if outer is None:
        return found
    if isinstance(found, Command):
        return replace(found, outer=outer)
    return combined(outer, found)


def shell_words(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words that start a shell script; None if the first word is not one. A missing script is an error."""
    first = words[0]
    if os.path.basename(first) in _SHELLS and not first.endswith(".sh"):
        script = next((word for word in words[1:] if not word.startswith(("-", "+"))), None)
        is_text = any(re.fullmatch(r"-[a-z]*c", word) for word in words[1:])
        if script is not None and not is_text and not os.path.exists(script):
            raise UsageError(f"shell script {script} does not exist", hint="check the path")
        return tuple(words)
    path = Path(first)
    if first.endswith((".sh", ".bash")) and not path.exists():
        raise UsageError(f"shell script {first} does not exist", hint="check the path")
    if not path.is_file() or first.endswith(".py"):
        return None
    start = _first_line(path)
    if not first.endswith((".sh", ".bash")) and not _SHELL_LINE.match(start):
        return None
    if start.startswith(b"#!") and os.access(path, os.X_OK):
        return (str(path) if "/" in first else f"./{first}", *words[1:])
    interpreter = "sh" if re.match(rb"^#!\s*(\S*/)?(env\s+)?sh\b", start) else "bash"
    return (interpreter, first, *words[1:])


def _first_line(path: Path) -> bytes:
    try:
        return read_at_most(path, 1 << 24).split(b"\n", 1)[0]
    except (OSError, ValueError, UsageError):
        return b""


def _of_launcher(name: str, words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Launch:
    if name == "msrun":
        return read_msrun(words, given, environment)
    if name == "deepspeed":
        return read_deepspeed(words, given, environment)
    if name == "accelerate":
        if not words or words[0] != "launch":
            asked = f"accelerate {words[0]}" if words else "accelerate"
            raise UsageError(f"{asked} starts no workers", hint="windtunnel run accelerate launch train.py")
        return read_accelerate(words[1:], given, environment)
    if name == "accelerate-launch":
        return read_accelerate(words, given, environment)
    return read_torchrun(words, given, environment, name)


def _of_python(words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Launch:
    found = python_words(words)
    if found.kind == "module" and found.name in MODULES:
        return _of_launcher(MODULES[found.name], found.arguments, given, environment)
    if found.kind in ("script", "module"):
        return Launch("python", found.name, found.arguments, is_module=found.kind == "module")
    what = "python -c" if found.kind == "code" else "python without a script"
    raise UsageError(f"{what} cannot be simulated", hint="put the code in a script: windtunnel run train.py")


def _of_tasks(tasks: Tasks, given: Given, environment: Mapping[str, str]) -> Launch | Command:
    name = tasks.launch.launcher
    if not tasks.command:
        raise UsageError(f"{name} is given no program", hint=f"windtunnel run {name} -n 8 python train.py")
    inner = understand(tasks.command, given, dict(environment) | tasks.launch.variables_of(0))
    if isinstance(inner, Command):
        outer = tasks.launch if inner.outer is None else combined(tasks.launch, inner.outer)
        return replace(inner, outer=outer, folder=inner.folder or tasks.folder)
    if tasks.folder:
        raise UsageError(
            f"{name} runs in another folder, {tasks.folder}",
            hint=f"cd {tasks.folder}, then leave the option out",
        )
    return combined(tasks.launch, inner)
