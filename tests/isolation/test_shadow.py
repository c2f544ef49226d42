"""What a script sees when its writes are redirected, and that the disk stays as it was."""

from __future__ import annotations

import errno
import glob
import io
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from os import listdir as listdir_by_another_name
from pathlib import Path

import pytest

from tests.isolation.world import World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---- files


def test_a_new_file_is_read_and_listed(world):
    def script():
        Path("new").write_text("hello")
        return Path("new").read_text(), sorted(os.listdir()), os.path.getsize("new"), os.path.isfile("new")

    assert world.play(script) == ("hello", ["file", "link", "new", "old"], 5, True)
    assert world.changes() == [("written", "new", 5, None, None)]


@pytest.mark.parametrize(
    ("mode", "expected"), [("a", "before!"), ("r+", "!efore"), ("w", "!"), ("a+", "before!")]
)
def test_an_existing_file_is_changed_in_a_copy(world, mode, expected):
    def script():
        os.chmod("file", 0o640)
        with open("file", mode) as file:
            file.write("!")
        return Path("file").read_text(), oct(os.stat("file").st_mode), file.name

    assert world.play(script) == (expected, "0o100640", "file")
    assert world.changes() == [("replaced", "file", len(expected), 6, None)]


def test_errors_are_those_of_a_disk(world):
    def fails(function, *arguments, **more):
        try:
            function(*arguments, **more)
        except OSError as problem:
            return errno.errorcode[problem.errno], problem.filename, problem.filename2
        return "no error"

    def script():
        os.unlink("old/one")
        os.mkdir("made")
        return [
            fails(open, "file", "x"),
            fails(open, "old", "w"),
            fails(open, "old/one"),
            fails(open, "no/where", "w"),
            fails(os.mkdir, "made"),
            fails(os.rmdir, Path("old")),
            fails(os.unlink, b"made"),
            fails(os.rename, "file", "made"),
            fails(os.rename, "made", "made/inside"),
            fails(os.open, "link", os.O_WRONLY | os.O_NOFOLLOW),
            fails(os.listdir, "file"),
            fails(os.link, "old", "other"),
        ]

    assert world.play(script) == [
        ("EEXIST", "file", None),
        ("EISDIR", "old", None),
        ("ENOENT", "old/one", None),
        ("ENOENT", "no/where", None),
        ("EEXIST", "made", None),
        ("ENOTEMPTY", "old", None),
        ("EISDIR", b"made", None),
        ("EISDIR", "file", "made"),
        ("EINVAL", "made", "made/inside"),
        ("EISDIR", "link", None) if sys.platform == "darwin" else ("ELOOP", "link", None),
        ("ENOTDIR", "file", None),
        ("EPERM", "old", "other"),
    ]


def test_attributes_change_in_a_copy(world):
    def script():
        os.chmod("file", 0o600)
        os.utime("file", (5, 6))
        os.truncate("old/one", 3)
        os.chmod("old", 0o700)
        with open("old/deep/two", "rb") as file:
            os.fchmod(file.fileno(), 0o604)
            os.chmod(file.fileno(), 0o604)
            os.utime(file.fileno(), (7, 8))
        infos = [os.stat(path) for path in ("file", "old", "old/deep/two")]
        times = [os.stat(path).st_mtime for path in ("file", "old/deep/two")]
        return [oct(info.st_mode & 0o777) for info in infos], times, os.path.getsize("old/one")

    assert world.play(script) == (["0o600", "0o700", "0o604"], [6, 8], 3)
    assert world.changes() == [("replaced", "old/one", 3, 100, None)]  # attributes alone are not listed


def test_links_are_followed_in_the_shadow(world):
    def script():
        Path("link/new").write_text("through a link")  # link -> old
        os.symlink("old/new", "to_new")
        os.symlink("loop", "loop")
        os.link("file", "second")
        Path("second").write_text("both names")
        assert os.path.samefile("file", "second")
        with pytest.raises(OSError, match="symbolic links"):
            os.stat("loop/x")
        shutil.rmtree("old")
        return (
            Path("file").read_text(),
            os.path.exists("link"),
            os.path.lexists("link"),
            os.readlink("to_new"),
        )

    assert world.play(script) == ("both names", False, True, "old/new")


def test_other_ways_to_open(world):
    def script():
        with io.FileIO("raw", "w") as raw:
            raw.write(b"raw bytes")
            assert isinstance(raw, io.FileIO)
        with open("raw", "rb", buffering=0) as raw:
            assert isinstance(raw, io.FileIO)
            assert not isinstance(raw, io.BufferedReader)
        with open("by_opener", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("x")
        with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:3] = b"MAP"
        os.mkfifo("pipe")
        sender = threading.Thread(target=lambda: Path("pipe").write_text("through the pipe"))
        sender.start()
        received = Path("pipe").read_text()
        sender.join()
        return Path("raw").read_bytes(), Path("file").read_text(), received, oct(os.stat("by_opener").st_mode)

    assert world.play(script) == (b"raw bytes", "MAPore", "through the pipe", "0o100600")


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_file_without_a_name_gets_one(world):
    def script():
        fd = os.open("old", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(fd, b"anonymous")
        os.link(f"/proc/self/fd/{fd}", "old/named", src_dir_fd=0, follow_symlinks=True)
        return Path("old/named").read_bytes()

    assert world.play(script) == b"anonymous"


def test_standard_streams_and_devices_are_left_alone(world):
    def script():
        Path("/dev/null").write_text("gone")
        read, write = os.pipe()
        with open(f"/dev/fd/{write}", "w") as pipe:
            pipe.write("through a descriptor")
        return os.read(read, 100), Path("/proc/self/comm").exists()

    assert world.play(script) == (b"through a descriptor", sys.platform != "darwin")
    assert world.changes() == []


# ---- folders


def test_a_folder_removed_and_made_again_is_empty(world):
    def script():
        shutil.rmtree("old")
        gone = os.path.exists("old/deep/two"), os.listdir()
        os.makedirs("old/deep")
        Path("old/three").write_text("3")
        return gone, sorted(os.listdir("old")), os.listdir("old/deep")

    gone, names, deep = world.play(script)
    assert gone[0] is False
    assert sorted(gone[1]) == ["file", "link"]
    assert (names, deep) == (["deep", "three"], [])
    assert world.changes() == [
        ("removed", "old/deep/two", None, 50, None),
        ("removed", "old/one", None, 100, None),
        ("written", "old/three", 1, None, None),
    ]


def test_an_existing_folder_is_renamed(world):
    def script():
        os.rename("old", "renamed")
        first = sorted(os.listdir("renamed")), Path("renamed/deep/two").read_bytes(), os.path.exists("old")
        os.rename("renamed/deep", "moved_out")
        os.rename("renamed", "again")
        return first, sorted(os.listdir()), Path("moved_out/two").read_bytes()

    first, names, two = world.play(script)
    assert first == (["deep", "one"], b"2" * 50, False)
    assert names == ["again", "file", "link", "moved_out"]
    assert two == b"2" * 50
    assert world.changes() == [
        ("moved", "again", 100, None, "old"),
        ("moved", "moved_out", 50, None, "old/deep"),
    ]


def test_descriptors_of_folders(world):
    def script():
        folder = os.open("old", os.O_RDONLY)
        os.mkdir("sub", dir_fd=folder)
        with open("sub/x", "w", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as file:
            file.write("x")
        os.rename("one", "sub/one", src_dir_fd=folder, dst_dir_fd=folder)
        os.symlink("sub", "to_sub", dir_fd=folder)
        assert os.readlink("to_sub", dir_fd=folder) == "sub"
        assert os.stat("to_sub/one", dir_fd=folder).st_size == 100
        os.unlink("sub/x", dir_fd=folder)
        assert sorted(os.listdir(folder)) == ["deep", "sub", "to_sub"]
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.path, entry.is_dir()) for entry in entries)
        os.fchdir(folder)
        return found, os.getcwd(), os.listdir("sub")

    found, here, names = world.play(script)
    assert found == [("deep", "deep", True), ("sub", "sub", True), ("to_sub", "to_sub", True)]
    assert (here, names) == (str(world.real / "old"), ["one"])


def test_bytes_stay_bytes(world):
    def script():
        os.mkdir(b"new")
        os.symlink(b"new", b"to_new")
        with open(b"new/x", "wb") as file:
            file.write(b"x")
        with os.scandir(b"new") as entries:
            scanned = [(entry.name, entry.path) for entry in entries]
        return os.listdir(b"new"), scanned, os.readlink(b"to_new"), os.getcwdb() == os.fsencode(os.getcwd())

    assert world.play(script) == ([b"x"], [(b"x", b"new/x")], b"new", True)


def test_walks_and_patterns(world):
    def script():
        os.makedirs("new/inner")
        Path("new/inner/x.txt").touch()
        os.unlink("old/one")
        walked = sorted(path for path, _, _ in os.walk("."))
        fd_walked = sorted(path for path, *_ in os.fwalk("."))
        assert walked == fd_walked
        assert sorted(listdir_by_another_name("new")) == ["inner"]
        return walked, glob.glob("**/*.txt", recursive=True), [str(p) for p in Path().rglob("*.txt")]

    walked, globbed, found = world.play(script)
    assert walked == [".", "./new", "./new/inner", "./old", "./old/deep"]
    assert globbed == found == ["new/inner/x.txt"]


def test_pathlib(world):
    def script():
        folder = Path("a/b")
        folder.mkdir(parents=True)
        (folder / "x").touch()
        (folder / "x").rename(folder / "y")
        (folder / "y").chmod(0o600)
        (folder / "z").symlink_to("y")
        assert (folder / "z").samefile(folder / "y")
        assert (folder / "z").resolve() == Path.cwd() / "a/b/y"
        Path("file").replace("a/file")
        Path("old/one").unlink()
        assert not Path("old/one").exists()
        return sorted(str(path) for path in Path("a").glob("*/*")), Path("a/file").read_text()

    assert world.play(script) == (["a/b/y", "a/b/z"], "before")


def test_the_working_folder_may_be_a_new_one(world):
    def script():
        os.mkdir("new")
        os.chdir("new")
        Path("x").write_text("x")
        listed = subprocess.run(["ls"], capture_output=True, text=True, check=True).stdout
        os.chdir("..")
        other = subprocess.run(["ls"], cwd="new", capture_output=True, text=True, check=True).stdout
        return listed, other, os.getcwd(), os.path.abspath("new/x"), os.path.realpath("new/x")

    path = str(world.real / "new/x")
    assert world.play(script) == ("x\n", "x\n", str(world.real), path, path)


def test_shutil_and_tempfile(world):
    def script():
        shutil.copytree("old", "copy", symlinks=True)
        shutil.move("copy/one", "old/deep")
        shutil.move("copy", "old")
        with tempfile.NamedTemporaryFile("w", dir=".", suffix=".part") as file:
            file.write("x")
            assert os.path.basename(file.name) in os.listdir()
        with tempfile.TemporaryDirectory(dir="old") as folder:
            Path(folder, "x").touch()
        with tempfile.NamedTemporaryFile() as file:
            where = file.name
        return sorted(os.listdir()), sorted(os.listdir("old")), sorted(os.listdir("old/deep")), where

    names, old, deep, where = world.play(script)
    assert (names, old, deep) == (["file", "link", "old"], ["copy", "deep", "one"], ["one", "two"])
    assert where.startswith(str(world.base / "tmp"))


def test_allowed_folders_are_real(world):
    def script():
        Path("new").write_text("made here")
        os.replace("new", world.out / "taken")
        Path(world.out / "direct").write_text("direct")
        os.mkdir(world.out / "folder")
        os.rename(world.out / "direct", "brought_back")
        with pytest.raises(OSError, match="busy"):
            os.rmdir(world.out)
        os.symlink(world.out, "to_out")
        Path("to_out/by_link").write_text("x")
        return Path("brought_back").read_text(), sorted(os.listdir())

    assert world.play(script) == ("direct", ["brought_back", "file", "link", "old", "to_out"])
    assert sorted(path.name for path in world.out.iterdir()) == ["by_link", "folder", "taken"]
    assert (world.out / "taken").read_text() == "made here"


def test_a_script_cannot_reach_what_the_shadow_keeps(world):
    def script():
        Path("new").write_text("x")
        seen = os.listdir(world.base), os.path.exists(world.base / "upper")
        shutil.rmtree(world.base, ignore_errors=True)
        return seen, Path("new").read_text()

    assert world.play(script) == ((["tmp"], False), "x")
    assert world.changes() == [("written", "new", 1, None, None)]
