"""Random sequences of file operations do the same on the disk and in the shadow, which leaves the disk alone."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.isolation.forked import in_fork
from windtunnel.isolation.guard import enter_guard

NAMES = ("a", "b", "f", "to_a", "to_f", "nowhere")


def write(path: str, _: str) -> int:
    with open(path, "w") as file:
        return file.write(f"written to {path}")


def append(path: str, _: str) -> int:
    with open(path, "ab") as file:
        file.write(b"more")
        return file.tell()


def update(path: str, _: str) -> bytes:
    with open(path, "r+b") as file:
        file.write(b"x")
        return file.read()


def make_new(path: str, _: str) -> None:
    with open(path, "x"):
        pass


def read(path: str, _: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def describe(path: str, _: str) -> tuple[int, int]:
    info = os.stat(path)
    return stat.S_IFMT(info.st_mode), 0 if stat.S_ISDIR(info.st_mode) else info.st_size


def ask(path: str, _: str) -> tuple[bool, ...]:
    tests = (os.path.exists, os.path.lexists, os.path.isfile, os.path.isdir, os.path.islink)
    return (*(test(path) for test in tests), os.access(path, os.R_OK))


def list_sorted(path: str, _: str) -> list[str]:
    return sorted(os.listdir(path))


def scan(path: str, _: str) -> list[tuple[str, bool, bool, bool]]:
    with os.scandir(path) as entries:
        return sorted((e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in entries)


def make_link(path: str, other: str) -> None:
    os.symlink(other, path)


def enter(path: str, _: str) -> None:
    here = os.getcwd()
    os.chdir(path)
    with open("here", "w") as file:
        file.write("x")
    os.chdir(here)


def copy_tree(path: str, other: str) -> None:
    if not os.path.realpath(other).startswith(os.path.realpath(path)):  # or it copies its own copy
        shutil.copytree(path, other, symlinks=True, dirs_exist_ok=True)


OPERATIONS: tuple[Callable[[str, str], Any], ...] = (
    write,
    append,
    update,
    make_new,
    read,
    describe,
    ask,
    list_sorted,
    scan,
    make_link,
    enter,
    copy_tree,
    lambda path, _: os.mkdir(path),
    lambda path, _: os.makedirs(path, exist_ok=True),
    lambda path, _: os.rmdir(path),
    lambda path, _: os.unlink(path),
    lambda path, _: os.truncate(path, 2),
    lambda path, _: os.chmod(path, 0o700),
    lambda path, _: os.utime(path, (1, 2)),
    lambda path, _: os.readlink(path),
    lambda path, _: shutil.rmtree(path),
    lambda path, _: Path(path).touch(),
    lambda path, other: os.rename(path, other),
    lambda path, other: os.replace(path, other),
    lambda path, other: os.link(path, other),
    lambda path, other: str(shutil.copy(path, other)),
    lambda path, other: str(shutil.move(path, other)),
)

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
slashes = st.sampled_from(["", "", "", "", "/"])
steps = st.tuples(st.integers(0, len(OPERATIONS) - 1), st.builds(str.__add__, paths, slashes), paths)


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
def test_the_shadow_behaves_as_the_disk(sequence):
    with tempfile.TemporaryDirectory() as folder:
        on_disk, shadowed, base = (Path(folder) / name for name in ("disk", "real", "base"))
        for tree in (on_disk, shadowed):
            make_tree(tree)
        base.mkdir()
        before = snapshot(shadowed)

        expected, got = in_fork(play_twice, sequence, on_disk, shadowed, base)

        assert got == expected
        assert snapshot(shadowed) == before


def make_tree(root: Path) -> None:
    """Files and folders of the names that the operations use, three levels deep."""
    for folder in (root, root / "a", root / "a/b", root / "b"):
        folder.mkdir()
        (folder / "f").write_text(f"{folder.relative_to(root)} of old")
    (root / "b/f").unlink()  # an empty folder
    (root / "to_a").symlink_to("a")
    (root / "to_f").symlink_to(root.resolve() / "a/f")
    (root / "nowhere").symlink_to("not/there")
    for path in root.rglob("*"):
        os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)


def play_twice(sequence, on_disk: Path, shadowed: Path, base: Path):
    expected = play(sequence, on_disk)
    enter_guard(base, [])  # the kernel denies what the shadow misses: the two results then differ
    return expected, play(sequence, shadowed)


def play(sequence, root: Path) -> tuple[list[tuple], dict]:
    """What each operation returned or raised, and what is seen in the end."""
    os.chdir(root)
    results: list[tuple] = []
    for number, path, other in sequence:
        try:
            results.append((number, path, OPERATIONS[number](path, other)))
        except shutil.Error as problem:
            results.append((number, path, sorted(source for source, *_ in problem.args[0])))
        except OSError as problem:
            results.append((number, path, type(problem).__name__, problem.errno, problem.filename or path))
    seen = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            held = os.readlink(path) if os.path.islink(path) else None
            if stat.S_ISREG(info.st_mode):
                held = Path(path).read_bytes()
            times = info.st_mtime if info.st_mtime == 2 else None
            seen[os.path.relpath(path, root)] = stat.filemode(info.st_mode), held, times
    return eval(repr((results, seen)).replace(str(root), "root"))  # which differs between the two


def snapshot(root: Path) -> dict:
    """Everything about a real tree that a run could change."""
    found = {}
    for path in (root, *sorted(root.rglob("*"))):
        info = path.lstat()
        held = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = info.st_mode, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_nlink, held
    return found
