"""What a script would have changed on the disk, as records: the layer and the guard list the same."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "FileChange", "Files"]

# What may happen to a file, the most important first.
KINDS = ("removed", "replaced", "moved", "written", "metadata")


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file, or one folder that was removed or moved as a whole."""

    what: str  # one of KINDS; "written": new; "metadata": only its mode, owner or times
    path: str  # absolute, as the script names it
    n_bytes: int | None  # afterwards; None where it was removed
    n_bytes_before: int | None  # None where nothing was there
    moved_from: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """How the disk was protected, and what the script would have changed on it."""

    protection: (
        str  # "layer" (copy on write), "guard" (refused or redirected), or "none": nothing was started
    )
    sentence: str  # the same in words
    is_network_off: bool
    changes: tuple[FileChange, ...]  # by path
    n_more: int = 0  # the smallest changes, which are only counted
    more_bytes: int = 0  # their size
    notes: tuple[str, ...] = ()
