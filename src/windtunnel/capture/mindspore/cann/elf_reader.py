"""Read the dependencies, the defined symbols and the undefined symbols of a shared library.

    bytes of a library ──> sections ──> names of libraries, names of symbols
                                        (every offset is checked: a damaged file is an error, never a crash)

Supports 64-bit little-endian ELF (x86_64 and aarch64), so that neither nm nor readelf has to be installed.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import CorruptFile

__all__ = ["ElfLibrary", "read_library"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_VERSION = struct.Struct("<H")

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_NOBITS, _SHT_VERSYM = 6, 11, 8, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME = 1, 14
_STB_LOCAL, _STB_WEAK = 0, 2
_LONGEST_NAME = 65_536  # a mangled C++ name rarely has more than a thousand characters


@dataclass(frozen=True, slots=True)
class ElfLibrary:
    """One shared library as the loader sees it."""

    path: Path
    machine: int  # e_machine: 62 is x86_64, 183 is aarch64
    soname: str  # "" if it has none
    needed: tuple[str, ...]  # sonames of the libraries it is linked with
    defined: frozenset[str]
    lacking: frozenset[
        str
    ]  # symbols it must find elsewhere, without those of a versioned library such as libc
    printable: tuple[str, ...]  # strings in it that match the caller's pattern


def read_library(path: Path, pattern: bytes | None = None) -> ElfLibrary:
    """Read a library; `pattern` also collects the zero-terminated strings that match it as a whole.

    A symbol with a version (`memcpy@GLIBC_2.14`) comes from the library that the version names; CANN's have none.
    Weak symbols may stay unresolved, so they are not lacking.
    """
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise CorruptFile(f"{path} is empty, not a shared library") from error
        with data:
            return _read(path, data, pattern)


def _read(path: Path, data: mmap.mmap, pattern: bytes | None) -> ElfLibrary:
    image = _Image(path, data)
    needed: list[str] = []
    soname = ""
    for tag, value, names in image.records(_SHT_DYNAMIC, _DYNAMIC):
        if tag == _DT_NEEDED:
            needed.append(image.text(names, value))
        elif tag == _DT_SONAME:
            soname = image.text(names, value)
    defined, lacking = _symbols(image)
    printable = _strings(data, pattern) if pattern else ()
    return ElfLibrary(path, image.machine, soname, tuple(needed), defined, lacking, printable)


def _symbols(image: _Image) -> tuple[frozenset[str], frozenset[str]]:
    versions = [version & 0x7FFF for version, _ in image.records(_SHT_VERSYM, _VERSION)]
    defined: set[str] = set()
    lacking: set[str] = set()
    for index, (name, info, _, home, _, _, names) in enumerate(image.records(_SHT_DYNSYM, _SYMBOL)):
        bind = info >> 4
        if not name or bind == _STB_LOCAL:
            continue
        if home:
            defined.add(image.text(names, name))
        elif bind != _STB_WEAK and (index >= len(versions) or versions[index] <= 1):
            lacking.add(image.text(names, name))
    return frozenset(defined), frozenset(lacking)


def _strings(data: mmap.mmap, pattern: bytes) -> tuple[str, ...]:
    whole = re.compile(rb"(?<=\0)(?:" + pattern + rb")(?=\0)")
    return tuple(sorted({match.group().decode("ascii", "replace") for match in whole.finditer(data)}))


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    start: int
    size: int
    link: int


class _Image:
    """Bounds-checked access to a mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        header = self._unpack(_HEADER, 0)
        ident, _, self.machine, *_ = header
        table, entry_size, count = header[6], header[11], header[12]
        if ident[:4] != b"\x7fELF":
            raise self._corrupt("is not a shared library (no ELF magic number)")
        if ident[4] != 2 or ident[5] != 1:
            raise self._corrupt("is not a 64-bit little-endian library")
        if count and entry_size < _SECTION.size:
            raise self._corrupt(f"has sections of {entry_size} bytes each, {_SECTION.size} are needed")
        self._sections = [self._section(table + index * entry_size) for index in range(count)]

    def records(self, kind: int, record: struct.Struct) -> Iterator[tuple]:
        """The fields of each record in the section of a kind, and the table of names they refer to.

        A library has one section of each kind that is read here; only the first is read.
        """
        section = next((section for section in self._sections if section.kind == kind), None)
        if section is None:
            return
        if section.link >= len(self._sections):
            raise self._corrupt(f"has no section {section.link}")
        names = self._sections[section.link]
        whole = section.size - section.size % record.size
        for fields in record.iter_unpack(self.data[section.start : section.start + whole]):
            yield *fields, names

    def text(self, names: _Section, offset: int) -> str:
        start, end = names.start + offset, names.start + names.size
        stop = self.data.find(b"\0", start, min(end, start + _LONGEST_NAME)) if start < end else -1
        if stop < 0:
            raise self._corrupt(f"has a name at {offset} outside its table of {names.size} bytes")
        return self.data[start:stop].decode("utf-8", "replace")

    def _section(self, offset: int) -> _Section:
        _, kind, _, _, start, size, link, *_ = self._unpack(_SECTION, offset)
        if kind == _SHT_NOBITS:
            size = 0  # it has no bytes in the file
        if start + size > len(self.data):
            raise self._corrupt(f"has a section up to {start + size}, past its {len(self.data)} bytes")
        return _Section(kind, start, size, link)

    def _unpack(self, record: struct.Struct, offset: int) -> tuple:
        if offset + record.size > len(self.data):
            raise self._corrupt(f"ends at {len(self.data)} bytes, {offset + record.size} are needed")
        return record.unpack_from(self.data, offset)

    def _corrupt(self, fact: str) -> CorruptFile:
        return CorruptFile(f"{self.path} {fact}", hint="reinstall the package it belongs to")
