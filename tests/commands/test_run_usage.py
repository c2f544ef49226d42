"""What a wrong command line gets: exit code 2, one sentence, the next step, and nothing touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.cli import windtunnel
from windtunnel import frameworks
from windtunnel.capture.script_check import check_script
from windtunnel.commands.command_line import parser_of, with_known_options
from windtunnel.commands.main import main
from windtunnel.commands.run import read_request
from windtunnel.session.run_folder import prepare_folder

GOOD = "print('ran')\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "MS_SIMULATION_LEVEL",
        "RANK_ID",
        "RANK_SIZE",
        "RANK",
        "WORLD_SIZE",
        "PYTORCH_CUDA_ALLOC_CONF",
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(GOOD)
    return tmp_path


def _refused(capsys, *args):
    """Run; return the sentence and the next step of a refusal."""
    try:
        code = main(["run", *args])
    except SystemExit as exit:
        code = exit.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    *usage, sentence, hint = captured.err.splitlines()
    assert all(line.startswith("usage: windtunnel run [options] script.py") for line in usage)
    assert sentence.startswith("windtunnel: ")
    assert hint.startswith("  next: ")
    return sentence.removeprefix("windtunnel: "), hint.removeprefix("  next: ")


@pytest.mark.parametrize(
    ("args", "sentence", "hint"),
    [
        ("nowhere.py", "script nowhere.py does not exist", "check the path"),
        (".", ". is a folder", "pass a script in it"),
        ("--device a1000 train.py", "there is no device called 'a1000'", "nearest: a100"),
        ("--device a100:mem=abc train.py", "cannot read 'abc' as a size", '"512MiB"'),
        ("--device a100:colour=red train.py", "cannot read 'colour=red'", "NAME:mem=40GiB"),
        ("--device mine.toml train.py", "cannot read the device file mine.toml", ""),
        ("--level high train.py", "argument --level: invalid int value: 'high'", "windtunnel run --help"),
        ("--level 7 train.py", "unknown level 7", "use 0 (does it run), 1 (memory), 2 (memory with workspaces) or 3 (time)"),
        ("--steps 0 train.py", "steps is 0", "--steps 3"),
        ("--jobs 0 train.py", "jobs is 0", "--jobs"),
        ("--allocator cud train.py", "there is no allocator 'cud'", "cuda"),
        ("--allocator cuda:max_splt_size_mb=5 train.py", "unknown allocator option 'max_splt", "max_split"),
        ("--allocator cuda:max_split_size_mb train.py", "cannot read 'max_split_size_mb'", "NAME:key=value"),
        ("--world-size 0 train.py", "the world size is 0", "--world-size 8"),
        ("--world-size 8 --rank 9 train.py", "there is no rank 9: world size 8 has ranks 0 to 7", "10 "),
        ("--world-size 8 --rank -1 train.py", "there is no rank -1", "from 0"),
        ("--world-size 8 --ranks 0-x train.py", "cannot read --ranks '0-x'", "0,3,8-15"),
        ("--world-size 8 --ranks 5-2 train.py", "cannot read --ranks '5-2'", "0,3,8-15"),
        ("--world-size 8 --ranks , train.py", "cannot read --ranks ','", "0,3,8-15"),
        ("--world-size 12 --nproc-per-node 8 train.py", "world size 12 is not a multiple of", "--nproc"),
        ("--nnodes 2 train.py", "--nnodes 2 needs the number of devices per machine", "--nproc-per-node 8"),
        ("--nnodes 0 --nproc-per-node 8 train.py", "--nnodes is 0, but a job needs at least 1 machine", "--nnodes 2"),
        ("--nnodes 2 --nproc-per-node 8 --world-size 8 train.py", "world size 8 is not 2 machines with 8", "--world-size"),
        ("--nnodes 3 --world-size 8 train.py", "world size 8 is not a multiple of the 3 machines", "--nnodes"),
        ("--rank 0 --ranks all train.py", "argument --ranks: not allowed with", "--help"),
        ("-m no_such_module", "module 'no_such_module' does not exist", "python -m"),
        ("-m json.no_such_part", "module 'json.no_such_part' does not exist", "python -m"),
        ("", "the following arguments are required: script", "windtunnel run --help"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(here, capsys, args, sentence, hint):
    said, next_step = _refused(capsys, *args.split())
    assert said.startswith(sentence)
    assert hint in next_step
    assert sorted(p.name for p in here.iterdir()) == ["train.py"]  # not even an output folder was made


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x7fELF\x02\x01\x00\x00", "bad.py is not "),
        (b"Dear reader,\nthis is prose.\n", "bad.py is not valid Python at line 1: "),
        (b"x = 1\ndef f(:\n    pass\n", "bad.py is not valid Python at line 2: "),
    ],
    ids=["binary", "text", "syntax"],
)
def test_what_is_not_python_is_refused(here, capsys, content, sentence):
    (here / "bad.py").write_bytes(content)
    said, hint = _refused(capsys, "bad.py")
    assert said.startswith(sentence)
    assert "Traceback" not in said
    assert "train.py" in hint


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x = 'größe'\n", "line 1: the byte 0xf6 is not utf-8, and it declares no encoding"),
        ("x = 1\n# größe\n", "line 2: the byte 0xf6 is not utf-8, and it declares no encoding"),
        ("# coding: ascii\n\n# größe\n", "line 3: the byte 0xf6 is not ascii, and it declares ascii"),
    ],
)
def test_bytes_that_python_refuses_are_refused(here, capsys, content, sentence):
    (here / "bad.py").write_bytes(content.encode("latin-1"))
    said, hint = _refused(capsys, "bad.py")
    assert said == f"bad.py is not valid Python at {sentence}"
    assert "# -*- coding: latin-1 -*-" in hint


@pytest.mark.parametrize(
    "first", ["# -*- coding: latin-1 -*-", "#!/usr/bin/python\n# vim: set fileencoding=latin-1 :"]
)
def test_a_script_that_declares_its_encoding_is_accepted(here, first):
    (here / "good.py").write_bytes(f"{first}\nx = 'größe'\n".encode("latin-1"))
    check_script(here / "good.py")


@pytest.mark.parametrize(
    ("args", "world_size", "per_node"),
    [
        ("", 1, 1),
        ("--nproc-per-node 8", 8, 8),
        ("--nnodes 2 --nproc-per-node 8", 16, 8),
        ("--nnodes 2 --nproc_per_node 8 --world-size 16", 16, 8),
        ("--nnodes 4 --world-size 16", 16, 4),
        ("--world-size 16", 16, 8),
        ("--world-size 16 --nproc-per-node 4", 16, 4),
    ],
)
def test_the_size_of_a_job_is_read_as_torchrun_reads_it(here, args, world_size, per_node):
    parser, verbs = parser_of(["run"])
    argv = with_known_options([*args.split(), "train.py"], verbs["run"])
    request = read_request(parser.parse_args(["run", *argv]))
    assert (request.world_size, request.nproc_per_node) == (world_size, per_node)
    assert request.is_launched == bool(args)


def test_the_world_size_of_a_launcher_is_kept_beside_the_cards_of_a_machine(here, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    parser, _ = parser_of(["run"])
    request = read_request(parser.parse_args(["run", "--nproc-per-node", "4", "train.py"]))
    assert (request.world_size, request.nproc_per_node) == (8, 4)
    request = read_request(parser.parse_args(["run", "--nproc-per-node", "4", "--nnodes", "3", "train.py"]))
    assert (request.world_size, request.nproc_per_node) == (12, 4)


def test_a_missing_torch_is_reported_before_anything_is_touched(here, capsys, monkeypatch):
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None)
    assert _refused(capsys, "train.py") == (
        "torch is not installed in this Python",
        "pip install 'windtunnel[torch]'",
    )
    assert sorted(p.name for p in here.iterdir()) == ["train.py"]


def test_two_runs_do_not_share_a_folder(here, capsys):
    with prepare_folder(here / "out", force=False):
        for force in ([], ["--force"]):
            said, _ = _refused(capsys, "--out", "out", *force, "train.py")
            assert said == f"--out out is in use by another run, process {os.getpid()}"
    assert list((here / "out").iterdir()) == []


def test_a_lock_of_a_process_that_died_blocks_nobody(here):
    died = (
        "import os, signal; from pathlib import Path; from windtunnel.session.run_folder import prepare_folder;"
        "prepare_folder(Path('out'), force=False); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", died], check=False).returncode == -signal.SIGKILL
    assert [path.name for path in Path("out").iterdir()] == [".windtunnel-lock"]
    with prepare_folder(Path("out"), force=False):
        assert Path("out/.windtunnel-lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_is_locked_until_the_process_ends_for_a_caller_that_does_not_release_it(here):
    ends = (
        "from pathlib import Path; from windtunnel.session.run_folder import prepare_folder;"
        "prepare_folder(Path('out'), force=False); print(Path('out/.windtunnel-lock').exists())"
    )
    done = subprocess.run([sys.executable, "-c", ends], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MS_SIMULATION_LEVEL", "4", "unknown level 4"),
        ("RANK_SIZE", "many", "the environment variable RANK_SIZE is 'many', not a number"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable:True", "unknown allocator option 'expandable'"),
    ],
)
def test_a_wrong_environment_is_refused(here, capsys, monkeypatch, name, value, sentence):
    monkeypatch.setenv(name, value)
    assert _refused(capsys, "train.py")[0].startswith(sentence)


def test_a_folder_that_cannot_be_written_is_refused(here, capsys):
    (here / "file").write_text("mine")
    assert _refused(capsys, "--out", "file", "train.py")[0] == "--out file is a file"
    assert _refused(capsys, "--out", "file/below", "train.py")[0].startswith(
        "cannot write to --out file/below"
    )
    assert _refused(capsys, "--out", "/proc/windtunnel", "train.py")[0].startswith(
        "cannot write to --out /proc"
    )
    assert (here / "file").read_text() == "mine"


def test_a_folder_in_use_is_refused_and_left_alone(here, capsys):
    (here / "out").mkdir()
    (here / "out" / "thesis.txt").write_text("mine")
    said, hint = _refused(capsys, "--out", "out", "train.py")
    assert said == "--out out is not empty"
    assert "--force" in hint
    assert [p.name for p in (here / "out").iterdir()] == ["thesis.txt"]


def test_no_refusal_reaches_a_user_as_a_traceback(here):
    """Once through a real process: the others call `main` for speed."""
    done = windtunnel("run", "--device", "a1000", "train.py", cwd=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "windtunnel: there is no device called 'a1000'"
    assert len(done.stderr.splitlines()) == 2
