"""The reader of shared libraries, on one written byte by byte, on damaged ones, and on this interpreter's own."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.capture.mindspore.cann.elf_reader import ElfLibrary, read_library
from windtunnel.errors import CorruptFile

GLOBAL, WEAK, LOCAL = 1 << 4, 2 << 4, 0
# name, binding, section it is defined in (0: elsewhere), version (1: none)
SYMBOLS = [
    ("", LOCAL, 0, 0),
    ("hidden", LOCAL, 5, 1),
    ("offered", GLOBAL, 5, 1),
    ("offered_weakly", WEAK, 5, 1),
    ("aclInit", GLOBAL, 0, 1),
    ("__gmon_start__", WEAK, 0, 1),
    ("memcpy", GLOBAL, 0, 2),
    ("memset", GLOBAL, 0, 0x8003),  # a hidden version is a version
]


def written_library() -> bytes:
    """A library of five sections: names, symbols, versions, the dynamic table, and some text."""
    names, at = b"\0", {"": 0}
    for text in (*(symbol[0] for symbol in SYMBOLS[1:]), "libneeded.so.1", "libhccl.so", "libmine.so"):
        at[text] = len(names)
        names += text.encode() + b"\0"
    symbols = b"".join(
        struct.pack("<IBBHQQ", at[name], bind, 0, home, 0, 0) for name, bind, home, _ in SYMBOLS
    )
    versions = b"".join(struct.pack("<H", version) for *_, version in SYMBOLS)
    dynamic = [(1, at["libneeded.so.1"]), (1, at["libhccl.so"]), (14, at["libmine.so"]), (5, 0), (0, 0)]
    table = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    text = b"\0aclrtMalloc\0see aclrtFree\0aclrtFree!\0HcclSend\0"
    sections = [
        (0, b"", 0),
        (3, names, 0),
        (11, symbols, 1),
        (0x6FFFFFFF, versions, 2),
        (6, table, 1),
        (1, text, 0),
    ]
    header_size, body, headers = 64, b"", b""
    for kind, content, link in sections:
        headers += struct.pack(
            "<IIQQQQIIQQ", 0, kind, 0, 0, header_size + len(body), len(content), link, 0, 0, 0
        )
        body += content
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (identity, 3, 62, 1, 0, 0, header_size + len(body), 0, 64, 0, 0, 64, len(sections), 1)
    return struct.pack("<16sHHIQQQIHHHHHH", *fields) + body + headers


LIBRARY = written_library()


def test_a_library_says_whom_it_needs_what_it_offers_and_what_it_lacks(tmp_path):
    path = tmp_path / "libmine.so"
    path.write_bytes(LIBRARY)
    assert read_library(path, pattern=rb"(?:acl[a-z]*|Hccl)[A-Z]\w+") == ElfLibrary(
        path=path,
        machine=62,
        soname="libmine.so",
        needed=("libneeded.so.1", "libhccl.so"),
        defined=frozenset({"offered", "offered_weakly"}),
        lacking=frozenset({"aclInit"}),
        printable=("HcclSend", "aclInit", "aclrtMalloc"),
    )


def test_without_a_pattern_no_text_is_searched(tmp_path):
    path = tmp_path / "libmine.so"
    path.write_bytes(LIBRARY)
    assert read_library(path).printable == ()


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "is empty, not a shared library"),
        (b"#!/bin/sh\n", "ends at 10 bytes, 64 are needed"),
        (b"INPUT(libm.so.6)" * 10, "is not a shared library (no ELF magic number)"),
        (LIBRARY[:4] + b"\x01" + LIBRARY[5:], "is not a 64-bit little-endian library"),
        (LIBRARY[:58] + b"\x20\x00" + LIBRARY[60:], "has sections of 32 bytes each, 64 are needed"),
        (LIBRARY[:-1], f"ends at {len(LIBRARY) - 1} bytes, {len(LIBRARY)} are needed"),
        (LIBRARY[:-32] + struct.pack("<Q", 1 << 60) + LIBRARY[-24:], "past its"),
    ],
)
def test_what_is_no_library_is_one_sentence(tmp_path, data, fact):
    path = tmp_path / "libmine.so"
    path.write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        read_library(path)
    assert caught.value.message.startswith(f"{path} ")
    assert fact in caught.value.message


@settings(max_examples=200, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_library_is_read_or_refused_but_never_more(tmp_path, data):
    """Bytes changed anywhere, and the file cut: an answer of names from inside the file, or `CorruptFile`."""
    damaged = bytearray(LIBRARY)
    # The header and the table of sections are where damage leads astray.
    weak_spots = st.one_of(
        st.integers(0, 63),
        st.integers(len(LIBRARY) - 384, len(LIBRARY) - 1),
        st.integers(0, len(LIBRARY) - 1),
    )
    for place, value in data.draw(st.lists(st.tuples(weak_spots, st.integers(0, 255)), max_size=12)):
        damaged[place] = value
    damaged = damaged[: data.draw(st.integers(0, len(LIBRARY)) | st.just(len(LIBRARY)))]
    path = tmp_path / "damaged.so"
    path.write_bytes(damaged)
    try:
        library = read_library(path, pattern=rb"\w+")
    except CorruptFile:
        return
    for name in (*library.needed, *library.defined, *library.lacking, library.soname):
        assert "�" in name or name.encode() in bytes(damaged)


def test_an_interpreters_library_offers_what_its_modules_lack():
    extension = Path(__import__("_ctypes").__file__ or "")
    if sys.platform != "linux" or extension.suffix != ".so":
        pytest.skip("_ctypes is not a library of its own here")
    library = read_library(extension)
    assert "PyInit__ctypes" in library.defined
    assert "PyLong_FromLong" in library.lacking
    assert not any(name in library.lacking for name in ("memcpy", "strlen", "__cxa_finalize"))
    assert any(name.startswith("libc.so") for name in library.needed)
