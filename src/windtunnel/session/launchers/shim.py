"""The program behind `torchrun`, `python` and others on the PATH of a shell script (internal).

    its command line, folder and environment ──> the dry run: the ranks are simulated, their output is printed here
                                             ──> or the real program, where nothing is to be simulated

It runs inside the protection of files, like the script, and sees the files that the script has written so far.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from windtunnel.capture.framework_choice import framework_of, is_training
from windtunnel.capture.launcher_names import MODULES
from windtunnel.capture.script_check import check_module, check_script
from windtunnel.errors import UsageError
from windtunnel.exit_codes import BAD_USAGE
from windtunnel.session.launchers.device_listing import LISTERS, listing
from windtunnel.session.launchers.launch import Given, Launch
from windtunnel.session.launchers.own_workers import SCRIPT, without_cluster, workers_of
from windtunnel.session.launchers.python_words import is_python, python_words
from windtunnel.session.launchers.recognise import Command, understand

__all__ = ["BINARIES", "OUTER", "PASS", "SETTINGS", "SITE", "SOCKET", "clean_environment", "start"]

SETTINGS, SOCKET, BINARIES, SITE = "settings.json", "socket", "bin", "site"
OUTER = "WINDTUNNEL_OUTER_LAUNCHER"  # a launcher around this command: `srun bash -c "torchrun ..."`
PASS = "WINDTUNNEL_RUNS_REALLY"  # the process that is to run as it is
_NOT_FOUND = 127
_INFORMATION = ("-h", "--help", "-V", "--version")


def start() -> None:
    """The program: FOLDER NAME words..."""
    folder, name, *words = sys.argv[1:]
    settings = json.loads(Path(folder, SETTINGS).read_text(encoding="utf-8"))
    if name in LISTERS:
        sys.exit(listing(name, words, settings["device"], sys.stdout.write))
    environment = clean_environment(os.environ, folder)
    environment_outer = os.environ.get(OUTER)
    outer = Launch.from_json(environment_outer) if environment_outer else None
    if _is_real(name, words, settings["has_launcher"]):
        _tell(folder, name, words)
        _run_really(folder, name, words)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)  # what we start ourselves must not be handed over again
    try:
        found = understand([name, *words], Given(**settings["given"]), environment, outer)
        if isinstance(found, Command):
            _run_in_task(found, before)
        found = workers_of(found, environment, settings["rank"])
        message = _handed_over(found, environment, [name, *words])
    except UsageError as error:
        message = {"kind": "refused", "message": error.message, "hint": error.hint, "words": [name, *words]}
    sys.exit(_follow(folder, message))


def clean_environment(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment as it would be without us."""
    found = {name: value for name, value in environment.items() if name not in (OUTER, PASS)}
    for variable, part in (("PATH", BINARIES), ("PYTHONPATH", SITE)):
        ours = os.path.join(folder, part)
        kept = [path for path in found.get(variable, "").split(os.pathsep) if path != ours]
        if variable in found and not any(kept):
            del found[variable]
        elif variable in found:
            found[variable] = os.pathsep.join(kept)
    return found


# -- what to do with a command -----------------------------------------------------------------------------


def _is_real(name: str, words: Sequence[str], has_launcher: bool) -> bool:
    """Whether a command is not part of the job: a small helper, or a question to the launcher.

    In a script that also starts a launcher, a Python program is more likely to prepare the data for it.
    """
    if not is_python(name):
        return bool(words) and (words[0] in _INFORMATION or (name == "accelerate" and words[0] != "launch"))
    found = python_words([name, *words])
    if found.kind not in ("script", "module"):
        return True
    if found.kind == "module" and found.name in MODULES:
        return bool(found.arguments) and found.arguments[0] in _INFORMATION
    return not is_training(found.name, found.kind == "module", is_own_source_only=has_launcher)


def _handed_over(launch: Launch, environment: dict[str, str], words: list[str]) -> dict[str, Any]:
    """What the dry run needs to know, from the files as the script sees them."""
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if launch.is_module:
        check_module(launch.script)
    else:
        check_script(Path(launch.script))
    if "/" not in words[0]:
        real = shutil.which(words[0], path=environment.get("PATH"))
        launch = _noting_other_python(launch, real) if real is not None and is_python(words[0]) else launch
    framework = framework_of(launch.script, launch.is_module, arguments=launch.arguments)
    if launch.launcher == SCRIPT:
        environment = without_cluster(environment)
    return {
        "kind": "launch", "launch": launch.to_json(), "framework": framework, "environment": environment,
        "folder": os.getcwd(), "words": words,
    }  # fmt: skip


def _noting_other_python(launch: Launch, python: str) -> Launch:
    """The script's `python` may belong to another environment, with other packages."""
    folder = os.path.dirname(os.path.abspath(python))
    if folder == os.path.dirname(os.path.abspath(sys.executable)) or os.path.realpath(
        python
    ) == os.path.realpath(sys.executable):
        return launch
    note = (
        f"the script's python is {python}; the ranks were simulated with windtunnel's own, {sys.executable}"
    )
    return replace(launch, notes=(*launch.notes, note))


def _run_in_task(command: Command, environment: dict[str, str]) -> NoReturn:
    """The command of `srun bash -c ...`: it runs once, as the first task, and its launchers know about the others."""
    variables = {} if command.outer is None else command.outer.variables_of(0)
    outer = {} if command.outer is None else {OUTER: command.outer.to_json()}
    if command.folder:
        os.chdir(command.folder)
    environment = environment | variables | outer
    os.environ.clear()
    os.environ.update(environment)
    _execute(command.words[0], command.words)


def _run_really(folder: str, name: str, words: Sequence[str]) -> NoReturn:
    ours = os.path.join(folder, BINARIES)
    places = [place for place in os.environ.get("PATH", "").split(os.pathsep) if place != ours]
    places.append(os.path.dirname(sys.executable))  # where the launchers of this environment are
    program = name if "/" in name else shutil.which(name, path=os.pathsep.join(places))
    if program is None and is_python(name):
        program = sys.executable
    if program is None:
        sys.stderr.write(f"{name}: command not found\n")
        sys.exit(_NOT_FOUND)
    os.environ[PASS] = str(os.getpid())
    # By its full path: Python finds its packages from this, and would find our program for `python`.
    _execute(program, [program, *words])


def _execute(program: str, words: Sequence[str]) -> NoReturn:
    try:
        os.execvp(program, list(words))
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND)


# -- the dry run -------------------------------------------------------------------------------------------


def _tell(folder: str, name: str, words: Sequence[str]) -> None:
    """Let the dry run know of a Python program that runs as it is, in case nothing else is found."""
    found = python_words([name, *words]) if is_python(name) else None
    if found is not None and found.kind in ("script", "module"):
        with suppress(OSError), _connect(folder) as line:
            line.sendall(json.dumps({"kind": "helper", "words": [name, *words]}).encode() + b"\n")


def _follow(folder: str, message: dict[str, Any]) -> int:
    """Hand a command over, and print what its ranks print until they have ended; returns the exit code."""
    try:
        with _connect(folder) as line:
            line.sendall(json.dumps(message).encode() + b"\n")
            with line.makefile("rb") as answers:
                for text in answers:
                    answer = json.loads(text)
                    if "exit" in answer:
                        _copy_logs(answer.get("logs", ()))
                        return int(answer["exit"])
                    _print(answer["line"])
    except OSError as error:
        sys.stderr.write(f"windtunnel: the dry run has ended ({error.strerror or error})\n")
    return BAD_USAGE


def _connect(folder: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.path.join(folder, SOCKET))
    return line


def _print(line: str) -> None:
    """What reads our output may be gone, as after `| head`: the dry run goes on."""
    with suppress(OSError, ValueError):
        os.write(1, line.encode("utf-8", "replace") + b"\n")


def _copy_logs(logs: Sequence[Sequence[str]]) -> None:
    """The log of each worker, where the script looks for it; in the protected view of the files."""
    for source, target, facts in logs:
        with suppress(OSError):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            with open(target, "a", encoding="utf-8") as log:
                log.write(facts)
