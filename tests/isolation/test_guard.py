"""Libraries, processes and other users under the guard, and the list of what would have changed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.isolation.forked import in_fork
from tests.isolation.test_shadow_property import snapshot
from tests.isolation.world import World
from windtunnel.isolation.guard import enter_guard
from windtunnel.isolation.shadow import install_shadow, shadow_path


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---- libraries


def test_modules_that_the_script_wrote_are_imported(world):
    def script():
        os.mkdir("package")
        Path("package/__init__.py").write_text("answer = 42")
        sys.path.insert(0, os.getcwd())
        import package

        return package.answer, os.listdir("package")

    assert world.play(script) == (42, ["__init__.py"])


def test_numpy_files(world):
    np.save(world.real / "old.npy", np.zeros(4))

    def script():
        np.save("new.npy", np.arange(3))
        mapped = np.load("old.npy", mmap_mode="r+")
        mapped[0] = 7
        mapped.flush()
        np.memmap("raw", dtype="u1", mode="w+", shape=(5,))[:] = 9
        return np.load("new.npy").tolist(), np.load("old.npy").tolist(), Path("raw").read_bytes()

    assert world.play(script) == ([0, 1, 2], [7.0, 0.0, 0.0, 0.0], b"\t" * 5)


def test_sqlite_databases(world):
    with sqlite3.connect(world.real / "old.db") as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (1)")
    database.close()

    def insert(path, value, **more):
        database = sqlite3.connect(path, **more)
        with database:
            database.execute("create table if not exists t (x)")
            database.execute("insert into t values (?)", (value,))
        found = [x for (x,) in database.execute("select x from t")]
        database.close()
        return found

    def script():
        uri = f"file:{os.getcwd()}/old.db"
        return (
            insert("old.db", 2),
            insert(uri + "?mode=rw", 3, uri=True),
            insert(Path("new.db"), 1),
            insert(":memory:", 5),
        )

    assert world.play(script) == ([1, 2], [1, 2, 3], [1], [5])
    assert [change[:2] for change in world.changes()] == [("written", "new.db"), ("replaced", "old.db")]


def test_a_path_for_a_library_that_opens_files_itself(world):
    def script():
        assert shadow_path("file", for_writing=False) == str(world.real / "file")
        appended = shadow_path("file", for_writing=True)
        fresh = shadow_path(world.real / "old" / "new", for_writing=True)
        emptied = shadow_path("old/one", for_writing=True, is_emptied=True)
        for path in (appended, fresh, emptied):
            subprocess.run(["sh", "-c", 'echo more >> "$0"', path], check=True)
        with pytest.raises(FileNotFoundError, match="no/where"):
            shadow_path("no/where", for_writing=True)
        return [Path(path).read_text() for path in ("file", "old/new", "old/one")], appended

    texts, appended = world.play(script)
    assert texts == ["beforemore\n", "more\n", "more\n"]
    assert appended.startswith(str(world.base / "upper"))
    assert shadow_path("file", for_writing=True) == "file"  # nothing is installed here


# ---- several processes, other users


def _add_line(number):
    for i in range(20):
        os.makedirs(f"shared/{i}", exist_ok=True)
        with open("shared/log", "a") as file:
            file.write(f"{number} {i}\n")
    return sorted(os.listdir("shared"))[:2]


def test_processes_share_what_they_write(world):
    def script():
        with multiprocessing.get_context("fork").Pool(3) as pool:
            seen = pool.map(_add_line, range(3), chunksize=1)
        return seen, len(Path("shared/log").read_text().splitlines()), len(os.listdir("shared"))

    assert world.play(script) == ([["0", "1"]] * 3, 60, 21)


def test_a_process_sees_folders_that_another_removed(world):
    def script():
        assert Path("old/deep/two").exists()  # the folder is known from now on

        def other():
            os.rename("old", "elsewhere")

        child = multiprocessing.get_context("fork").Process(target=other)
        child.start()
        child.join()
        return os.path.exists("old/deep/two"), Path("elsewhere/deep/two").read_bytes()

    assert world.play(script) == (False, b"2" * 50)


def test_permissions_of_the_real_files_are_respected(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    world = World(tmp_path)
    (world.real / "file").chmod(0o444)
    (world.real / "old").chmod(0o555)
    (world.real / "ours").mkdir()
    (world.real / "ours").chmod(0o777)
    (world.base).chmod(0o777)

    def denied(function, *arguments):
        with pytest.raises(PermissionError):
            function(*arguments)
        return True

    def script():
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        enter_guard(world.base, [])
        os.chdir(world.real)
        Path("ours/new").write_text("fine")  # from now on, `real` has a copy that belongs to us
        return [
            denied(open, "file", "a"),
            denied(open, "old/new", "w"),
            denied(os.unlink, "old/one"),
            denied(os.rename, "old/one", "old/other"),
            denied(os.mkdir, "/etc/new"),
            denied(os.chmod, "/etc/passwd", 0o777),
            os.access("old", os.W_OK) is False,
            os.access("ours", os.W_OK) is True,
            Path("ours/new").read_text() == "fine",
        ]

    before = snapshot(world.real)
    assert in_fork(script) == [True] * 9
    assert snapshot(world.real) == before


# ---- the list of changes, the guard


def test_the_list_says_what_would_have_changed(world):
    def script():
        Path("file").write_text("before")  # as it was
        Path("short_lived").touch()
        os.unlink("short_lived")
        Path("new").write_text("12345")
        shutil.rmtree("old/deep")
        os.rename("old/one", "old/renamed")
        Path("part").write_text("new link")
        os.replace("part", "link")

    world.play(script)
    assert world.changes() == [
        ("replaced", "link", 8, 3, None),
        ("written", "new", 5, None, None),
        ("removed", "old/deep", None, 50, None),
        ("moved", "old/renamed", 100, None, "old/one"),
    ]


def test_the_guard_says_what_it_protects(world):
    def script():
        said = enter_guard(world.base, [world.out])
        result = subprocess.run(["rm", "-rf", str(world.real)], capture_output=True, text=True)
        return said, result.returncode, os.environ["TMPDIR"], tempfile.gettempdir()

    before = snapshot(world.real)
    said, code, *folders = in_fork(script)
    assert folders == [str(world.base / "tmp")] * 2
    assert "Python's file functions are redirected" in said
    if "the kernel denies every write" in said:
        assert code != 0
        assert snapshot(world.real) == before


def test_one_process_has_one_shadow(world, tmp_path):
    def script():
        install_shadow(world.base, [world.out])
        with pytest.raises(RuntimeError, match="redirected to"):
            install_shadow(tmp_path / "other", [])
        return True

    assert world.play(script) is True
