"""Read a `.pt` file that holds one plain tensor, without torch, and without running the pickle inside.

    zip directory ──> data.pkl ──> foreign_pickles, which returns its calls as text ──> _TensorRecord: type, shape, strides
                                                                                  └──> view of the mapped bytes

The pickle is read as data: nothing is imported, called or built. Only the names that torch writes for a tensor are
accepted; any other is refused by name.
"""

from __future__ import annotations

import math
import mmap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_files import open_file
from windtunnel.foreign_pickles import PickleName, UnsafePickle, load_pickle_with_calls
from windtunnel.probe.files.tensor_types import element_type, type_of_storage

__all__ = ["read_pt"]

_LONGEST_PICKLE = 1 << 20  # the pickle of one tensor has some hundred bytes
_MOST_RECORDS = 1000
_MOST_EXPANSION = (
    1 << 30
)  # bytes that strides of zero may add: an expanded tensor is small on disk, large in memory


def read_pt(path: Path) -> tuple[np.ndarray, str]:
    """The bits of the tensor in `path`, memory-mapped read-only, and the name of its type. Raises CorruptFile."""
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
            f"{path} contains {len(pickles)} pickles in {len(infos)} records, so it is not a tensor saved by torch"
        )
    folder = pickles[0].filename.removesuffix("data.pkl")
    records = {info.filename: info for info in infos}
    if _small(path, archive, records.get(folder + "byteorder"), b"little") != b"little":
        raise CorruptFile(
            f"{path} was written on a big-endian machine", hint="load it with torch and save it again"
        )
    tensor = _parse_tensor_pickle(_small(path, archive, pickles[0]), str(path))
    data = records.get(f"{folder}data/{tensor.key}")
    if data is None:
        raise CorruptFile(f"{path} lacks the record data/{tensor.key[:40]} that its tensor needs")
    return _view(path, archive, data, tensor), tensor.dtype_name


def _small(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, missing: bytes = b"") -> bytes:
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


def _view(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, tensor: _TensorRecord) -> np.ndarray:
    _check_stored(path, info)
    kind = element_type(tensor.dtype_name)
    if any(n < 0 for n in tensor.shape + tensor.strides) or tensor.offset < 0 or len(tensor.shape) > 32:
        raise CorruptFile(f"{path} has a tensor with an impossible shape {list(tensor.shape)[:8]}")
    if math.prod(tensor.shape) == 0:
        return np.zeros(tensor.shape, kind.numpy)
    last = tensor.offset + sum(
        (n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)
    )
    if (last + 1) * kind.n_bytes > info.file_size or math.prod(
        tensor.shape
    ) * kind.n_bytes > _MOST_EXPANSION + info.file_size:
        raise CorruptFile(
            f"{path} declares {kind.name} of shape {list(tensor.shape)[:8]} but contains {info.file_size} bytes",
            hint="collect it again",
        )
    file = archive.fp
    assert file is not None, "the archive is open"
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


@dataclass(frozen=True, slots=True)
class _TensorRecord:
    """A tensor as its pickle describes it; lengths in elements."""

    key: str  # which data record holds its bytes
    dtype_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype_name: str | None  # None: bytes, and the type is stored with the tensor


def _parse_tensor_pickle(data: bytes, origin: str) -> _TensorRecord:
    """Read the pickle of one tensor. Raises CorruptFile that names `origin`."""
    try:
        value = load_pickle_with_calls(data, _call, _storage)
    except UnsafePickle as error:
        raise CorruptFile(f"{origin} is not a plain tensor: {error}", hint="collect it again") from error
    except (IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(
            f"{origin} has a damaged pickle ({type(error).__name__})", hint="collect it again"
        ) from error
    except UsageError as error:
        raise CorruptFile(f"{origin} is not a plain tensor: {error.message}", hint=error.hint) from None
    if not isinstance(value, _TensorRecord):
        name = "dictionary" if isinstance(value, dict) else type(value).__name__
        raise CorruptFile(f"{origin} holds a {name}, not a plain tensor", hint="save one tensor")
    return value


def _storage(parts: tuple) -> _Storage:
    word, kind, key, _device, _n_elements = parts
    if word != "storage" or not isinstance(kind, PickleName) or not isinstance(key, str):
        raise ValueError
    if kind.text == "torch.storage.UntypedStorage":
        return _Storage(key, None)
    module, _, name = kind.text.rpartition(".")
    found = type_of_storage(name) if module in ("torch", "torch.cuda") else None
    if found is None:
        raise CorruptFile(f"its storage is a {kind.text[:60]}")
    return _Storage(key, found.name)


def _call(function: PickleName, arguments: tuple) -> object:
    """The value a call would have, for the few functions that torch's pickles of tensors call."""
    name = function.text
    if name == "collections.OrderedDict" and arguments == ():
        return {}
    if name == "torch._utils._rebuild_parameter":
        if isinstance(arguments[0], _TensorRecord):
            return arguments[0]
        raise ValueError
    if name in (
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
    ):
        return _tensor(name, arguments)
    raise CorruptFile(
        f"its pickle calls {name[:80]}", hint="only plain tensors are read from untrusted files"
    )


def _tensor(name: str, arguments: tuple) -> _TensorRecord:
    storage, offset, shape, strides, *rest = arguments
    dtype_name = storage.dtype_name
    if name.endswith("_v3"):
        dtype_name = element_type(rest[2].text).name
    if any(type(each) is dict and each for each in rest):
        raise CorruptFile(
            "it is a view whose values are conjugated or negated on reading, or has attributes",
            hint="save one tensor: t.resolve_conj().resolve_neg()",
        )
    if dtype_name is None or len(shape) != len(strides):
        raise ValueError
    if not all(type(n) is int for n in (offset, *shape, *strides)):
        raise ValueError
    return _TensorRecord(storage.key, dtype_name, offset, shape, strides)
