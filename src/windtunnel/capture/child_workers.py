"""Notice a script that starts the workers of a job itself: they are not simulated, and the user is told what to type.

    subprocess.Popen([python, "train.py"], env=... RANK=3) ──> counted, not started ──> "windtunnel run --world-size 4 train.py"
    multiprocessing.Process(target=train, args=(3, 4))     ──> counted, not started

A worker would train for real, on whatever this machine has. So a process that is a worker beyond doubt (a Python program
with a rank of its own, or a launcher) is replaced by one that ends at once with success. All others run as they are.
"""

from __future__ import annotations

import linecache
import multiprocessing.process
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from windtunnel.capture.launcher_names import LAUNCHERS, MODULES

__all__ = ["ChildWorkers"]

# Variables that give a process its place in a job.
_RANKS = (
    "RANK", "LOCAL_RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "MS_NODE_ID", "NODE_RANK",
)  # fmt: skip
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_RANK_OPTION = re.compile(r"--?(local[-_])?rank(=\d+)?")
_ACCELERATOR = re.compile(r"(cuda|npu)(:\d+)?")
_JOB_WORDS = re.compile(r"\b(init_process_group|set_device|cuda|npu|communication\.init|init\(\))")


def _end() -> None:
    """What a worker does instead."""


class ChildWorkers:
    """The workers that a script started itself."""

    def __init__(self) -> None:
        self._commands: Counter[str] = Counter()
        self._launchers: list[str] = []
        self._targets: Counter[str] = Counter()
        self._ranks: dict[str, set[tuple[str | None, ...]]] = {}  # command -> the ranks it inherited

    def install(self) -> None:
        """Watch the processes that this one starts, from now on."""
        self._watch_popen()
        self._watch_system()
        self._watch_multiprocessing()

    def sentence(self) -> str | None:
        """What the user has to know; None if the script started no workers."""
        if self._launchers:
            text = self._launchers[0]
            return f"the script starts its workers itself, with `{text}`, which were not simulated: windtunnel run {text}"
        if self._commands:
            n_workers = sum(self._commands.values())
            words = shlex.split(max(self._commands, key=lambda text: self._commands[text]))
            return (
                f"the script starts {n_workers} workers itself (`{shlex.join(words)}`), which were not simulated:"
                f" windtunnel run --world-size {n_workers} {shlex.join(words[1:])}"
            )
        if self._targets:
            (target, n_workers) = self._targets.most_common(1)[0]
            return (
                f"the script starts {n_workers} processes itself (multiprocessing.Process of {target}), which were not"
                f" simulated: call {target} once, with the rank from RANK, and use windtunnel run --world-size {n_workers};"
                " torch.multiprocessing.spawn works as it is"
            )
        return None

    # -- what is watched -----------------------------------------------------------------------------------

    def _watch_popen(self) -> None:
        original = subprocess.Popen.__init__
        workers = self

        def __init__(self: Any, args: Any, *rest: Any, **options: Any) -> None:
            words = _words(args)
            if words and workers._is_worker(words, options.get("env")):
                is_text = bool(options.get("shell"))
                args = f"{shlex.quote(sys.executable)} -c ''" if is_text else [sys.executable, "-c", ""]
                options.pop("executable", None)
            original(self, args, *rest, **options)

        subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]

    def _watch_system(self) -> None:
        original = os.system

        def system(command: Any) -> int:
            words = _words(os.fsdecode(command))
            return 0 if words and self._is_worker(words, None) else original(command)

        os.system = system

    def _watch_multiprocessing(self) -> None:
        process_class = multiprocessing.process.BaseProcess
        original = process_class.start

        def start(process: Any) -> None:
            target = getattr(process, "_target", None)
            if target is not None and _is_rank_of_job(target, getattr(process, "_args", ())):
                self._targets[getattr(target, "__name__", str(target))] += 1
                process._target, process._args, process._kwargs = _end, (), {}
            original(process)

        process_class.start = start  # type: ignore[method-assign, assignment]

    def _is_worker(self, words: Sequence[str], environment: Mapping[str, str] | None) -> bool:
        """Whether a command is a worker of a job, or a launcher that starts them; counts it if so."""
        launcher = _launcher_in(words)
        if launcher is not None:
            self._launchers.append(shlex.join(launcher))
            return True
        if not _PYTHON.fullmatch(os.path.basename(words[0])):
            return False
        script = next((n for n, word in enumerate(words) if n and not word.startswith("-")), None)
        if script is None or "-c" in words[:script]:
            return False
        module = ["-m"] if "-m" in words[:script] else []
        command = shlex.join(["python", *module, *_without_ranks(words[script:])])
        options = [word for word in words[script + 1 :] if _RANK_OPTION.fullmatch(word)]
        if not options and not self._has_other_rank(command, environment):
            return False
        self._commands[command] = max(self._commands[command] + 1, len(self._ranks.get(command, ())))
        return True

    def _has_other_rank(self, command: str, environment: Mapping[str, str] | None) -> bool:
        """Whether a process is given a rank that is not this one's, or the script changes its own between two of them.

        A script may also set its own rank, once, and then start helpers that inherit it.
        """
        told = os.environ if environment is None else environment
        given = tuple(told.get(name) for name in _RANKS)
        own = tuple(os.environ.get(name) for name in _RANKS)
        if any(theirs not in (None, ours) for theirs, ours in zip(given, own, strict=True)):
            return True
        seen = self._ranks.setdefault(command, set())
        seen.add(given)
        return len(seen) > 1


def _words(args: Any) -> list[str]:
    if isinstance(args, str):
        try:
            words = shlex.split(args)
        except ValueError:
            return []
        return words[next((n for n, word in enumerate(words) if "=" not in word), 0) :]
    if isinstance(args, (list, tuple)):
        return [os.fsdecode(word) for word in args if isinstance(word, (str, bytes, os.PathLike))]
    return []


def _launcher_in(words: Sequence[str]) -> list[str] | None:
    """The words from a launcher on: `torchrun ...`, also after `python` and `cd x &&`."""
    name = os.path.basename(words[0])
    if name in LAUNCHERS and len(words) > 1 and not (name == "accelerate" and words[1] != "launch"):
        return [name, *words[1:]]
    if _PYTHON.fullmatch(name) and any(
        option == "-m" and module in MODULES for option, module in pairwise(words[1:4])
    ):
        return ["python", *words[1:]]
    joined = next((n for n, word in enumerate(words) if word in ("&&", ";")), None)
    return _launcher_in(words[joined + 1 :]) if joined is not None and joined + 1 < len(words) else None


def _without_ranks(words: Sequence[str]) -> list[str]:
    """The words that all workers share."""
    kept: list[str] = []
    skips = False
    for word in words:
        if skips:
            skips = False
        elif _RANK_OPTION.fullmatch(word):
            skips = "=" not in word
        else:
            kept.append(word)
    return kept


def _is_rank_of_job(target: Any, args: Sequence[Any]) -> bool:
    """Whether a function that runs in a process of its own takes a rank and joins a job or uses a device."""
    if not args or isinstance(args[0], bool) or not isinstance(args[0], int):
        return False
    module = getattr(target, "__module__", "") or ""
    if module.startswith(("torch.", "multiprocessing.", "mindspore.", "concurrent.")):
        return False
    if any(_ACCELERATOR.fullmatch(str(arg)) for arg in args if type(arg).__name__ in ("device", "str")):
        return True
    code = getattr(target, "__code__", None)
    lines = linecache.getlines(code.co_filename) if code is not None else []
    return _JOB_WORDS.search("".join(lines)) is not None
