"""Loader stubs on a wheel of our own making: what is wanted, what is made, where it is kept, and what is said when not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.capture.mindspore.fake_wheel import ORDER, TRACKER, compile_library, make_wheel
from windtunnel.capture.mindspore.cann import stub_cache as cann_stubs
from windtunnel.capture.mindspore.cann.build import find_compiler
from windtunnel.capture.mindspore.cann.stub_cache import CannStubs, stubs_for
from windtunnel.capture.mindspore.cann.symbols import wanted_from_cann
from windtunnel.errors import NoToolchain

try:
    find_compiler()
except NoToolchain as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="MindSpore's Ascend plugin is a Linux library"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stubs(wheel, cache) -> CannStubs:
    return stubs_for(wheel, cache)


@pytest.fixture
def quick_build(monkeypatch) -> list[Path]:
    """Instead of compiling, put an empty library in place; where it was done is noted."""
    done = []

    def build(wheel: Path, version: str, folder: Path) -> None:
        done.append(folder)
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "libascendcl.so").touch()

    monkeypatch.setattr(cann_stubs, "_build", build)
    return done


# -- what is wanted ------------------------------------------------------------------------------------------


def test_wanted_is_what_the_wheel_lacks_and_what_it_looks_up(wheel):
    wanted = wanted_from_cann(wheel)
    assert wanted.machine == os.uname().machine
    assert wanted.libraries == ("libascendcl.so", "libhccl.so", "libopened.so")
    c_names = [name for name in wanted.symbols if not name.startswith("_Z")]
    assert c_names == [
        "HcclAlsoLookedUp",
        "HcclSend",
        "aclInit",
        "aclnnMatmul",
        "aclrtGetDevice",
        "aclrtGetSocName",
        "aclrtLookedUp",
    ]
    assert "_ZN2ge13StatusFactory8InstanceEv" in wanted.symbols
    assert all("2ge" in name for name in wanted.symbols if name.startswith("_Z"))  # nothing of libstdc++
    assert wanted.cxx11_strings


# -- what is made --------------------------------------------------------------------------------------------


def test_the_plugin_runs_on_the_stubs(stubs, wheel):
    assert _call(stubs, wheel, "print(plugin.step_of_failure())") == "0"


@pytest.mark.parametrize(
    ("chosen", "seen"), [(None, "Ascend910B2"), ("", "Ascend910B2"), ("Ascend910_9391",) * 2]
)
def test_the_chip_is_the_chosen_one(stubs, wheel, chosen, seen):
    code = "plugin.soc.restype = ctypes.c_char_p; print(plugin.soc().decode())"
    assert _call(stubs, wheel, code, **({} if chosen is None else {"WINDTUNNEL_SOC": chosen})) == seen


def test_the_folder_looks_like_cann(stubs):
    assert stubs.folder.name == "cann"
    for cut in (stubs.folder, stubs.folder.parent):  # where MindSpore 2.8 and later cut the path, and 2.7
        assert (cut / "lib64").resolve() == (stubs.folder / "lib").resolve()
    assert stubs.folder.parent.name == "latest"
    names = {path.name for path in (stubs.folder / "lib").iterdir()}
    ours = {"libwindtunnel_marks.so", "libwindtunnel_repairs.so"}
    assert names == {"libascendcl.so", "libhccl.so", "libopened.so"} | ours
    code = "from hccl import sys_version; print(sys_version.__sys_version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **stubs.environment()},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_no_library_asks_for_an_executable_stack(stubs):
    for path in (stubs.folder / "lib").iterdir():
        data = path.read_bytes()
        table, size, count = (
            int.from_bytes(data[32:40], "little"),
            *(int.from_bytes(data[at : at + 2], "little") for at in (54, 56)),
        )
        headers = [data[table + i * size :][:8] for i in range(count)]
        stack = [header[4] for header in headers if header[:4] == (0x6474E551).to_bytes(4, "little")]
        assert stack == [6], path.name  # read and write


def test_the_users_variables_stay_behind_ours(stubs, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert stubs.environment() == {
        "ASCEND_OPP_PATH": f"{stubs.folder}/opp",
        "LD_LIBRARY_PATH": f"{stubs.folder}/lib64:/theirs",
        "LD_PRELOAD": f"{stubs.folder}/lib/libwindtunnel_repairs.so",
        "PYTHONPATH": f"{stubs.folder}/py",
    }
    assert "LD_PRELOAD" not in os.environ


# -- our two libraries ---------------------------------------------------------------------------------------

_MARK = """
marks.windtunnel_tick.restype, tracker.rows.restype = ctypes.c_int64, ctypes.c_char_p
print(marks.windtunnel_state(), marks.windtunnel_tick())
print(marks.windtunnel_mark(b"t", b"n", None), marks.windtunnel_tick(), marks.windtunnel_mark(b"u", b"", b"g"))
print(marks.windtunnel_snapshot(ctypes.c_ulong(3)), marks.windtunnel_dump(ctypes.c_ulong(3)))
print(tracker.rows().decode(), end="")
"""


@pytest.fixture(scope="module")
def tracker(tmp_path_factory) -> Path:
    return compile_library(tmp_path_factory.mktemp("tracker") / "libmindspore_memory_pool.so", TRACKER)


def test_a_mark_is_a_row_of_the_tracker_and_shows_where_its_tick_is(stubs, tracker):
    said = _with_tracker(stubs, tracker, _MARK)
    assert said == [
        "0 -1",
        "0 41 0",
        "0 0",
        "40,t,n,,windtunnel",
        "41,u,,g,windtunnel",
        "blocks 3",
        "tasks 3",
        "dump 3",
    ]


def test_a_tracker_that_is_off_is_left_alone(stubs, tracker):
    assert _with_tracker(stubs, tracker, _MARK, TRACKER_OFF="1") == ["3 -1", "3 -1 3", "3 3"]


def test_a_tracker_of_another_version_is_left_alone(stubs, tmp_path):
    older = compile_library(
        tmp_path / "libmindspore_memory_pool.so", TRACKER, "-DOLDER=1", "-DAddTask=AddATask"
    )
    assert _with_tracker(stubs, older, _MARK) == ["2 -1", "2 -1 2", "2 2"]


def test_marks_without_a_tracker_say_so(stubs):
    code = f"import ctypes; print(ctypes.CDLL({str(stubs.marks)!r}).windtunnel_mark(b'', b'', b''))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"


def test_a_receive_has_no_input_and_is_listed(stubs, tmp_path):
    theirs = compile_library(tmp_path / "libmindspore_backend_common.so", ORDER)
    caller = compile_library(tmp_path / "libcaller.so", ORDER, "-DCALLER", str(theirs), "-Wl,-rpath,$ORIGIN")
    code = f"import ctypes; c = ctypes.CDLL({str(caller)!r}).communicate; print(c(3, 4), c(0, 4), c(3, 0), c(0, 0))"
    environment = {**os.environ, **stubs.environment()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "304 404 303 0\n"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert alone.returncode < 0  # the defect that is repaired


# -- where they are kept -------------------------------------------------------------------------------------


def test_they_are_made_once(stubs, wheel, cache, monkeypatch):
    monkeypatch.setattr(cann_stubs, "_build", None)  # building once more would fail
    assert stubs_for(wheel, cache) == stubs
    assert [path.name for path in cache.iterdir()] == [stubs.folder.parents[1].name]


def test_the_name_says_version_and_machine_and_changes_with_the_wheel(wheel, tmp_path, quick_build):
    first = stubs_for(wheel, tmp_path / "cache")
    assert first.folder.parents[1].name.startswith(f"9.8.7-{os.uname().machine}-")
    other = shutil.copytree(wheel, tmp_path / "other")
    with open(other / "lib" / "plugin" / "libmindspore_ascend.so.2", "ab") as file:
        file.write(b"a nightly build of the same version")
    assert stubs_for(other, tmp_path / "cache").folder != first.folder
    assert len(quick_build) == 2


def test_the_default_place_is_the_users_cache(wheel, tmp_path, monkeypatch, quick_build):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert stubs_for(wheel).folder.parents[2] == tmp_path / "xdg" / "windtunnel" / "cann-stubs"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert stubs_for(wheel).folder.parents[2] == tmp_path / "home" / ".cache" / "windtunnel" / "cann-stubs"


def test_a_build_that_is_interrupted_leaves_nothing(wheel, tmp_path, monkeypatch):
    def interrupted(wheel: Path, version: str, folder: Path) -> None:
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "libascendcl.so").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(cann_stubs, "_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stubs_for(wheel, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_is_removed_when_it_is_old(wheel, tmp_path, quick_build):
    old, fresh = tmp_path / ".building-old", tmp_path / ".building-fresh"
    for folder in (old, fresh):
        (folder / "cann").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    stubs_for(wheel, tmp_path)
    assert not old.exists()
    assert fresh.exists()  # it may be at work


def test_two_at_once_use_what_the_first_made(wheel, tmp_path, monkeypatch, quick_build):
    slow_build = cann_stubs._build

    def overtaken(wheel: Path, version: str, folder: Path) -> None:
        monkeypatch.setattr(cann_stubs, "_build", slow_build)
        first = stubs_for(wheel, tmp_path)  # another process, from start to end
        (first.folder / "first").touch()
        slow_build(wheel, version, folder)

    monkeypatch.setattr(cann_stubs, "_build", overtaken)
    stubs = stubs_for(wheel, tmp_path)
    assert (stubs.folder / "first").exists()
    assert list(tmp_path.iterdir()) == [stubs.folder.parents[1]]


def test_a_cache_that_cannot_be_written_is_replaced_for_this_run(wheel, tmp_path, quick_build):
    (tmp_path / "file").touch()
    remarks: list[str] = []
    stubs = stubs_for(wheel, tmp_path / "file" / "cache", tell=remarks.append)
    assert (stubs.folder / "lib" / "libascendcl.so").exists()
    assert remarks[-1] == (
        f"loader stubs are built for this run only: {tmp_path}/file/cache is not writable (Not a directory)"
    )
    assert stubs_for(wheel, tmp_path / "file" / "cache") == stubs
    assert len(quick_build) == 1


def test_a_wheel_of_another_version_is_tried_with_a_remark(wheel, tmp_path, quick_build):
    remarks: list[str] = []
    stubs_for(wheel, tmp_path, tell=remarks.append)
    assert remarks[0] == "loader stubs were tested with mindspore 2.7.1, 2.8.0, 2.9.0, 2.10.0; this is 9.8.7"


# -- what is said --------------------------------------------------------------------------------------------


def test_no_compiler(wheel, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoToolchain) as caught:
        stubs_for(wheel, tmp_path / "cache")
    assert caught.value.message == (
        "MindSpore's Ascend plugin needs loader stubs, but no C++ compiler was found"
        " (none of c++, g++, clang++ is in PATH)"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_that_is_not_there(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler --sysroot=/x")
    with pytest.raises(NoToolchain, match=r"\$CXX, no-such-compiler, is not in PATH"):
        stubs_for(wheel, tmp_path)


def test_a_compiler_that_fails(wheel, tmp_path, monkeypatch):
    compiler = tmp_path / "cxx"
    compiler.write_text(
        "#!/bin/sh\necho 'note: hm' >&2\necho 'x.cc:1: fatal error: map: No such file' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NoToolchain) as caught:
        stubs_for(wheel, tmp_path / "cache")
    assert str(caught.value) == (
        f"the compiler {compiler} failed on libascendcl.so: x.cc:1: fatal error: map: No such file"
        " (set CXX to a working C++ compiler)"
    )


def test_a_wheel_without_the_plugin(tmp_path):
    (tmp_path / "version.py").write_text("__version__ = '2.10.0'")
    with pytest.raises(NoToolchain, match="has no Ascend plugin"):
        stubs_for(tmp_path, tmp_path / "cache")


def test_a_folder_that_is_no_wheel(tmp_path):
    with pytest.raises(NoToolchain, match="has no version"):
        stubs_for(tmp_path, tmp_path / "cache")


def test_a_plugin_that_cannot_be_loaded_is_found_out_at_once(stubs, wheel, tmp_path, monkeypatch):
    made = stubs.folder / "lib"
    monkeypatch.setattr(
        cann_stubs, "build_stubs", lambda wanted, folder: shutil.copytree(made, folder / "lib")
    )
    other = shutil.copytree(wheel, tmp_path / "mindspore")
    source = 'extern "C" int PyNever_Heard(); extern "C" int use() { return PyNever_Heard(); }'
    compile_library(other / "lib" / "plugin" / "libmindspore_ascend.so.2", source)
    with pytest.raises(NoToolchain, match=r"of mindspore 9\.8\.7 cannot be loaded .* symbol: PyNever_Heard"):
        stubs_for(other, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def _call(stubs: CannStubs, wheel: Path, code: str, **variables: str) -> str:
    plugin = wheel / "lib" / "plugin" / "libmindspore_ascend.so.2"
    code = f"import ctypes; plugin = ctypes.CDLL({str(plugin)!r}); {code}"
    environment = {name: value for name, value in os.environ.items() if name != "WINDTUNNEL_SOC"}
    environment |= stubs.environment() | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.strip()


def _with_tracker(stubs: CannStubs, tracker: Path, code: str, **variables: str) -> list[str]:
    setup = (
        f"import ctypes; tracker = ctypes.CDLL({str(tracker)!r}); marks = ctypes.CDLL({str(stubs.marks)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", setup + code], env=os.environ | variables, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()
