"""The tensor files of one step: `dump_tensor_data`.

save(name, memory, type, shape, same_as) ──> a new file, or a hard link to one with the same bytes
save_later(...) ──> bounded queue ──> one writing thread ──> the same
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import threading
from collections import deque
from collections.abc import Hashable
from pathlib import Path

from windtunnel.errors import UsageError
from windtunnel.probe.files.notices import tell
from windtunnel.probe.files.tensor_file import file_suffix, write_npy, write_pt, write_raw

__all__ = ["MAPPING_NAME", "TensorStore"]

MAPPING_NAME = "mapping.csv"
_LONGEST_NAME = 255  # bytes; of every file system that matters


class TensorStore:
    """Writes tensor files into one folder, from any thread. Failures are reported once and counted, never raised.

    A process forked from this one writes nothing.
    """

    def __init__(
        self, folder: Path | str, file_format: str = "pt", link: bool = True, *, queue_bytes: int = 256 << 20
    ) -> None:
        if file_format not in ("pt", "npy"):
            raise UsageError(f"unknown file format {file_format!r}", hint="choose pt or npy")
        self.path = Path(folder)
        self.n_saved = self.n_linked = self.n_lost = 0
        self._file_format = file_format
        self._can_link = link
        self._file_of: dict[tuple, str] = {}  # key of the bytes -> a file that has them
        self._bytes_in: dict[str, tuple] = {}  # file -> key of its bytes; a rewritten file loses its old key
        self._digits_of: dict[str, str] = {}  # names that file systems do not accept -> names of their files
        self._is_made = self._is_told = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue = _Queue(queue_bytes, self._write)

    def save(
        self,
        name: str,
        data: memoryview,
        dtype_name: str,
        shape: tuple[int, ...],
        same_as: Hashable | None = None,
        crc: int | None = None,
    ) -> str | None:
        """Write one tensor now and return the name of its file; None if that failed.

        `name` has no suffix. `same_as` is a key of these bytes: equal keys of equal type and shape become hard links
        to one file. `crc` is the CRC-32 of `data`, if it is already known.
        """
        return self._save(name, data, dtype_name, shape, same_as, crc, is_later=False)

    def save_later(
        self,
        name: str,
        data: memoryview,
        dtype_name: str,
        shape: tuple[int, ...],
        same_as: Hashable | None = None,
        crc: int | None = None,
    ) -> str | None:
        """As save, but in a separate thread. `data` must not change until then: pass a private copy.

        Blocks while more than `queue_bytes` are queued.
        """
        return self._save(name, data, dtype_name, shape, same_as, crc, is_later=True)

    def save_again(
        self, name: str, dtype_name: str, shape: tuple[int, ...], same_as: Hashable | None
    ) -> str | None:
        """Link to bytes that were saved before under this key, without having them; None if they were not."""
        first = self._file_of.get((same_as, dtype_name, shape)) if same_as is not None else None
        if first is None or os.getpid() != self._pid:
            return None
        try:
            file_name = self._file_name(name, file_suffix(self._file_format, dtype_name, shape))
        except (OSError, UsageError):
            return None
        return file_name if self._link(first, file_name) else None

    def drain(self) -> None:
        """Wait until everything given to save_later is on disk."""
        if os.getpid() == self._pid:
            self._queue.drain()

    def _save(self, name, data, dtype_name, shape, same_as, crc, *, is_later: bool) -> str | None:
        if os.getpid() != self._pid:
            return None
        shape = tuple(shape)
        try:
            file_name = self._file_name(name, file_suffix(self._file_format, dtype_name, shape))
        except (OSError, UsageError) as error:
            self._fail(error)
            return None
        job = (file_name, data, dtype_name, shape, same_as, crc)
        if is_later:
            self._queue.put(job, memoryview(data).nbytes)
            return file_name
        return file_name if self._write(*job) else None

    def _write(self, file_name, data, dtype_name, shape, same_as, crc) -> bool:
        try:
            key = (same_as, dtype_name, shape)
            if same_as is not None and self._link(self._file_of.get(key), file_name):
                return True
            self._forget(file_name)
            self._make_folder()
            path = f"{self.path}/{file_name}"
            if file_name.endswith(".pt"):
                write_pt(path, data, dtype_name, shape, crc)
            elif file_name.endswith(".npy"):
                write_npy(path, data, dtype_name, shape)
            else:
                write_raw(path, data, dtype_name, shape)
            with self._lock:
                self.n_saved += 1
                if same_as is not None and self._can_link:
                    self._file_of[key], self._bytes_in[file_name] = file_name, key
            return True
        except (OSError, UsageError) as error:
            self._fail(error)
            return False

    def _link(self, first: str | None, file_name: str) -> bool:
        """Give the file `first` a second name, if that can be done."""
        if first is None or not self._can_link:
            return False
        if first != file_name:
            self._forget(file_name)
            try:
                try:
                    os.link(f"{self.path}/{first}", f"{self.path}/{file_name}")
                except FileExistsError:
                    if (old := self._bytes_in.pop(file_name, None)) is not None:
                        self._file_of.pop(old, None)
                    os.unlink(f"{self.path}/{file_name}")
                    os.link(f"{self.path}/{first}", f"{self.path}/{file_name}")
            except OSError:
                # No links on this file system, too many of one file, or the first one is gone: write it.
                return False
        with self._lock:
            self.n_linked += 1
        return True

    def _forget(self, file_name: str) -> None:
        """Forget the old bytes of a file that is overwritten: nothing may link to it for them any more."""
        if (old := self._bytes_in.pop(file_name, None)) is not None:
            self._file_of.pop(old, None)

    def _make_folder(self) -> None:
        if not self._is_made:
            self.path.mkdir(parents=True, exist_ok=True)
            self._is_made = True

    def _file_name(self, name: str, suffix: str) -> str:
        """Name of the file; a name that file systems do not accept becomes 32 digits, listed in mapping.csv."""
        full = name + suffix
        if len(full) <= _LONGEST_NAME // 4 and full.isprintable() and "/" not in full and full[0] != ".":
            return full  # the usual case, without encoding it
        if (
            len(os.fsencode(full)) <= _LONGEST_NAME
            and "/" not in full
            and "\0" not in full
            and full[0] != "."
        ):
            return full
        with self._lock:
            digits = self._digits_of.get(full)
            if digits is None:
                digest = hashlib.blake2b(full.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                digits = f"{int.from_bytes(digest, 'big') % 10**32:032d}{suffix}"
                self._append_mapping(digits, full)
                self._digits_of[full] = digits
        return digits

    def _append_mapping(self, file_name: str, full: str) -> None:
        self._make_folder()
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        with open(self.path / MAPPING_NAME, "ab") as file:
            if not file.tell():
                rows.writerow(("file", "name"))
            rows.writerow((file_name, full))
            file.write(text.getvalue().encode("utf-8", "backslashreplace"))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self.n_lost += 1
            is_first, self._is_told = not self._is_told, True
        if is_first:
            reason = getattr(error, "strerror", None) or error
            tell(
                f"a tensor could not be saved to {self.path} ({reason}); training continues without it: free space, or "
                f"collect fewer tensors with list or step"
            )


class _Queue:
    """Jobs for one thread, with a limit on their bytes. The thread exits when idle, so the program can end."""

    def __init__(self, most_bytes: int, work) -> None:
        self._most_bytes = most_bytes
        self._work = work
        self._jobs: deque[tuple[tuple, int]] = deque()
        self._n_bytes = 0
        self._is_running = False
        self._changed = threading.Condition()

    def put(self, job: tuple, n_bytes: int) -> None:
        with self._changed:
            # A single job larger than the limit is admitted alone.
            self._changed.wait_for(lambda: self._n_bytes == 0 or self._n_bytes + n_bytes <= self._most_bytes)
            self._n_bytes += n_bytes
            self._jobs.append((job, n_bytes))
            if not self._is_running:
                self._is_running = True
                # Not a daemon: the interpreter waits for it at exit, so nothing queued is lost.
                threading.Thread(target=self._run, name="windtunnel tensor writer").start()

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                job, n_bytes = self._jobs.popleft()
            with contextlib.suppress(Exception):  # counted by the work itself
                self._work(*job)
            del job
            with self._changed:
                self._n_bytes -= n_bytes
                self._changed.notify_all()
