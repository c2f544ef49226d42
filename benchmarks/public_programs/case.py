"""One public script in one mode: how a user starts it, and what it needs around it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

__all__ = ["Case", "Group"]


@dataclass(frozen=True)
class Case:
    """What is typed after `windtunnel run`, where, and with which data."""

    repository: str  # a folder of the fetched sources
    mode: str
    words: tuple[str, ...]  # the script or its launcher, with its arguments
    options: tuple[str, ...] = ()  # windtunnel's own
    start_in: str = "."  # below the repository
    data: dict[str, str] = field(default_factory=dict)  # place below `start_in`: what of our data
    variables: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()  # of the repository, for PYTHONPATH
    packages: tuple[str, ...] = ()  # stand-ins of ours, for PYTHONPATH
    fails: str = ""  # why it cannot run here; it runs where empty

    @property
    def name(self) -> str:
        """Unique: repository, script, mode."""
        place = "" if self.start_in == "." else f"{self.start_in}/"
        return f"{self.repository} {place}{self.script} [{self.mode}]"

    @property
    def script(self) -> str:
        """The word that names what runs."""
        for number, word in enumerate(self.words):
            if word == "-m":
                return f"-m {self.words[number + 1]}"
            if word.endswith(".py"):
                return word
        return self.words[0]


class Group:
    """Cases of one repository that share data and variables."""

    def __init__(self, repository: str, **shared: object) -> None:
        self.repository, self.shared = repository, shared

    def __call__(self, mode: str, typed: str, options: str = "", **own: object) -> Case:
        more: dict = self.shared | own
        return Case(self.repository, mode, tuple(shlex.split(typed)), tuple(shlex.split(options)), **more)
