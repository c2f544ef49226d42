"""Read a `.pt` file that holds one plain tensor, without torch, and without running the pickle inside.

zip directory ──> data.pkl ──> tensor_pickle ──> type, shape, strides ──> view of the mapped bytes
"""

from __future__ import annotations

import math
import mmap
import zipfile
from pathlib import Path

import numpy as np

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file
from windtunnel.probe.tensor_pickle import TensorRecord, parse_tensor_pickle
from windtunnel.probe.tensor_types import element_type

__all__ = ["read_pt"]

_LONGEST_PICKLE = 1 << 20  # of one tensor it has some hundred bytes
_MOST_RECORDS = 1000


def read_pt(path: Path) -> tuple[np.ndarray, str]:
    """The bits of the tensor in `path`, mapped read-only, and the name of its type. Raises CorruptFile."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return _read_archive(path, archive)
    except zipfile.BadZipFile as error:
        raise CorruptFile(
            f"{path} is not a .pt file of torch 1.6 or later ({error})",
            hint="load it with torch, if you trust it, and save it again",
        ) from error
    except (zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not a zip file as torch writes it ({error})") from error


def _read_archive(path: Path, archive: zipfile.ZipFile) -> tuple[np.ndarray, str]:
    infos = archive.infolist()
    pickles = [
        info for info in infos if info.filename.endswith("/data.pkl") and info.filename.count("/") == 1
    ]
    if len(pickles) != 1 or len(infos) > _MOST_RECORDS:
        raise CorruptFile(
            f"{path} holds {len(pickles)} pickles in {len(infos)} records, so it is not a tensor of torch"
        )
    folder = pickles[0].filename.removesuffix("data.pkl")
    records = {info.filename: info for info in infos}
    if _small(path, archive, records.get(folder + "byteorder"), b"little") != b"little":
        raise CorruptFile(
            f"{path} was written on a big-endian machine", hint="load it with torch and save it again"
        )
    tensor = parse_tensor_pickle(_small(path, archive, pickles[0]), str(path))
    data = records.get(f"{folder}data/{tensor.key}")
    if data is None:
        raise CorruptFile(f"{path} lacks the record data/{tensor.key[:40]} that its tensor needs")
    return _view(path, archive, data, tensor), tensor.dtype_name


def _small(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, missing: bytes | None = None
) -> bytes:
    if info is None:
        return missing
    _check_stored(path, info)
    if info.file_size > _LONGEST_PICKLE:
        raise CorruptFile(
            f"the record {info.filename[:80]} of {path} has {info.file_size} bytes, too many for one tensor"
        )
    try:
        return archive.read(info)
    except zipfile.BadZipFile as error:
        raise CorruptFile(f"{path} is damaged ({error})", hint="collect it again") from error


def _check_stored(path: Path, info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
        raise CorruptFile(f"the record {info.filename[:80]} of {path} is compressed, which torch never does")


def _view(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, tensor: TensorRecord) -> np.ndarray:
    _check_stored(path, info)
    kind = element_type(tensor.dtype_name)
    if any(n < 0 for n in tensor.shape + tensor.strides) or tensor.offset < 0 or len(tensor.shape) > 32:
        raise CorruptFile(f"{path} has a tensor of impossible shape {list(tensor.shape)[:8]}")
    if math.prod(tensor.shape) == 0:
        return np.zeros(tensor.shape, kind.numpy)
    last = tensor.offset + sum(
        (n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)
    )
    if (last + 1) * kind.n_bytes > info.file_size or math.prod(
        tensor.shape
    ) * kind.n_bytes > _MOST_EXPANSION + info.file_size:
        raise CorruptFile(
            f"{path} promises {kind.name} of shape {list(tensor.shape)[:8]} but holds {info.file_size} bytes",
            hint="collect it again",
        )
    file = archive.fp
    file.seek(info.header_offset)
    header = file.read(30)
    start = (
        info.header_offset
        + 30
        + int.from_bytes(header[26:28], "little")
        + int.from_bytes(header[28:30], "little")
    )
    n_file = file.seek(0, 2)
    if header[:4] != b"PK\3\4" or start + info.file_size > n_file:
        raise CorruptFile(f"{path} ends after {n_file} bytes, inside its tensor", hint="collect it again")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(mapped, np.uint8, info.file_size, start)
    first = tensor.offset * kind.n_bytes
    flat = flat[first : (last + 1) * kind.n_bytes].view(kind.numpy)
    strides = tuple(stride * kind.n_bytes for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)


_MOST_EXPANSION = (
    1 << 30
)  # bytes that strides of zero may add: an expanded tensor is small on disk, large in memory
