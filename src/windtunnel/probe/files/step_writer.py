"""The files of one step of one rank, valid JSON at every moment and complete after a kill.

    add_call(name, body, frames, parent) ──> journal.jsonl   immediately, one write
                                        └──> text in memory ──> dump.json, stack.json, construct.json
                                                                (periodically, at flush and at close)

Nothing here raises into the observed training: a full disk or a removed folder is reported once, counted, and retried
at the next flush.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path

from windtunnel.probe.files.claim_folder import claim_folder
from windtunnel.probe.files.journal import Journal, journal_entries
from windtunnel.probe.files.json_layout import construct_parts, dump_parts, stack_parts
from windtunnel.probe.files.notices import tell
from windtunnel.whole_file import replace_file

__all__ = ["StepWriter", "claim_folder", "journal_entries"]

# Rewriting all files may take this share of the time, so that the cost of a call does not grow with the step.
_FLUSH_SHARE = 0.05


class StepWriter:
    """One step of one rank: `{root}/step{N}/rank{R}`. All methods may be called from any thread.

    A process forked from this one (a data loader worker) writes nothing.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        header: dict,
        file_name: str = "dump.json",
        extra_info: bool = True,
        strict_json: bool = False,
        flush_seconds: float = 1.0,
    ) -> None:
        self.path = Path(folder)
        self.n_lost = 0  # records that are in no file; known after close
        self.is_complete = False  # all files are written; known after close
        self._header = dict(header)
        self._file_name = file_name
        self._extra_info = extra_info
        self._strict_json = strict_json
        self._flush_seconds = flush_seconds
        self._entries: dict[str, bytes] = {}  # name -> its line of dump.json, encoded
        self._stack_of: dict[str, int] = {}  # quoted name -> number of its stack
        self._stacks: dict[tuple[str, ...], int] = {}
        self._parents: dict[str, bytes] = {}  # name -> its line of construct.json
        self._is_told = self._is_closed = self._is_flushing = False
        self._journal: Journal | None = None
        self._is_journaling = False
        self._pid = os.getpid()
        self._lock = threading.RLock()  # re-entrant: a signal handler may flush in the middle of an add
        self._next_flush = 0.0
        self._is_stack_changed = self._is_parent_changed = extra_info
        try:
            self._set_path(claim_folder(self.path))
            self._journal = Journal(self.path)
            header_line = f'["header", {quote(file_name)}, {json.dumps(self._header)}]\n'
            self._journal.write(header_line.encode())
            self._is_journaling = True
        except OSError as error:
            self._tell_once(error)
        self.flush()

    def add_entry(self, name: str, body: str) -> None:
        """Add one entry of dump.json; `body` is JSON text. A repeated name replaces the entry in place."""
        self.add_call(name, body)

    def add_stack(self, name: str, frames: tuple[str, ...]) -> None:
        """Add the call stack of an entry, innermost first; equal stacks are stored once."""
        self.add_call(name, None, frames)

    def add_parent(self, name: str, parent: str | None) -> None:
        """Add which module an entry ran in: one entry of construct.json."""
        self.add_call(name, None, None, parent, True)

    def add_call(
        self,
        name: str,
        body: str | None,
        frames: tuple[str, ...] | None = None,
        parent: str | None = None,
        has_parent: bool = False,
    ) -> None:
        """Add a whole call in one write: entry (unless None), stack (unless None) and parent (if `has_parent`)."""
        if os.getpid() != self._pid:
            return
        quoted = quote(name)
        lines = ""
        with self._lock:
            if self._is_closed:
                self.n_lost += 1
                return
            if body is not None:
                if "\n" in body:  # white space between values: a JSON string contains no bare line end
                    body = body.replace("\n", " ")
                if self._strict_json and ("NaN" in body or "Infinity" in body):
                    body = _quote_non_finite(body)
                text = f"{quoted}: {body}".encode("utf-8", "backslashreplace")
                self._entries[name] = text
                lines = f'["entry", {quoted}, {body}]\n'
            if self._extra_info:
                if frames is not None:
                    number = self._stacks.get(frames)
                    if number is None:
                        number = self._stacks[frames] = len(self._stacks)
                        lines += f'["frames", "{number}", {json.dumps(frames)}]\n'
                    self._stack_of[quoted] = number
                    self._is_stack_changed = True
                    lines += f'["stack", {quoted}, {number}]\n'
                if has_parent:
                    value = "null" if parent is None else quote(parent)
                    self._parents[name] = f"{quoted}: {value}".encode()
                    self._is_parent_changed = True
                    lines += f'["parent", {quoted}, {value}]\n'
            if self._is_journaling:
                assert self._journal is not None
                try:
                    self._journal.write(lines.encode("utf-8", "backslashreplace"))
                except OSError as error:
                    self._is_journaling = False
                    self._tell_once(error)
            if time.monotonic() >= self._next_flush:
                self.flush()

    def flush(self) -> None:
        """Bring every file up to date. The cost grows with what the step has collected, so not for every call."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not (self._is_closed or self._is_flushing):
                self._write_files(is_complete=False)

    def close(self) -> None:
        """Write the final files and remove the journal. Calling it again does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed or self._is_flushing:
                return  # a signal handler that closes in the middle of a flush keeps the journal, which has everything
            is_written = self._write_files(is_complete=True)
            self._is_closed = True
            if self._journal is not None:
                self._journal.remove() if is_written else self._journal.close()
            self.is_complete = is_written
            if not is_written:
                n_missing = len(self._entries) or len(self._parents)  # of a structure there are only names
                self.n_lost += n_missing
                tell(
                    f"{self.path} could not be written completely, so up to {n_missing} collected entries are "
                    f"missing; free space or choose another dump_path, and run again"
                )

    def move_to(self, path: Path | str) -> Path:
        """Rename the folder, as when the rank of a process becomes known late. Returns its new path."""
        if os.getpid() != self._pid or Path(path) == self.path:
            return self.path
        with self._lock:
            try:
                new = claim_folder(path)
                for item in os.listdir(self.path):
                    os.rename(self.path / item, new / item)
                os.rmdir(self.path)
                self._set_path(new)
                if self._journal is not None:
                    self._journal.move_to(new)
            except OSError as error:
                self._tell_once(error)
            return self.path

    def _write_files(self, is_complete: bool) -> bool:
        began = time.monotonic()
        is_written, self._is_flushing = False, True
        try:
            self._rewrite(is_complete)
            is_written = True
            self._is_journaling = self._journal is not None
        except OSError as error:
            self._tell_once(error)
        finally:
            self._is_flushing = False
        now = time.monotonic()
        self._next_flush = now + max(self._flush_seconds, (now - began) / _FLUSH_SHARE)
        return is_written

    def _rewrite(self, is_complete: bool) -> None:
        header = self._header | {"complete": is_complete}
        if self._strict_json:
            header = json.loads(_quote_non_finite(json.dumps(header)))
        replace_file(self.path, self._file_name, dump_parts(header, self._entries.values()))
        if not self._extra_info:
            return
        if self._is_stack_changed:
            replace_file(self.path, "stack.json", stack_parts(self._stacks, self._stack_of))
            self._is_stack_changed = False
        if self._is_parent_changed:
            replace_file(self.path, "construct.json", construct_parts(self._parents.values()))
            self._is_parent_changed = False

    def _set_path(self, path: Path) -> None:
        """Note where the folder is now; the header contains the path of its tensors."""
        tensors = self._header.get("dump_data_dir")
        if isinstance(tensors, str) and Path(tensors).is_relative_to(self.path):
            self._header["dump_data_dir"] = str(path / Path(tensors).relative_to(self.path))
        self.path = path

    def _tell_once(self, error: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            tell(
                f"cannot write the dump to {self.path} ({error.strerror or error}); training continues, and the "
                f"collected data is kept in memory until writing succeeds: free space or make the folder writable"
            )


def _quote_non_finite(body: str) -> str:
    """NaN, Infinity and -Infinity as strings, which strict readers of JSON accept; strings are left alone."""
    return _STRING_OR_NON_FINITE.sub(lambda m: m[0] if m[0][0] == '"' else f'"{m[0]}"', body)


_STRING_OR_NON_FINITE = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
