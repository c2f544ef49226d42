"""The files of one step: their shape, their order, and what happens when the disk does not play along."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from windtunnel import whole_file
from windtunnel.probe.files.step_writer import StepWriter, claim_folder, journal_entries

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "msprobe"
HEADER = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
FRAMES = ("File /a.py, line 3, in forward, \n x = relu(x)", "File /b.py, line 9, in <module>, \n net(x)")


def test_a_new_folder_has_valid_files_at_once(tmp_path):
    StepWriter(tmp_path / "step0" / "rank0", header=HEADER)
    files = _read(tmp_path / "step0" / "rank0")
    assert files["dump.json"] == HEADER | {"complete": False, "data": {}}
    assert files["stack.json"] == files["construct.json"] == {}


def test_a_call_is_in_all_three_files_after_close(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_call("A.forward", '{"output": [1]}', FRAMES, "M.forward.0", True)
    folder.add_call("B.forward", '{"output": [2]}', FRAMES, None, True)
    folder.add_call("A.backward", '{"input": []}')
    folder.close()
    files = _read(tmp_path)
    assert list(files["dump.json"]) == [*HEADER, "complete", "data"]
    assert files["dump.json"]["complete"] is True
    data = {"A.forward": {"output": [1]}, "B.forward": {"output": [2]}, "A.backward": {"input": []}}
    assert files["dump.json"]["data"] == data
    assert files["stack.json"] == {"0": [["A.forward", "B.forward"], list(FRAMES)]}
    assert files["construct.json"] == {"A.forward": "M.forward.0", "B.forward": None}
    assert sorted(os.listdir(tmp_path)) == ["construct.json", "dump.json", "stack.json"]


def test_three_small_adds_are_the_same_as_one_call(tmp_path):
    one, three = (StepWriter(tmp_path / name, header=HEADER) for name in ("one", "three"))
    one.add_call("A", "{}", FRAMES, "P", True)
    three.add_entry("A", "{}")
    three.add_stack("A", FRAMES)
    three.add_parent("A", "P")
    for folder in (one, three):
        folder.close()
    assert _read(tmp_path / "one") == _read(tmp_path / "three")


@pytest.mark.skipif(not SAMPLES.exists(), reason="needs the sample dumps of msProbe")
@pytest.mark.parametrize(
    "sample",
    ["torch_mix_tensor_statistics", "torch_L1_statistics_statistics", "torch_debug_tensor_statistics"],
)
def test_a_real_dump_of_msprobe_written_by_us_reads_the_same(tmp_path, sample):
    source = SAMPLES / sample / "step0" / "proc4242"
    theirs = _read(source)
    name = "debug.json" if "debug" in sample else "dump.json"
    header = {key: value for key, value in theirs[name].items() if key != "data"}
    folder = StepWriter(tmp_path, header=header, file_name=name, extra_info="stack.json" in theirs)
    frames_of = {
        name: tuple(frames) for names, frames in theirs.get("stack.json", {}).values() for name in names
    }
    parents = theirs.get("construct.json", {})
    for entry, body in theirs[name]["data"].items():
        folder.add_call(entry, json.dumps(body), frames_of.get(entry), parents.get(entry), entry in parents)
    for entry in parents.keys() - theirs[name]["data"].keys():
        folder.add_parent(entry, parents[entry])
    folder.close()
    ours = _read(tmp_path)
    assert ours[name].pop("complete") is True
    assert ours.keys() == theirs.keys()
    assert ours[name] == theirs[name]
    assert list(ours[name]["data"]) == list(theirs[name]["data"])
    assert ours.get("construct.json") == theirs.get("construct.json")
    assert _stacks(ours) == _stacks(theirs)


def test_the_same_name_again_replaces_the_entry_in_its_place(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    for name, value in (("A", 1), ("B", 2), ("A", 3)):
        folder.add_entry(name, str(value))
    folder.close()
    assert list(_read(tmp_path)["dump.json"]["data"].items()) == [("A", 3), ("B", 2)]


def test_without_extra_info_there_is_one_file(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER, extra_info=False)
    folder.add_call("A", "{}", FRAMES, "P", True)
    assert [kind for kind, _, _ in journal_entries(tmp_path)] == ["entry"]
    folder.close()
    assert os.listdir(tmp_path) == ["dump.json"]


def test_one_line_per_entry_whatever_the_text_is(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry('quo"te\n\u00e9\udcff', '{"a":\n "\u00e9\udcff"}')
    folder.close()
    lines = (tmp_path / "dump.json").read_text().splitlines()
    assert len(lines) == len(HEADER) + 1 + 5  # brace, data, the entry, two braces
    assert json.loads((tmp_path / "dump.json").read_text())["data"] == {
        'quo"te\n\u00e9\udcff': {"a": "\u00e9\udcff"}
    }


def test_strict_json_spells_what_is_not_finite_as_strings(tmp_path):
    body = '{"Max": NaN, "Min": -Infinity, "x": [Infinity, 1], "text": "NaN \\" Infinity"}'
    for is_strict, name in ((True, "strict"), (False, "as msprobe")):
        folder = StepWriter(tmp_path / name, header=HEADER, strict_json=is_strict)
        folder.add_entry("A", body)
        folder.close()

    def refuse(word):
        raise AssertionError(word)

    text = (tmp_path / "strict" / "dump.json").read_text()
    entry = json.loads(text, parse_constant=refuse)["data"]["A"]
    assert entry == {"Max": "NaN", "Min": "-Infinity", "x": ["Infinity", 1], "text": 'NaN " Infinity'}
    assert '"Max": NaN, "Min": -Infinity' in (tmp_path / "as msprobe" / "dump.json").read_text()


def test_flush_brings_the_files_up_to_date_and_keeps_the_journal(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry("A", "1")
    assert _read(tmp_path)["dump.json"]["data"] == {}
    folder.flush()
    assert _read(tmp_path)["dump.json"] == HEADER | {"complete": False, "data": {"A": 1}}
    assert list(journal_entries(tmp_path)) == [("entry", "A", "1")]


def test_files_are_flushed_by_themselves_after_a_while(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER, flush_seconds=0.0)
    n_added = 0
    deadline = time.monotonic() + 300
    while not _read(tmp_path)["dump.json"]["data"] and time.monotonic() < deadline:
        folder.add_entry(f"A{n_added}", "1")
        n_added += 1
    assert 0 < len(_read(tmp_path)["dump.json"]["data"]) <= n_added


def test_rewriting_all_files_takes_a_bounded_share_of_the_time(tmp_path, monkeypatch):
    now, spent = [0.0], [0.0]

    def slow_replace(folder, name, parts):
        cost = 1e-3 * sum(map(len, parts))  # in proportion to what is written
        now[0] += cost
        spent[0] += cost

    monkeypatch.setattr("windtunnel.probe.files.step_writer.replace_file", slow_replace)
    monkeypatch.setattr("windtunnel.probe.files.step_writer.time.monotonic", lambda: now[0])
    folder = StepWriter(tmp_path, header=HEADER, flush_seconds=0.0)
    for i in range(20_000):
        folder.add_entry(f"A{i}", "1")
        now[0] += 0.1
    assert 0 < spent[0] <= 0.06 * now[0]


def test_calls_from_many_threads_are_all_there(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER, flush_seconds=0.001)

    def work(thread: int) -> None:
        for i in range(200):
            folder.add_call(f"{thread}.{i}", f"[{thread}, {i}]", (f"frame {thread}",), None, True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.close()
    files = _read(tmp_path)
    assert files["dump.json"]["data"] == {f"{t}.{i}": [t, i] for t in range(4) for i in range(200)}
    assert len(files["construct.json"]) == 800
    assert sorted(len(names) for names, _ in files["stack.json"].values()) == [200] * 4


def test_a_forked_child_writes_nothing(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry("parent", "1")
    child = os.fork()
    if child == 0:
        try:
            folder.add_entry("child", "2")
            folder.flush()
            folder.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(journal_entries(tmp_path)) == [("entry", "parent", "1")]
    folder.close()
    assert _read(tmp_path)["dump.json"]["data"] == {"parent": 1}


def test_a_signal_handler_may_flush_and_close_in_the_middle_of_an_add(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER, flush_seconds=0.0)
    old = signal.signal(signal.SIGALRM, lambda *_: folder.flush())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for i in range(3000):
            folder.add_entry(f"A{i}", "1")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    folder.close()
    assert len(_read(tmp_path)["dump.json"]["data"]) == 3000
    assert sorted(os.listdir(tmp_path)) == ["construct.json", "dump.json", "stack.json"]


def test_a_full_disk_is_reported_once_and_what_was_collected_is_written_when_there_is_room(
    tmp_path, monkeypatch, caplog
):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry("A", "1")
    real_write, real_writev = os.write, os.writev

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "writev", full)
    folder.add_entry("B", "2")
    folder.flush()
    folder.add_entry("C", "3")
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert str(tmp_path) in caplog.text
    assert _read(tmp_path)["dump.json"]["data"] == {}
    assert [item for item in os.listdir(tmp_path) if item.startswith(whole_file.TEMPORARY_PREFIX)] == []
    monkeypatch.setattr(os, "write", real_write)
    monkeypatch.setattr(os, "writev", real_writev)
    folder.close()
    assert _read(tmp_path)["dump.json"] == HEADER | {"complete": True, "data": {"A": 1, "B": 2, "C": 3}}
    assert folder.n_lost == 0


def test_a_disk_that_stays_full_keeps_the_journal_and_says_what_is_missing(tmp_path, monkeypatch, caplog):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.add_entry("A", "1")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    folder.close()
    assert folder.n_lost == 1
    assert "up to 1 collected entries are missing" in caplog.text
    assert _read(tmp_path)["dump.json"]["complete"] is False
    assert list(journal_entries(tmp_path)) == [("entry", "A", "1")]


def test_a_folder_removed_meanwhile_does_not_stop_the_training(tmp_path, caplog):
    folder = StepWriter(tmp_path / "rank0", header=HEADER)
    shutil.rmtree(tmp_path / "rank0")
    folder.add_entry("A", "1")
    folder.flush()
    folder.close()
    assert (folder.n_lost, os.listdir(tmp_path)) == (1, [])
    assert "No such file" in caplog.text


def test_a_path_that_cannot_be_made_does_not_stop_the_training(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    folder = StepWriter(tmp_path / "file" / "rank0", header=HEADER)
    folder.add_call("A", "{}", FRAMES, None, True)
    folder.close()
    assert folder.n_lost == 1
    assert "Not a directory" in caplog.text


def test_after_close_nothing_is_added(tmp_path):
    folder = StepWriter(tmp_path, header=HEADER)
    folder.close()
    folder.add_entry("late", "1")
    folder.flush()
    folder.close()
    assert (folder.n_lost, _read(tmp_path)["dump.json"]["data"]) == (1, {})


def test_an_earlier_run_is_moved_below_the_new_one(tmp_path, caplog):
    path = tmp_path / "step0" / "rank0"
    for run in range(3):
        header = HEADER | {"dump_data_dir": str(path / "dump_tensor_data")}
        folder = StepWriter(path, header=header)
        folder.add_entry("run", str(run))
        folder.close()
    assert sorted(os.listdir(path)) == ["construct.json", "dump.json", "earlier1", "earlier2", "stack.json"]
    for run, place in enumerate((path / "earlier1", path / "earlier2", path)):
        dump = _read(place)["dump.json"]
        assert dump["data"] == {"run": run}
        assert dump["dump_data_dir"] == str(place / "dump_tensor_data")
    assert len(caplog.records) == 1  # once per dump, not once per step and run


def test_a_folder_in_use_by_another_process_is_left_alone(tmp_path, caplog):
    header = HEADER | {"dump_data_dir": str(tmp_path / "rank0" / "dump_tensor_data")}
    first = StepWriter(tmp_path / "rank0", header=header)
    second = StepWriter(tmp_path / "rank0", header=header)
    first.add_entry("first", "1")
    second.add_entry("second", "2")
    first.close()
    second.close()
    assert second.path == tmp_path / "rank0" / "beside1"
    assert _read(first.path)["dump.json"]["data"] == {"first": 1}
    dump = _read(second.path)["dump.json"]
    assert (dump["data"], dump["dump_data_dir"]) == ({"second": 2}, str(second.path / "dump_tensor_data"))
    assert "another running process" in caplog.text


def test_an_empty_folder_is_claimed_as_it_is(tmp_path):
    (tmp_path / "rank0").mkdir()
    assert claim_folder(tmp_path / "rank0") == tmp_path / "rank0"
    assert claim_folder(tmp_path / "rank1") == tmp_path / "rank1"
    assert os.listdir(tmp_path / "rank0") == os.listdir(tmp_path / "rank1") == []


def test_a_folder_may_be_renamed_when_the_rank_becomes_known(tmp_path):
    header = HEADER | {"dump_data_dir": str(tmp_path / "proc7" / "dump_tensor_data")}
    folder = StepWriter(tmp_path / "proc7", header=header)
    folder.add_entry("A", "1")
    (folder.path / "dump_tensor_data").mkdir()
    assert folder.move_to(tmp_path / "rank3") == tmp_path / "rank3"
    folder.add_entry("B", "2")
    folder.close()
    assert os.listdir(tmp_path) == ["rank3"]
    dump = _read(tmp_path / "rank3")["dump.json"]
    assert dump["data"] == {"A": 1, "B": 2}
    assert dump["dump_data_dir"] == str(tmp_path / "rank3" / "dump_tensor_data")
    assert sorted(os.listdir(folder.path)) == [
        "construct.json",
        "dump.json",
        "dump_tensor_data",
        "stack.json",
    ]


def _read(folder: Path) -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def _stacks(files: dict[str, dict]) -> list:
    """Names and frames without the running numbers."""
    return sorted([sorted(names), frames] for names, frames in files.get("stack.json", {}).values())
