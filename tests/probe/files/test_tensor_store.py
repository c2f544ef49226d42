"""The folder of tensor files: links for what repeats, names that fit, a bounded queue, and no error that escapes."""

from __future__ import annotations

import csv
import os
import resource
import shutil
import signal
import threading
import zipfile

import numpy as np
import pytest
import torch

from windtunnel.errors import UsageError
from windtunnel.probe.files.checksum import crc32
from windtunnel.probe.files.tensor_file import read_tensor
from windtunnel.probe.files.tensor_store import MAPPING_NAME, TensorStore

ONES = np.ones(6, np.float32)


def test_a_saved_tensor_is_loaded_by_torch(tmp_path):
    store = TensorStore(tmp_path / "dump_tensor_data")
    assert not store.path.exists()
    name = store.save("A.0.forward.input.0", memoryview(ONES), "torch.float32", (2, 3))
    assert name == "A.0.forward.input.0.pt"
    assert torch.equal(torch.load(store.path / name, weights_only=True), torch.ones(2, 3))
    assert os.listdir(store.path) == [name]
    assert (store.n_saved, store.n_linked, store.n_lost) == (1, 0, 0)


def test_the_format_may_be_npy_and_what_numpy_lacks_stays_raw(tmp_path):
    store = TensorStore(tmp_path, "npy")
    assert store.save("a", memoryview(ONES), "float32", (6,)) == "a.npy"
    assert store.save("b", memoryview(bytes(4)), "bfloat16", (1, 2)) == "b.bfloat16.1x2.bin"
    assert read_tensor(tmp_path / "a.npy")[0].tolist() == [1.0] * 6
    assert read_tensor(tmp_path / "b.bfloat16.1x2.bin")[0].tolist() == [[0.0, 0.0]]
    with pytest.raises(UsageError, match="choose pt or npy"):
        TensorStore(tmp_path, "zip")


def test_the_same_bytes_again_are_a_link_to_the_first_file(tmp_path):
    store = TensorStore(tmp_path)
    for name in ("a", "b", "c"):
        store.save(name, memoryview(ONES), "float32", (6,), same_as=("key", 1))
    store.save("d", memoryview(ONES), "float32", (2, 3), same_as=("key", 1))  # another shape: another file
    store.save("e", memoryview(ONES), "float32", (6,))  # no key: nothing is assumed
    assert (store.n_saved, store.n_linked) == (3, 2)
    inodes = {name: (tmp_path / f"{name}.pt").stat().st_ino for name in "abcde"}
    assert inodes["a"] == inodes["b"] == inodes["c"]
    assert len(set(inodes.values())) == 3
    for name in "abcde":
        assert torch.load(tmp_path / f"{name}.pt", weights_only=True).sum() == 6


def test_a_link_takes_the_place_of_a_file_and_a_file_that_of_a_link(tmp_path):
    store = TensorStore(tmp_path)
    zeros = np.zeros(6, np.float32)
    store.save("a", memoryview(zeros), "float32", (6,), same_as="zeros")
    store.save("b", memoryview(ONES), "float32", (6,), same_as="ones")
    store.save("b", memoryview(zeros), "float32", (6,), same_as="zeros")
    store.save("a", memoryview(ONES), "float32", (6,))
    assert [read_tensor(tmp_path / name)[0][0] for name in ("a.pt", "b.pt")] == [1.0, 0.0]


def test_a_name_that_was_written_anew_no_longer_stands_for_its_old_bytes(tmp_path):
    store = TensorStore(tmp_path)
    store.save("a", memoryview(ONES), "float32", (6,), same_as="ones")
    store.save("a", memoryview(np.zeros(6, np.float32)), "float32", (6,), same_as="zeros")
    store.save("b", memoryview(ONES), "float32", (6,), same_as="ones")
    assert [read_tensor(tmp_path / name)[0][0] for name in ("a.pt", "b.pt")] == [0.0, 1.0]


def test_without_links_the_bytes_are_written_again(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    stores = [TensorStore(tmp_path / "off", link=False), TensorStore(tmp_path / "refused")]
    monkeypatch.setattr(os, "link", refuse)
    for store in stores:
        for name in ("a", "b"):
            store.save(name, memoryview(ONES), "float32", (6,), same_as="key")
        assert (store.n_saved, store.n_linked, store.n_lost) == (2, 0, 0)
        assert torch.load(store.path / "b.pt", weights_only=True).sum() == 6


def test_a_first_file_that_is_gone_is_written_again(tmp_path):
    store = TensorStore(tmp_path)
    store.save("a", memoryview(ONES), "float32", (6,), same_as="key")
    (tmp_path / "a.pt").unlink()
    store.save("b", memoryview(ONES), "float32", (6,), same_as="key")
    assert torch.load(tmp_path / "b.pt", weights_only=True).sum() == 6


@pytest.mark.parametrize("name", ["x" * 253, "é" * 127, "a/b", "../../etc/passwd", ".hidden", "nul\0byte"])
def test_names_that_do_not_fit_become_digits_and_a_row_of_the_mapping(tmp_path, name):
    store = TensorStore(tmp_path / "data")
    short = store.save(name, memoryview(ONES), "float32", (6,))
    assert len(short) == 32 + len(".pt")
    assert short[:32].isdigit()
    assert store.save(name, memoryview(ONES), "float32", (6,)) == short
    assert sorted(os.listdir(tmp_path / "data")) == sorted([short, MAPPING_NAME])
    assert os.listdir(tmp_path) == ["data"]
    text = (tmp_path / "data" / MAPPING_NAME).read_text()
    rows = list(csv.reader(text.replace("\0", "?").splitlines()))
    assert rows[0] == ["file", "name"]
    expected = (name + ".pt").encode("utf-8", "backslashreplace").decode().replace("\0", "?")
    assert rows[1:] == [[short, expected]]


def test_the_longest_name_that_fits_is_kept(tmp_path):
    store = TensorStore(tmp_path)
    assert store.save("x" * 252, memoryview(ONES), "float32", (6,)) == "x" * 252 + ".pt"
    assert store.save("é" * 126, memoryview(ONES), "float32", (6,)) == "é" * 126 + ".pt"


def test_a_checksum_that_is_known_is_not_computed_again(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("computed")

    known = crc32(ONES)
    monkeypatch.setattr("windtunnel.probe.files.tensor_file.crc32", refuse)
    store = TensorStore(tmp_path)
    store.save("a", memoryview(ONES), "float32", (6,), crc=known)
    assert zipfile.ZipFile(tmp_path / "a.pt").testzip() is None


def test_later_means_all_is_there_after_drain(tmp_path):
    store = TensorStore(tmp_path)
    arrays = [np.full(5, i, np.int64) for i in range(50)]
    names = [store.save_later(f"t{i}", memoryview(array), "int64", (5,)) for i, array in enumerate(arrays)]
    store.drain()
    assert names == [f"t{i}.pt" for i in range(50)]
    assert [int(read_tensor(tmp_path / name)[0][0]) for name in names] == list(range(50))


def test_the_queue_holds_no_more_than_its_bytes(tmp_path, monkeypatch):
    store = TensorStore(tmp_path, queue_bytes=100)
    gate, seen = threading.Event(), []

    def slow(*job):
        gate.wait(10)
        seen.append(job[0])

    store._queue._work = slow
    data = memoryview(bytes(40))
    store.save_later("a", data, "uint8", (40,))
    store.save_later("b", data, "uint8", (40,))
    blocked = threading.Thread(target=store.save_later, args=("c", data, "uint8", (40,)))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()  # 120 bytes would be on their way
    gate.set()
    blocked.join(10)
    store.save_later("large", memoryview(bytes(400)), "uint8", (400,))  # alone, however large
    store.drain()
    assert seen == ["a.pt", "b.pt", "c.pt", "large.pt"]


def test_errors_are_reported_once_and_counted(tmp_path, monkeypatch, caplog):
    store = TensorStore(tmp_path / "data")

    def full(*_):
        raise OSError(28, "No space left on device")

    assert store.save("a", memoryview(ONES), "float32", (6,)) == "a.pt"
    monkeypatch.setattr(os, "writev", full)
    assert store.save("b", memoryview(ONES), "float32", (6,)) is None
    store.save_later("c", memoryview(ONES), "float32", (6,))
    store.drain()
    monkeypatch.undo()
    assert store.save("d", memoryview(ONES), "torch.int4", (6,)) is None
    assert store.save("e", memoryview(ONES), "float32", (7,)) is None
    assert store.save("f", memoryview(ONES), "float32", (6,)) == "f.pt"
    assert (store.n_saved, store.n_lost) == (2, 4)
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert sorted(os.listdir(tmp_path / "data")) == ["a.pt", "f.pt"]


def test_a_folder_removed_meanwhile_is_counted(tmp_path, caplog):
    store = TensorStore(tmp_path / "data")
    store.save("a", memoryview(ONES), "float32", (6,))
    shutil.rmtree(tmp_path / "data")
    assert store.save("b", memoryview(ONES), "float32", (6,)) is None
    assert store.n_lost == 1


def test_a_file_size_limit_leaves_no_half_file(tmp_path, caplog):
    """The kernel's own refusal in the middle of a write, as on a full disk: some bytes are written, then none."""
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = TensorStore(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old_limit[1]))
        assert store.save("large", memoryview(bytes(10_000)), "uint8", (10_000,)) is None
        assert store.save("small", memoryview(ONES), "float32", (6,)) == "small.pt"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert os.listdir(tmp_path) == ["small.pt"]
    assert "File too large" in caplog.text


def test_a_forked_child_writes_nothing(tmp_path):
    store = TensorStore(tmp_path)
    store.save("a", memoryview(ONES), "float32", (6,))
    child = os.fork()
    if child == 0:
        is_silent = store.save("b", memoryview(ONES), "float32", (6,)) is None
        is_silent &= store.save_later("c", memoryview(ONES), "float32", (6,)) is None
        store.drain()
        os._exit(0 if is_silent else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_name_saved_again_is_not_linked_to_for_the_bytes_it_had(tmp_path):
    store = TensorStore(tmp_path)
    one, two = (memoryview(np.full(4, value, np.float32).tobytes()) for value in (1.0, 2.0))
    store.save("a", one, "torch.float32", (4,), same_as="one")
    store.save("b", two, "torch.float32", (4,), same_as="two")
    store.save("a", two, "torch.float32", (4,), same_as="two")  # a has other bytes now
    assert store.save_again("c", "torch.float32", (4,), "one") is None
    store.save("c", one, "torch.float32", (4,), same_as="one")
    assert store.save_again("d", "torch.float32", (4,), "two") == "d.pt"
    values = {name: read_tensor(tmp_path / f"{name}.pt")[0][0] for name in "abcd"}
    assert values == {"a": 2.0, "b": 2.0, "c": 1.0, "d": 2.0}
