"""Tensors in files: `.pt` as torch writes them, `.npy` as numpy does, and raw bytes for types that numpy lacks.

    memory, type, shape ──> write_pt | write_npy | write_raw ──> a whole file, or none
    file ──> read_tensor ──> values as a numpy array, and the name of their type

Reading needs no torch and executes nothing from the file: see `pt_reader`.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_files import open_file
from windtunnel.probe.files.checksum import crc32
from windtunnel.probe.files.pt_reader import read_pt
from windtunnel.probe.files.pt_writer import data_length, pt_head_and_tail
from windtunnel.probe.files.tensor_types import ElementType, element_type, numbers
from windtunnel.whole_file import replace_file

__all__ = ["file_suffix", "read_bits", "read_tensor", "write_npy", "write_pt", "write_raw"]


def write_pt(
    path: Path | str,
    data: memoryview | bytes,
    dtype_name: str,
    shape: tuple[int, ...],
    crc: int | None = None,
) -> None:
    """Write a contiguous tensor so that plain `torch.load` reads it. `crc` is the CRC-32 of `data`, if known."""
    kind, data = _checked(data, dtype_name, shape)
    head, tail = pt_head_and_tail(kind, tuple(shape), crc32(data) if crc is None else crc)
    replace_file(*os.path.split(path), (head, data, tail))


def write_npy(path: Path | str, data: memoryview | bytes, dtype_name: str, shape: tuple[int, ...]) -> None:
    """Write a contiguous tensor of a type that numpy has."""
    kind, data = _checked(data, dtype_name, shape)
    if not kind.is_npy:
        raise UsageError(f"numpy has no {kind.name}, so it cannot be an .npy file", hint="use the raw format")
    replace_file(*os.path.split(path), (_npy_head(kind, tuple(shape)), data))


def write_raw(path: Path | str, data: memoryview | bytes, dtype_name: str, shape: tuple[int, ...]) -> None:
    """Write only the bytes; the name must end with `file_suffix("raw", ...)`, which gives type and shape."""
    kind, data = _checked(data, dtype_name, shape)
    if not str(path).endswith(file_suffix("raw", kind.name, shape)):
        raise UsageError(
            f"the name of a raw tensor file must end with its type and shape, unlike {Path(path).name}"
        )
    replace_file(*os.path.split(path), (data,))


def file_suffix(file_format: str, dtype_name: str, shape: tuple[int, ...]) -> str:
    """End of the name of a file in that format ("pt", "npy", "raw"): ".pt", ".npy" or ".bfloat16.2x3.bin".

    "npy" of a type that numpy lacks is raw.
    """
    if file_format == "pt":
        return ".pt"
    kind = element_type(dtype_name)
    if file_format == "npy" and kind.is_npy:
        return ".npy"
    return f".{kind.name}.{'x'.join(map(str, shape)) or 'scalar'}.bin"


def read_tensor(path: Path | str) -> tuple[np.ndarray, str]:
    """Values and type name of a tensor file. Types that numpy lacks are converted exactly to float32.

    Large files are memory-mapped. Raises CorruptFile for anything that is not a plain tensor.
    """
    bits, name = read_bits(path)
    return numbers(bits, element_type(name)), name


def read_bits(path: Path | str) -> tuple[np.ndarray, str]:
    """As read_tensor, but types that numpy lacks are returned as unsigned integers of the same bits."""
    path = Path(path)
    try:
        if path.suffix == ".npy":
            return _read_npy(path)
        if path.suffix == ".bin":
            return _read_raw(path)
        return read_pt(path)
    except OSError as error:
        raise CorruptFile(f"cannot read {path} ({error.strerror or error})", hint="check the path") from error


def _checked(
    data: memoryview | bytes, dtype_name: str, shape: tuple[int, ...]
) -> tuple[ElementType, memoryview]:
    kind = element_type(dtype_name)
    data = memoryview(data)
    # An array with a zero in its shape cannot be cast, and has no bytes to write.
    data = data.cast("B") if data.nbytes else memoryview(b"")
    if len(data) != data_length(kind, shape):
        raise UsageError(
            f"{len(data)} bytes were given for {kind.name} of shape {list(shape)}, which needs {data_length(kind, shape)}"
        )
    return kind, data


def _npy_head(kind: ElementType, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '{kind.numpy}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


def _read_npy(path: Path) -> tuple[np.ndarray, str]:
    # Not np.load: it parses the header as Python, which fails in many ways on a malicious file.
    with open_file(path) as file:
        n_file = os.fstat(file.fileno()).st_size
        magic, major = file.read(6), file.read(2)[:1]
        n_header = int.from_bytes(file.read(2 if major == b"\1" else 4), "little")
        header = file.read(min(n_header, _LONGEST_NPY_HEADER)).decode("latin-1")
        start = file.tell()
    match = _NPY_HEADER.match(header)
    if magic != b"\x93NUMPY" or match is None:
        raise CorruptFile(f"{path} is not an .npy file of plain numbers")
    dtype = np.dtype(match[1])
    shape = tuple(map(int, match[3].replace(",", " ").split()))
    # In Python integers, before numpy computes with these lengths: they may be anything.
    n_expected = dtype.itemsize * math.prod(shape)
    if start + n_expected > n_file or len(shape) > 32:
        raise CorruptFile(
            f"{path} declares {dtype} of shape {list(shape)[:8]} but contains {n_file - start} bytes"
        )
    name = element_type(dtype.name).name
    if not n_expected:
        return np.zeros(shape, dtype), name
    return np.asarray(np.memmap(path, dtype, "r", start, shape, "F" if match[2] == "True" else "C")), name


_LONGEST_NPY_HEADER = 10_000  # as numpy's own limit
_NPY_HEADER = re.compile(
    r"\{'descr': '([<>|=](?:b1|[iu][1248]|f[248]|c8|c16))', "
    r"'fortran_order': (True|False), 'shape': \(((?:\d{1,19}(?:, |,)?){0,64})\), \}\s*$",
    re.ASCII,
)


def _read_raw(path: Path) -> tuple[np.ndarray, str]:
    match = _RAW_NAME.search(path.name)
    if match is None:
        raise CorruptFile(
            f"the name of {path} does not give its type and shape",
            hint="a raw tensor file ends with, for example, .bfloat16.2x3.bin",
        )
    kind = element_type(match[1])
    shape = () if match[2] == "scalar" else tuple(map(int, match[2].split("x")))
    with open_file(path) as file:
        n_bytes, n_expected = os.fstat(file.fileno()).st_size, kind.n_bytes * math.prod(shape)
        if n_bytes != n_expected:
            raise CorruptFile(
                f"{path} has {n_bytes} bytes, but {kind.name} of shape {list(shape)} has {n_expected}"
            )
        return np.fromfile(file, dtype=kind.numpy).reshape(shape), kind.name


_RAW_NAME = re.compile(r"\.(\w{1,30})\.(scalar|\d{1,19}(?:x\d{1,19}){0,63})\.bin$", re.ASCII)
