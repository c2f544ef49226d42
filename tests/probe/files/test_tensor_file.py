"""Tensor files: what we write, torch and numpy read; what torch and numpy write, we read; what is neither, we refuse."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.probe.files.pt_writer import pt_head_and_tail
from windtunnel.probe.files.tensor_file import read_bits, read_tensor, write_npy, write_pt, write_raw
from windtunnel.probe.files.tensor_types import element_type

TORCH_TYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "int64", "int32", "int16", "int8", "uint8", "uint16",
    "uint32", "uint64", "bool", "complex32", "complex64", "complex128", "bits8", "bits16", "bits1x8", "bits2x4",
    "bits4x2",
]  # fmt: skip
NUMPY_TYPES = [name for name in TORCH_TYPES if element_type(name).is_npy]
FLOAT8_TYPES = [name for name in TORCH_TYPES if name.startswith("float8")]
SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3, 1, 4, 2), (300,), (70_000,)]

shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(TORCH_TYPES), shape=shapes, seed=st.integers(0, 2**32))
def test_torch_reads_back_every_bit(tmp_path_factory, name, shape, seed):
    path = tmp_path_factory.getbasetemp() / f"{os.getpid()}.pt"
    data, expected = _random(name, shape, seed)
    write_pt(path, data, f"torch.{name}", shape)
    for mmap in (False, True):
        tensor = torch.load(path, weights_only=True, mmap=mmap)
        assert (tensor.dtype, tensor.shape, tensor.stride()) == (
            expected.dtype,
            expected.shape,
            expected.stride(),
        )
        assert _bytes(tensor) == data
    bits, found = read_bits(path)
    assert (found, bits.shape, bits.tobytes()) == (name, shape, data)
    assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_the_bytes_are_those_that_torch_writes(tmp_path, name):
    for shape in SHAPES:
        data, tensor = _random(name, shape, 7)
        write_pt(tmp_path / "ours.pt", data, name, shape)
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        theirs, ours = buffer.getvalue(), (tmp_path / "ours.pt").read_bytes()
        # Torch adds one record at the end, a number made from the names of the others; all before it is the same.
        n_same = theirs.index(b"PK\3\4", theirs.index(b"archive/version"))
        assert ours[:n_same] == theirs[:n_same]
        assert ours[n_same:].startswith(b"PK\1\2")


@pytest.mark.parametrize("n_bytes", [2**32 - 1, 2**32 - 200, 2**32 + 64, 5 * 2**32])
def test_lengths_over_four_gib_are_written_in_64_bits(tmp_path, n_bytes):
    head, tail = pt_head_and_tail(element_type("uint8"), (n_bytes,), crc=0)
    assert len(head) % 64 == 0
    path = tmp_path / "large.pt"
    with open(path, "wb") as file:  # with a hole for the tensor: takes no space on disk
        file.write(head)
        file.seek(len(head) + n_bytes)
        file.write(tail)
        file.seek(len(head) + n_bytes - 1)
        file.write(b"\7")
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("archive/data/0")
        assert (info.file_size, info.compress_size) == (n_bytes, n_bytes)
        assert archive.read("archive/version") == b"3\n"
    tensor = torch.load(path, weights_only=True, mmap=True)
    assert (tuple(tensor.shape), tensor[-1].item(), tensor[0].item()) == ((n_bytes,), 7, 0)
    array, name = read_tensor(path)
    assert (array.shape, array[-1], array[0], name) == ((n_bytes,), 7, 0, "uint8")


def test_the_tensor_is_not_copied_on_its_way_to_the_file(tmp_path):
    data = memoryview(np.zeros(1 << 22, np.float32)).cast("B")
    tracemalloc.start()
    write_pt(tmp_path / "a.pt", data, "float32", (1 << 22,))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_wrong_length_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"8 bytes were given for float32 of shape \[3\], which needs 12"):
        write_pt(tmp_path / "a.pt", bytes(8), "float32", (3,))
    with pytest.raises(UsageError, match=r"'torch\.int4' cannot be saved to a file"):
        write_pt(tmp_path / "a.pt", bytes(8), "torch.int4", (3,))
    assert os.listdir(tmp_path) == []


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NUMPY_TYPES), shape=shapes, seed=st.integers(0, 2**32))
def test_numpy_reads_back_every_bit(tmp_path_factory, name, shape, seed):
    path = tmp_path_factory.getbasetemp() / f"{os.getpid()}.npy"
    data, _ = _random(name, shape, seed)
    write_npy(path, data, name, shape)
    array = np.load(path, allow_pickle=False)
    assert (array.dtype.name, array.shape, array.tobytes()) == (name, shape, data)
    ours, found = read_tensor(path)
    assert (found, ours.shape, ours.tobytes()) == (name, shape, data)


def test_types_that_numpy_lacks_are_kept_raw_under_a_name_that_says_what_they_are(tmp_path):
    with pytest.raises(UsageError, match="numpy has no bfloat16"):
        write_npy(tmp_path / "a.npy", bytes(4), "bfloat16", (2,))
    with pytest.raises(UsageError, match="must end with its type and shape"):
        write_raw(tmp_path / "a.bin", bytes(4), "bfloat16", (2,))
    write_raw(tmp_path / "a.bfloat16.2.bin", b"\x80\x3f\0\x40", "BFloat16", (2,))
    assert (tmp_path / "a.bfloat16.2.bin").read_bytes() == b"\x80\x3f\0\x40"
    array, name = read_tensor(tmp_path / "a.bfloat16.2.bin")
    assert (array.tolist(), array.dtype.name, name) == ([1.0, 2.0], "float32", "bfloat16")
    write_raw(tmp_path / "a.bfloat16.scalar.bin", b"\x80\x3f", "bfloat16", ())
    assert read_tensor(tmp_path / "a.bfloat16.scalar.bin")[0].shape == ()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # told once in a process
@pytest.mark.parametrize("name", ["bfloat16", "complex32", *FLOAT8_TYPES])
def test_values_of_types_that_numpy_lacks_are_exact(tmp_path, name):
    kind = element_type(name)
    n_codes = min(256 ** np.dtype(kind.numpy).itemsize, 65536)
    bits = np.arange(n_codes, dtype=kind.numpy)
    if name == "complex32":
        bits = bits | (bits[::-1] << np.uint32(16))
    write_pt(tmp_path / "a.pt", bits.tobytes(), name, (n_codes,))
    values, _ = read_tensor(tmp_path / "a.pt")
    tensor = torch.load(tmp_path / "a.pt", weights_only=True)
    wide = (
        torch.view_as_complex(torch.view_as_real(tensor).float()) if name == "complex32" else tensor.float()
    )
    np.testing.assert_array_equal(values, wide.numpy())
    assert values.dtype == wide.numpy().dtype


def test_files_of_torch_are_read_whatever_view_was_saved(tmp_path):
    base = torch.arange(24, dtype=torch.int64).reshape(2, 3, 4)
    views = [base, base.transpose(0, 2), base[1:, :, 2], base[0, 1, 2], base[:, :0], base[1, 1].expand(5, 4)]
    views += [
        torch.nn.Parameter(torch.tensor([1.5])),
        torch.tensor([True]),
        torch.randn(3, requires_grad=True),
    ]
    for view in views:
        torch.save(view, tmp_path / "a.pt")
        array, name = read_tensor(tmp_path / "a.pt")
        assert name == str(view.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(array, view.detach().numpy())
        assert array.shape == tuple(view.shape)


def test_large_files_are_mapped_not_read(tmp_path):
    write_pt(tmp_path / "a.pt", bytes(1 << 24), "uint8", (1 << 24,))
    write_npy(tmp_path / "a.npy", bytes(1 << 24), "uint8", (1 << 24,))
    for name in ("a.pt", "a.npy"):
        tracemalloc.start()
        array, _ = read_tensor(tmp_path / name)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
        assert not array.flags.writeable
        del array


class Evil:
    """Makes a folder where it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("unpickled",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Evil(), "calls posix.mkdir"),
        ({"a": torch.zeros(2)}, "dictionary"),
        ([torch.zeros(2)], "holds a list"),
        ("text", "holds a str"),
        (3, "holds a int"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "conjugated"),
        (torch.zeros(3).to_sparse(), "_get_layout"),
        (np.zeros(3), "opcode|calls"),
    ],
)
def test_what_is_not_a_plain_tensor_is_refused_by_name(tmp_path, monkeypatch, value, reason):
    monkeypatch.chdir(tmp_path)
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(CorruptFile, match=reason) as caught:
        read_tensor(tmp_path / "a.pt")
    assert "\n" not in str(caught.value)
    assert os.listdir() == ["a.pt"]


def test_old_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(torch.zeros(2), path, _use_new_zipfile_serialization=False)
    _refused(path, "not a .pt file of torch 1.6 or later")
    path.write_bytes(b"")
    _refused(path, "not a .pt file")
    path.write_bytes(pickle.dumps(Evil()))
    _refused(path, "not a .pt file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/other", b"")
    _refused(path, "0 pickles in 1 records")
    _refused(tmp_path / "missing.pt", "No such file")
    _refused(tmp_path, "directory")


def test_records_that_do_not_fit_together_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    good = _records(np.zeros(6, np.float32))
    _write_zip(path, good)
    assert read_tensor(path)[0].tolist() == [0] * 6
    _write_zip(path, good | {"a/data/0": bytes(23)})
    _refused(path, r"declares float32 of shape \[6\] but contains 23 bytes")
    _write_zip(path, {name: data for name, data in good.items() if name != "a/data/0"})
    _refused(path, "lacks the record data/0")
    _write_zip(path, good | {"b/data.pkl": b""})
    _refused(path, "2 pickles")
    _write_zip(path, good | {"a/byteorder": b"big"})
    _refused(path, "big-endian")
    _write_zip(path, good | {"a/data.pkl": b"\x80\x02" + b"K\0" * (1 << 20)})
    _refused(path, "too many for one tensor")
    _write_zip(path, good, zipfile.ZIP_DEFLATED)
    _refused(path, "is compressed")
    _write_zip(path, good | {f"a/x{i}": b"" for i in range(1000)})
    _refused(path, "1005 records")


def test_a_name_that_leaves_the_archive_reaches_nothing(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(24))
    records = _records(np.zeros(6, np.float32))
    records["a/data.pkl"] = records["a/data.pkl"].replace(b"X\1\0\0\x000", b"X\x0c\0\0\0../../secret")
    _write_zip(tmp_path / "a.pt", records)
    _refused(tmp_path / "a.pt", "lacks the record data/../../secret")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"K\0K\6\x85", b"K\1K\6\x85", "declares"),  # begins one later
        (b"K\6\x85", b"J\xff\xff\xff\x7f\x85", "declares"),  # too long
        (b"K\6\x85", b"J\xff\xff\xff\xff\x85", "impossible shape"),  # negative
        (b"K\1\x85", b"J\xff\xff\xff\xff\x85", "impossible shape"),  # negative stride
        (b"K\1\x85", b"K\0K\0\x86", "damaged pickle"),  # two strides for one length
        (b"K\1\x85", b"N", "damaged pickle"),
        (b"FloatStorage", b"EvilsStorage", "its storage is a torch.EvilsStorage"),
        (b"cpuq", b"cpur", "stores a value in slot"),
        (b"storageq\1", b"storXgeq\1", "damaged pickle"),
        (b"_rebuild_tensor_v2", b"_rebuild_tensor_v9", "calls torch._utils._rebuild_tensor_v9"),
        (
            b"K\0K\6\x85q\6K\1\x85",
            b"K\0J\0\0\0\x7fK\x7f\x86q\6K\0K\0\x86",
            "declares",
        ),  # expanded without bound
    ],
)
def test_a_pickle_that_lies_is_refused(tmp_path, old, new, reason):
    records = _records(np.zeros(6, np.float32))
    changed = records["a/data.pkl"].replace(old, new, 1)
    assert changed != records["a/data.pkl"]
    _write_zip(tmp_path / "a.pt", records | {"a/data.pkl": changed})
    _refused(tmp_path / "a.pt", reason)


@settings(max_examples=300, deadline=None)
@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    n_cut=st.sampled_from([0, 0, 1, 30, 700]),
)
def test_damage_anywhere_gives_a_tensor_or_one_sentence(tmp_path_factory, place, value, n_cut):
    path = tmp_path_factory.getbasetemp() / f"{os.getpid()}.pt"
    write_pt(path, bytes(24), "float32", (6,))
    damaged = bytearray(path.read_bytes())
    damaged[int(place * len(damaged))] = value
    path.write_bytes(damaged[: len(damaged) - n_cut])
    try:
        array, _ = read_tensor(path)
        assert array.nbytes < 1 << 20
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "pickled",
    [b"", b"\x80\x02", b".", b"\x80\x02.", b"t.", b"R.", b"Q.", b"q\0.", b"h\1.", b"\x85.", b"X\xff\xff\xff\xff.",
     b"\x8a\xff.", b"r\xff\xff\xff\x7f.", b"ca\nb\n.", b"ca\nb", b"\x80\x05.", b"((((t.", b"K\1K\2R.", b"K\1Q.",
     b"ccollections\nOrderedDict\n)R.", b"\x8c\1a."],
)  # fmt: skip
def test_pickles_that_are_nothing_are_refused(tmp_path, pickled):
    _write_zip(tmp_path / "a.pt", _records(np.zeros(6, np.float32)) | {"a/data.pkl": pickled})
    _refused(tmp_path / "a.pt", "damaged pickle|not a plain tensor")


def test_npy_files_that_are_not_numbers_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)
    _refused(path, "not an .npy file of plain numbers")
    for array in (np.zeros(2, dtype=[("a", "f4")]), np.array(["text"]), np.zeros(2, np.longdouble)):
        np.save(path, array)
        _refused(path, "not an .npy file of plain numbers")
    path.write_bytes(b"")
    _refused(path, "not an .npy file")
    write_npy(path, bytes(24), "float32", (6,))
    path.write_bytes(path.read_bytes()[:-1])
    _refused(path, r"declares float32 of shape \[6\] but contains 23 bytes")
    for shape in ("(1099511627776, 1099511627776)", "(-1, 2)", "'a'", "(" * 3000):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
        path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(8))
        _refused(path, "not an .npy file|declares")


def test_files_of_numpy_are_read_in_either_order(tmp_path):
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((0, 3)),
                  np.float32(3), np.arange(3, dtype=">i4")):  # fmt: skip
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read_tensor(tmp_path / "a.npy")[0], array)


def test_raw_files_that_do_not_say_what_they_are_are_refused(tmp_path):
    for name, reason in (
        ("a.bin", "does not give its type and shape"),
        ("a.bfloat16.2x.bin", "does not give"),
        ("a.evil.2.bin", "'evil' cannot be saved"),
        ("a.bfloat16.3.bin", r"has 4 bytes, but bfloat16 of shape \[3\] has 6"),
        ("a.bfloat16.9999999999999999999x9999999999999999999.bin", "has 4 bytes"),
    ):
        (tmp_path / name).write_bytes(bytes(4))
        _refused(tmp_path / name, reason)


def _refused(path: Path, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        read_tensor(path)
    assert "\n" not in str(caught.value)


def _random(name: str, shape: tuple[int, ...], seed: int) -> tuple[bytes, torch.Tensor]:
    """Random bits of a type, and the tensor of them."""
    dtype = getattr(torch, name)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, n_bytes, dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls complex32 experimental
        if not n_bytes:
            return b"", torch.empty(shape, dtype=dtype)
        return data.tobytes(), torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.untyped_storage().tolist())


def _records(array: np.ndarray) -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save(torch.from_numpy(array), buffer)
    with zipfile.ZipFile(buffer) as archive:
        wanted = ("data.pkl", "byteorder", "data/0", "version", ".format_version")
        return {f"a/{name}": archive.read(f"archive/{name}") for name in wanted}


def _write_zip(path: Path, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
