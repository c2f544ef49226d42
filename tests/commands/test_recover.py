"""`windtunnel recover`, and readers that do without it: what a killed training left is read to its last call."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.commands.warm import run_warm_python
from tests.probe.dumps import Call, write_dump
from tests.probe.probing import probe
from windtunnel.commands.main import main
from windtunnel.probe.files import recover
from windtunnel.probe.files.journal import JOURNAL_NAME, Journal

PROGRAM = Path(__file__).parents[1] / "probe" / "programs" / "training_until_killed.py"
HEADER = {
    "task": "statistics",
    "level": "mix",
    "framework": "pytorch",
    "dump_data_dir": None,
    "windtunnel": "0.1.0",
}


def call(capsys, *args) -> tuple[int, str, str]:
    code = main(list(map(str, args)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> dict[str, Path]:
    """The same training at level mix, killed in its second step and not."""
    folder = tmp_path_factory.mktemp("trainings")
    for name, more, code in (("killed", [], -9), ("whole", ["on"], 0)):
        done = run_warm_python([PROGRAM, folder / name, "mix", *more])
        assert done.returncode == code, done.stderr
    return {name: folder / name for name in ("killed", "whole")}


@pytest.fixture
def killed(trainings, tmp_path) -> Path:
    shutil.copytree(trainings["killed"], tmp_path / "killed")
    return tmp_path / "killed"


def _files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _step(path: Path, number: int = 1) -> Path:
    (folder,) = (path / f"step{number}").iterdir()
    return folder


DAMAGE = {
    "as it was left": lambda folder: None,
    "without dump.json": lambda folder: (folder / "dump.json").unlink(),
    "with a dump.json that is cut": lambda folder: _cut(folder / "dump.json"),
    "with nothing but its journal": lambda folder: [file.unlink() for file in folder.glob("*.json")],
    "with every file cut": lambda folder: [_cut(file) for file in folder.glob("*.json")],
    "with an empty dump.json": lambda folder: (folder / "dump.json").write_bytes(b""),
}


def _cut(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("damage", DAMAGE)
def test_compare_reads_a_killed_training_in_memory_and_writes_nothing(trainings, killed, capsys, damage):
    DAMAGE[damage](_step(killed))
    before = _files(killed)
    code, out, _ = call(capsys, "compare", trainings["whole"], killed)
    text = " ".join(out.split())
    assert code == 0
    assert text.startswith("Equal: all 64 values agree.")
    assert text.count("journals of 1 interrupted steps; `windtunnel recover") == 1
    assert "B is incomplete: its last entry is Tensor.sum.0.forward" in text
    assert _files(killed) == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_recovered_files_have_everything_up_to_the_kill(trainings, killed, capsys, damage):
    DAMAGE[damage](_step(killed))
    code, out, err = call(capsys, "recover", killed)
    assert (code, err) == (0, "")
    folder, whole = _step(killed), _step(trainings["whole"])
    lines = out.splitlines()
    assert lines[0].startswith("Recovered: ")
    assert lines[0].endswith(" entries from 1 journals; the files now have 7.")
    assert lines[1] == f"  {folder / 'dump.json'}: 7 entries, up to Tensor.sum.0.forward"
    assert lines[-1] == f"next: windtunnel compare {killed} OTHER   (where do the two runs diverge?)"
    found, wanted = (json.loads((path / "dump.json").read_text()) for path in (folder, whole))
    names = [name for name in wanted["data"] if ".forward" in name]
    assert found["data"] == {name: wanted["data"][name] for name in names}
    assert (found["complete"], found["recovered"], found["level"]) == (False, True, "mix")
    construct, other = (json.loads((path / "construct.json").read_text()) for path in (folder, whole))
    assert construct == {name: other[name] for name in names}
    stacks = json.loads((folder / "stack.json").read_text())
    assert sorted(name for names, _ in stacks.values() for name in names) == sorted(names)
    assert not (folder / JOURNAL_NAME).exists()
    # Complete files are as they were, to the byte.
    assert _files(killed / "step0") == _files(trainings["killed"] / "step0")

    code, out, _ = call(
        capsys, "compare", trainings["whole"], killed
    )  # and it is known that the step did not end
    assert code == 0
    assert "journals" not in out
    code, out, _ = call(capsys, "recover", killed)
    assert (code, out.splitlines()[0]) == (
        0,
        f"Nothing to recover: the files in {killed} are complete (2 folders).",
    )


def test_dump_json_may_be_named_though_it_was_never_written(trainings, killed, capsys):
    folder = _step(killed)
    (folder / "dump.json").unlink()
    assert call(capsys, "compare", _step(trainings["whole"]) / "dump.json", folder / "dump.json")[0] == 0


def test_points_of_a_killed_training_are_recovered(tmp_path, capsys):
    done = run_warm_python([PROGRAM, tmp_path / "d", "debug"])
    assert done.returncode == -9, done.stderr
    folder = _step(tmp_path / "d")
    (folder / "debug.json").unlink()
    assert call(capsys, "recover", tmp_path / "d")[0] == 0
    assert list(json.loads((folder / "debug.json").read_text())["data"]) == ["input.0.debug"]
    assert sorted(file.name for file in folder.glob("*.json")) == ["debug.json"]


def test_a_killed_bench_path_is_read_too(tmp_path, caplog):
    probe(tmp_path / "bench", lambda: torch.relu(torch.ones(3)), task="statistics", summary_mode="md5")
    (step,) = (tmp_path / "bench" / "dump" / "step0").iterdir()
    data = json.loads((step / "dump.json").read_text())["data"]
    for file in step.glob("*.json"):
        file.unlink()
    journal = Journal(step)
    journal.write(f'["header", "dump.json", {json.dumps(HEADER)}]\n'.encode())
    for name, body in data.items():
        journal.write(f'["entry", {json.dumps(name)}, {json.dumps(body)}]\n'.encode())
    journal.close()
    probe(
        tmp_path / "run",
        lambda: torch.relu(torch.ones(3)),
        task="tensor",
        bench_path=str(tmp_path / "bench" / "dump"),
    )
    told = [record.getMessage() for record in caplog.records]
    assert any("is incomplete: 1 of its 1 entries were read from its journal" in message for message in told)
    assert not any("cannot be compared with" in message for message in told)


def test_json_says_what_was_done_with_every_folder(killed, capsys):
    code, out, _ = call(capsys, "recover", killed, "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["directory"]) == (0, 1, str(killed))
    (found,) = document["recovered"]
    assert (found["folder"], found["file"], found["entries"]) == (str(_step(killed)), "dump.json", 7)
    assert found["last_entry"] == "Tensor.sum.0.forward"
    assert 0 <= found["entries_from_journal"] <= 7
    assert document["complete"] == [str(_step(killed, 0))]
    assert (document["being_written"], document["not_recovered"]) == ([], [])


def test_a_complete_file_beside_a_journal_is_not_written_again(tmp_path, capsys):
    folder = write_dump(tmp_path / "step0" / "rank0", [Call("Torch.relu.0.forward")])
    before = (folder / "dump.json").read_bytes()
    journal = Journal(folder)
    journal.write(
        f'["header", "dump.json", {json.dumps(HEADER)}]\n["entry", "Torch.other.0.forward", {{}}]\n'.encode()
    )
    journal.close()
    code, out, _ = call(capsys, "recover", tmp_path)
    assert (code, out.splitlines()[0]) == (
        0,
        f"Nothing to recover: the files in {tmp_path} are complete (1 folders).",
    )
    assert (folder / "dump.json").read_bytes() == before
    assert not (folder / JOURNAL_NAME).exists()


def test_what_a_running_process_writes_is_left_alone(tmp_path, capsys):
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    journal = Journal(folder)
    journal.write(
        f'["header", "dump.json", {json.dumps(HEADER)}]\n["entry", "Torch.relu.0.forward", {{}}]\n'.encode()
    )
    code, out, _ = call(capsys, "recover", tmp_path)
    assert (code, out.splitlines()[0]) == (
        0,
        f"Skipped: 1 folders that a running process is writing to ({folder}).",
    )
    assert [file.name for file in folder.iterdir()] == [JOURNAL_NAME]
    _, out, _ = call(capsys, "compare", tmp_path, tmp_path)
    assert "Note: A is still being written: only what it has so far was compared." in " ".join(out.split())
    journal.close()


def _refused(capsys, path: Path) -> str:
    code, out, err = call(capsys, "recover", path)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


def test_a_folder_that_is_not_there_or_holds_no_dump(tmp_path, capsys):
    assert f"windtunnel: {tmp_path / 'no'} does not exist\n" in _refused(capsys, tmp_path / "no")
    assert f"{tmp_path} contains no dump" in _refused(capsys, tmp_path)


def test_a_dump_that_was_cut_and_has_no_journal_cannot_be_recovered(killed, capsys):
    folder = _step(killed)
    (folder / JOURNAL_NAME).unlink()
    _cut(folder / "dump.json")
    before = _files(killed)
    assert _refused(capsys, killed) == (
        f"windtunnel: cannot recover {folder}: it is truncated, and there is no readable journal in the same folder\n"
        "  next: dump it again\n"
    )
    assert _files(killed) == before


def test_a_folder_that_cannot_be_written(killed, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(recover, "replace_file", refuse)
    before = _files(killed)
    assert _refused(capsys, killed) == (
        f"windtunnel: cannot write to {_step(killed)}: Read-only file system; its journal is unchanged\n"
        "  next: make it writable, or recover a copy of the dump\n"
    )
    assert _files(killed) == before
