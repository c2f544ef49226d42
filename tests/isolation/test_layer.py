"""The copy-on-write layer, entered for real by forked children: what changes, what is listed, what is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import traceback
from pathlib import Path

import pytest

from windtunnel.errors import UsageError
from windtunnel.isolation import layer as layers
from windtunnel.isolation import offline, user_renames
from windtunnel.isolation.entrance import enter
from windtunnel.isolation.file_changes import FileChange
from windtunnel.isolation.layer import Isolation, check_keep_folder, together
from windtunnel.isolation.true_size import SIMULATED_STORAGE, size_of_file


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with files in it, and an unprotected folder `out`."""
    for name, text in {
        "old.pt": "old",
        "same": "same",
        "mode": "m",
        "gone/a": "aa",
        "gone/deep/b": "bbb",
        "dir/c": "c",
    }.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def isolation(here):
    made = Isolation([here.parent / "out"])
    yield made
    made.remove()


def in_layer(isolation, script):
    """Run a function in a child on the layer; its traceback is the test's."""
    answer, said = os.pipe()
    order = isolation.order()
    child = os.fork()
    if child == 0:
        try:
            state = enter(order)
            if state.kind != "layer":
                os.write(said, b"no layer")
            script()
        except BaseException:
            os.write(said, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(child, 0)
    with os.fdopen(answer) as text:
        problem = text.read()
    if problem == "no layer":
        pytest.skip("this system allows no copy-on-write layer")
    assert problem == ""


def listed(isolation, here):
    return [
        (c.what, str(Path(c.path).relative_to(here)), c.n_bytes, c.n_bytes_before)
        for c in isolation.files().changes
        if Path(c.path).is_relative_to(here)
    ]


def test_every_kind_of_change_is_listed_and_none_is_made(isolation, here):
    def script():
        Path("old.pt").write_text("new and longer")
        Path("new").write_text("four")
        Path("same").write_text("same")
        os.utime("same", ns=(1, os.stat(here.parent / "out").st_mtime_ns))
        os.chmod("mode", 0o600)
        shutil.rmtree("gone")
        Path("short-lived").write_text("x")
        os.remove("short-lived")
        assert sorted(os.listdir(".")) == ["dir", "mode", "new", "old.pt", "same"]
        (here.parent / "out" / "real").write_text("through")

    in_layer(isolation, script)
    assert listed(isolation, here) == [
        ("removed", "gone", None, 5),
        ("metadata", "mode", 1, 1),
        ("written", "new", 4, None),
        ("replaced", "old.pt", 14, 3),
        ("metadata", "same", 4, 4),
    ]
    assert (here.parent / "out" / "real").read_text() == "through"
    assert sorted(os.listdir(here)) == ["dir", "gone", "mode", "old.pt", "same"]
    assert (here / "old.pt").read_text() == "old"
    assert isolation.files().protection == "layer"


def test_a_folder_made_again_hides_what_it_held(isolation, here):
    def script():
        shutil.rmtree("gone")
        os.mkdir("gone")
        Path("gone/new").write_text("n")
        assert os.listdir("gone") == ["new"]

    in_layer(isolation, script)
    assert listed(isolation, here) == [
        ("removed", "gone/a", None, 2), ("removed", "gone/deep", None, 3), ("written", "gone/new", 1, None),
    ]  # fmt: skip


def test_a_folder_can_be_renamed(isolation, here):
    def script():
        os.rename("dir", "other")
        Path("other/more").write_text("more")
        assert Path("other/c").read_text() == "c"
        assert not os.path.exists("dir")

    in_layer(isolation, script)
    found = listed(isolation, here)
    if isolation.files().sentence.endswith("user namespace"):  # where the kernel cannot, it is copied
        assert found == [
            ("removed", "dir", None, 1),
            ("written", "other/c", 1, None),
            ("written", "other/more", 4, None),
        ]
    else:
        assert found == [("moved", "other", 1, None), ("written", "other/more", 4, None)]
        assert isolation.files().changes[0].moved_from == str(here / "dir")


def test_files_that_are_renamed_or_linked_are_reported_with_their_bytes(isolation, here, tmp_path):
    def script():
        os.rename("old.pt", "old.bak")  # and something new takes its name
        Path("old.pt").write_text("newer")
        os.replace("same", "mode")
        os.link("dir/c", "linked")
        assert Path("mode").read_text() == "same"

    in_layer(isolation, script)
    if isolation.files().sentence.endswith("user namespace"):  # files are copied there
        assert listed(isolation, here) == [
            ("written", "linked", 1, None), ("replaced", "mode", 4, 1), ("written", "old.bak", 3, None),
            ("replaced", "old.pt", 5, 3), ("removed", "same", None, 4),
        ]  # fmt: skip
    else:
        assert listed(isolation, here) == [
            ("written", "linked", 1, None), ("moved", "mode", 4, 1), ("moved", "old.bak", 3, None),
            ("replaced", "old.pt", 5, 3),
        ]  # fmt: skip
    isolation.keep(tmp_path / "kept", here)
    kept = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert kept == {"linked": "c", "mode": "same", "old.bak": "old", "old.pt": "newer"}


def test_what_a_moved_folder_held_is_not_told_as_removed(isolation, here):
    def script():
        os.rename("gone", "moved")
        os.mkdir("gone")
        Path("gone/new").write_text("n")

    in_layer(isolation, script)
    if not isolation.files().sentence.endswith("user namespace"):
        assert listed(isolation, here) == [("written", "gone/new", 1, None), ("moved", "moved", 5, None)]


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 42)
        file.seek(1 << 41)
        file.write(SIMULATED_STORAGE.format(number="7.1", n_bytes=1 << 20).encode())
    assert size_of_file(str(tmp_path / "sparse")) == (1 << 42) + (1 << 20)


def test_programs_that_the_script_starts_share_the_layer(isolation, here):
    def script():
        subprocess.run("rm -r gone; echo new > old.pt; cat old.pt > copy", shell=True, check=True)
        assert Path("copy").read_text() == "new\n"

    in_layer(isolation, script)
    assert [row[:2] for row in listed(isolation, here)] == [
        ("written", "copy"), ("removed", "gone"), ("replaced", "old.pt"),
    ]  # fmt: skip
    assert (here / "old.pt").read_text() == "old"


def test_shared_memory_is_protected_too(isolation):
    with_file = Path("/dev/shm") / f"windtunnel-test-{os.getpid()}"
    with_file.write_text("kept")
    try:
        in_layer(isolation, lambda: with_file.write_text("changed"))
        assert with_file.read_text() == "kept"
        changes = {change.path: change for change in isolation.files().changes}
        assert changes[str(with_file)] == FileChange("replaced", str(with_file), 7, 4)
    finally:
        with_file.unlink()


def test_what_was_written_can_be_kept(isolation, here, tmp_path):
    def script():
        Path("old.pt").write_text("new")
        Path("fresh/deep").mkdir(parents=True)
        Path("fresh/deep/file").write_text("f")
        os.symlink("old.pt", "latest")
        os.remove("mode")

    in_layer(isolation, script)
    assert isolation.keep(tmp_path / "kept", here) == 3
    assert (tmp_path / "kept" / "old.pt").read_text() == "new"
    assert (tmp_path / "kept" / "fresh" / "deep" / "file").read_text() == "f"
    assert os.readlink(tmp_path / "kept" / "latest") == "old.pt"
    assert sorted(os.listdir(tmp_path / "kept")) == ["fresh", "latest", "old.pt"]


def test_files_are_kept_in_a_new_folder_only(tmp_path):
    check_keep_folder(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not an empty folder"):
        check_keep_folder(tmp_path)
    with pytest.raises(UsageError, match="is not an empty folder"):
        check_keep_folder(tmp_path / "file")


def test_nothing_of_a_layer_is_left(isolation, here):
    in_layer(isolation, lambda: Path("/dev/shm/windtunnel-test").write_text("x"))
    base = isolation._base
    isolation.remove()
    assert not base.exists()
    assert list(Path("/dev/shm").glob(f"{base.name}*")) == []


def test_what_a_killed_run_left_is_swept_by_the_next(tmp_path, monkeypatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    dead, alive = (tmp_path / f"windtunnel-layer-{pid}-abc" for pid in (gone.pid, os.getpid()))
    for folder in (dead, alive):
        (folder / "1" / "work").mkdir(parents=True)
        (folder / "1" / "work").chmod(0)
    Isolation([]).remove()
    assert not dead.exists()
    assert alive.exists()


def test_a_description_counts_with_the_bytes_it_describes(tmp_path):
    path = tmp_path / "file"
    names = [
        SIMULATED_STORAGE.format(number=f"7.{n}", n_bytes=1 << n) for n in (10, 20, 20)
    ]  # two views of one storage
    path.write_text("pickle" + "and".join(names))
    assert size_of_file(str(path)) == path.stat().st_size + (1 << 10) + (1 << 20)
    long = tmp_path / "long"
    with long.open("wb") as file:  # a name across the border of two blocks
        file.seek((1 << 24) - 9)
        file.write(names[0].encode())
    assert size_of_file(str(long)) == long.stat().st_size + (1 << 10)


def test_thousands_of_files_are_reported_by_their_largest(monkeypatch):
    monkeypatch.setattr(layers, "_MOST_CHANGES", 2)
    changes = tuple(FileChange("written", f"/f{n}", n, None) for n in range(5))
    files = together([layers.Files("layer", "sentence", True, changes)])
    assert [c.path for c in files.changes] == ["/f3", "/f4"]
    assert (files.n_more, files.more_bytes) == (3, 0 + 1 + 2)


def test_compiled_python_is_not_worth_telling():
    changes = (
        FileChange("written", "/a/__pycache__/x.cpython-311.pyc", 5, None),
        FileChange("written", "/a/x", 1, None),
    )
    assert [c.path for c in together([layers.Files("layer", "s", True, changes)]).changes] == ["/a/x"]


def test_the_weakest_protection_of_several_is_reported():
    every = [
        layers.Files("layer", "strong", True, ()),
        layers.Files("guard", "weak", False, (), notes=("n",)),
    ]
    files = together(every)
    assert (files.protection, files.sentence, files.is_network_off, files.notes) == (
        "guard",
        "weak",
        False,
        ("n",),
    )


# -- the network ----------------------------------------------------------------------------------------------


def test_in_the_layer_loopback_is_all_there_is(isolation):
    def script():
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        with pytest.raises(OSError, match="Network is unreachable"):
            socket.create_connection(("192.0.2.1", 80), timeout=5)

    in_layer(isolation, script)
    assert isolation.files().is_network_off


def test_without_a_layer_pythons_sockets_refuse_other_machines():
    child = os.fork()
    if child == 0:
        code = 1
        try:
            offline.cut_sockets()
            with pytest.raises(OSError, match="add --network-access"):
                socket.create_connection(("192.0.2.1", 80))
            with pytest.raises(socket.gaierror, match="add --network-access"):
                socket.getaddrinfo("example.invalid", 80)
            with socket.socket() as s:
                assert s.connect_ex(("192.0.2.1", 80)) == errno.ENETUNREACH
            with socket.create_server(("localhost", 0)) as server:
                socket.create_connection(server.getsockname()).close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_trackers_and_hubs_are_told_to_stay_offline():
    changed = offline.offline_environment({}, is_network_allowed=False)
    assert changed["WANDB_MODE"] == "offline"
    assert changed["HF_HUB_OFFLINE"] == "1"
    assert "MLFLOW_TRACKING_URI" not in changed
    with_server = offline.offline_environment(
        {"MLFLOW_TRACKING_URI": "https://mlflow.invalid"}, is_network_allowed=True
    )
    assert with_server["MLFLOW_TRACKING_URI"] == "file:mlruns"
    assert "HF_HUB_OFFLINE" not in with_server
    assert with_server["WANDB_MODE"] == "offline"


def test_a_tracker_that_is_switched_off_stays_off():
    assert "WANDB_MODE" not in offline.offline_environment(
        {"WANDB_MODE": "disabled"}, is_network_allowed=False
    )
    assert (
        offline.offline_environment({"WANDB_MODE": "online"}, is_network_allowed=True)["WANDB_MODE"]
        == "offline"
    )


# -- renames in a user namespace -------------------------------------------------------------------------------


def test_a_rename_that_the_kernel_refuses_is_a_copy(tmp_path, monkeypatch):
    def refuse(src, dst, **more):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
    user_renames.install()
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("f")
    (tmp_path / "empty").mkdir()
    os.rename(source, tmp_path / "empty")
    assert not source.exists()
    assert (tmp_path / "empty" / "file").read_text() == "f"
    with pytest.raises(OSError, match="Directory not empty"):
        os.replace(_folder(tmp_path / "second"), tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
        os.rename(tmp_path / "file", tmp_path / "other")


def _folder(path):
    path.mkdir()
    return path


def test_a_process_joins_the_view_of_another_and_its_folders(here, isolation):
    """What one process wrote, and a folder that it made, is there for one that comes later; the disk does not change."""
    order = isolation.order()
    ready, is_ready = os.pipe()
    done, is_done = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            enter(order)
            (Path("made")).mkdir()
            Path("made/file").write_text("written")
            os.write(is_ready, b"!")
            os.close(is_done)
            os.read(done, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    os.close(done)
    view = layers.SharedView(order, first, str(here / "made"))
    try:
        shared = view.isolation()

        def later():
            assert Path.cwd() == here / "made"
            assert Path("file").read_text() == "written"
            Path("more").write_text("x")

        in_layer(shared, later)
        assert [Path(change.path).name for change in shared.files().changes if change.what == "written"] == [
            "file",
            "more",
        ]
    finally:
        os.close(is_done)
        os.waitpid(first, 0)
    assert not (here / "made").exists()
