"""The config of a probe: defaults, msProbe's own files new and old, precedence, and what is said about filters."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from windtunnel.errors import ProbeConfigError, UsageError
from windtunnel.probe.config.file import ConfigWatch
from windtunnel.probe.config.merged_config import load_config
from windtunnel.probe.config.slices import Slice, request_slice, tensor_index
from windtunnel.probe.config.vocabulary import KEYS, SECTION_KEYS

# The file msProbe 26.2 brings along.
PACKAGED = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}
# The file its first versions brought along, which guides still show.
PACKAGED_OLD = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "seed": 1234,
    "is_deterministic": False,
    "enable_dataloader": False,
    "acl_config": "",
    "tensor": {"scope": [], "list": [], "data_mode": ["all"], "backward_input": [], "file_format": "npy"},
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "overflow_check": {"overflow_nums": 1, "check_mode": "all"},
    "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"},
    "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    "free_benchmark": {
        "scope": [],
        "list": [],
        "fuzz_device": "npu",
        "pert_mode": "improve_precision",
        "handler_type": "check",
        "fuzz_level": "L1",
        "fuzz_stage": "forward",
        "if_preheat": False,
        "preheat_step": 15,
        "max_sample": 20,
    },
}


@pytest.fixture
def write(tmp_path):
    def write_config(values: object) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(values))
        return path

    return write_config


def test_no_file_means_msprobes_defaults(write):
    config, packaged = load_config("pytorch"), load_config("pytorch", write(PACKAGED))
    for name in config.__slots__:
        if name not in ("config_path", "arguments"):
            assert getattr(config, name) == getattr(packaged, name), name
    assert (config.task, config.level, config.summary_mode) == ("statistics", "L1", "statistics")
    assert (config.ranks, config.steps, config.scope, config.list) == (None, None, None, ())
    assert config.data_mode == {"forward", "backward", "input", "output"}
    assert (config.precision, config.risk_level, config.extra_info) == ("high", "FOCUS", True)
    assert config.dump_path == Path.cwd() / "dump_path"
    assert (config.file_format, load_config("mindspore").file_format) == ("pt", "npy")
    assert config.notes == ()


def test_arguments_win_over_the_file_and_the_file_over_defaults(write, tmp_path):
    path = write({"task": "tensor", "level": "L0", "step": [1], "dump_path": "from_file", "rank": [3]})
    config = load_config("pytorch", path)
    assert (config.task, config.level, str(config.steps)) == ("tensor", "L0", "[1]")
    config = load_config(
        "pytorch", str(path), task="statistics", level="mix", step=(2, "5-6"), dump_path=tmp_path / "here"
    )
    assert (config.task, config.level, [*config.steps]) == ("statistics", "mix", [2, 5, 6])
    assert config.dump_path == tmp_path / "here"
    assert [*config.ranks] == [3]
    assert (config.last_step, config.config_path) == (6, path)


def test_the_section_of_the_task_given_as_an_argument_is_used(write):
    path = write({"task": "statistics", "statistics": {"list": ["a"]}, "tensor": {"list": ["b"]}})
    assert load_config("pytorch", path).list == ("a",)
    assert load_config("pytorch", path, task="tensor").list == ("b",)


def test_an_old_config_loads_and_what_changes_nothing_is_reported(write):
    notes = load_config("pytorch", write(PACKAGED_OLD)).notes
    assert len(notes) == 1
    assert '"seed"' in notes[0]
    assert "seed_all(seed=1234)" in notes[0]
    config = load_config("pytorch", write({**PACKAGED_OLD, "task": "tensor", "acl_config": "./acl.json"}))
    assert config.file_format == "pt"
    assert [note.split('"')[1] for note in config.notes] == ["seed", "acl_config", "tensor.file_format"]
    config = load_config("pytorch", write({**PACKAGED_OLD, "task": "overflow_check"}))
    assert (config.task, config.overflow_nums) == ("overflow_check", 1)
    assert "overflow_check.check_mode" in config.notes[1]


def test_seed_zero_is_a_seed(write):
    assert "seed_all(seed=0)" in load_config("pytorch", write({"seed": 0})).notes[0]


@pytest.mark.parametrize("task", ["acc_check", "run_ut", "free_benchmark", "grad_probe", "exception_dump"])
def test_a_task_that_cannot_be_done_is_refused_with_the_next_step(write, task):
    with pytest.raises(ProbeConfigError, match=f'task "{task}" is not supported') as caught:
        load_config("pytorch", write({"task": task, task: {}}))
    assert caught.value.hint


def test_other_names_of_the_same_task(write, tmp_path):
    config = load_config("pytorch", write({"task": "nan_check", "nan_check": {"tensor_list": ["mm"]}}))
    assert (config.task, config.tensor_list) == ("overflow_check", ("mm",))
    section = {"bench_path": str(tmp_path), "diff_nums": -1}
    config = load_config("pytorch", write({"task": "diff_check", "diff_check": section}))
    assert (config.task, config.bench_path, config.diff_nums) == ("tensor", tmp_path, -1)
    config = load_config("pytorch", write({"task": "tensor", "tensor": section}))
    assert (config.bench_path, config.diff_nums) == (tmp_path, -1)
    with pytest.raises(ProbeConfigError, match="needs"):
        load_config("pytorch", task="diff_check")


def test_what_msprobe_refuses_and_we_can_do(write):
    section = {"summary_mode": "md5"}
    config = load_config("pytorch", write({"task": "tensor", "async_dump": True, "tensor": section}))
    assert config.async_dump
    assert config.summary_mode == "md5"
    assert load_config("pytorch", level="L2").level == "L2"  # any task, any list


def test_structure_is_collected_at_a_level_with_modules(write):
    config = load_config("pytorch", task="structure", level="L1")
    assert config.level == "mix"
    assert 'level "mix" is used' in config.notes[0]
    assert load_config("pytorch", task="structure", level="L0").notes == ()


def test_names_change_nothing_at_level_debug(write):
    section = {"list": ["a"], "scope": ["x", "y"], "tensor_list": ["b"], "slice": [{"dim": 0}]}
    config = load_config("pytorch", write({"level": "debug", "statistics": section}))
    assert (config.list, config.scope, config.tensor_list, config.slices) == ((), None, (), ())
    assert len(config.notes) == 4


def test_mindspores_own_keys(write):
    section = {"summary_mode": ["max", "l2norm"], "device": "device", "precision": "high"}
    config = load_config("mindspore", write({"level": "L2", "statistics": section}))
    assert (config.summary_mode, config.precision) == ("statistics", "high")
    assert len(config.notes) == 2
    config = load_config("mindspore", write({"statistics": {"summary_mode": ["min", "hash"]}}))
    assert config.summary_mode == "md5"
    assert "CRC-32" in config.notes[0]


def test_our_own_keys(write, tmp_path):
    values = {"file_format": "npy", "strict_json": True, "flush_seconds": 0.25}
    config = load_config("pytorch", write(values))
    assert (config.file_format, config.strict_json, config.flush_seconds) == ("npy", True, 0.25)


def test_null_is_unset_and_remarks_are_free(write):
    values = {**dict.fromkeys(PACKAGED), "_comment": "mine", "//": 1, "#": {}, "statistics": {"_why": "so"}}
    assert load_config("pytorch", write(values)).level == "L1"


def test_a_rank_filter_that_leaves_this_process_out_is_reported(write):
    config = load_config("pytorch", write({"rank": ["4-5"]}))
    assert not config.wants_rank(0)
    assert config.wants_rank(4)
    note = config.rank_note(0, 2)
    assert note.startswith("rank filter [4-5] excludes this process (rank 0 of 2): nothing is collected here")
    assert "single process" in config.rank_note(None)
    assert config.rank_note(4, 8) is None
    assert "this job has 5" in config.rank_note(4, 5)
    assert load_config("pytorch").rank_note(7) is None
    alone = load_config("pytorch", write({"rank": [0]}))
    assert alone.wants_rank(None)
    assert alone.rank_note(None) is None


def test_a_step_filter_that_matched_nothing_is_reported(write):
    config = load_config("pytorch", step=["5-9"])
    assert config.wants_step(5)
    assert not config.wants_step(4)
    assert "step filter [5-9] matches none of the steps that ran (steps 0-2)" in config.step_note(0, 3)
    assert "(step 4)" in config.step_note(4, 5)
    assert config.step_note(0, 6) is None
    assert config.step_note(0, 0) is None
    assert load_config("pytorch").step_note(0, 3) is None


def test_slices_of_tensors(write):
    section = {"slice": [{"dim": 1, "size": 8, "begin": 2, "end": 4}, {}, {"begin": 1}]}
    slices = load_config("pytorch", write({"statistics": section})).slices
    assert slices == (Slice(1, 8, 2, 4), Slice(0, None, 1, None))
    assert tensor_index(slices, (5, 8, 3)) == (slice(1, None), slice(2, 4), slice(None))
    assert tensor_index(slices, (5, 7)) == (slice(1, None), slice(None))
    assert tensor_index(slices[:1], (5,)) is None
    assert request_slice("b", {"a": 3, "b": 2, "c": 1}) == Slice(0, 6, 3, 5)
    assert request_slice("x", {"a": 3}) is None


def test_a_watch_sees_a_file_written_again_replaced_or_gone(write, tmp_path):
    path = write({"dump_enable": False})
    watch = ConfigWatch(path)
    assert not watch.changed()
    path.write_text(json.dumps({"dump_enable": True, "step": [1]}))
    assert watch.changed()
    assert not watch.changed()
    other = tmp_path / "other.json"
    other.write_text(path.read_text())
    os.replace(other, path)
    assert watch.changed()
    assert not watch.changed()
    path.unlink()
    assert watch.changed()
    assert not watch.changed()


def test_a_reload_keeps_the_arguments_and_a_broken_file_turns_collecting_off(write):
    path = write({"dump_enable": True, "level": "L0", "step": [1]})
    config = load_config("pytorch", path, level="mix")
    write({"dump_enable": False, "level": "L0", "step": [2]})
    config = config.reloaded()
    assert (config.dump_enable, config.level, config.last_step) == (False, "mix", 2)
    path.write_text('{"dump_enable": tru')
    config = config.reloaded()
    assert config.dump_enable is False
    assert config.notes[0].startswith("collecting is off until this is fixed")
    assert "line 1" in config.notes[0]
    write({"dump_enable": True})
    config = config.reloaded()
    assert (config.dump_enable, config.notes, config.steps) == (True, (), None)
    write({})  # as in msProbe the switch stays where it was
    assert config.reloaded().dump_enable is True


def test_the_error_is_one_of_wrong_usage():
    assert issubclass(ProbeConfigError, UsageError)
    assert ProbeConfigError.exit_code == 2


PAGE = Path(__file__).parents[3] / "docs" / "probe-config.md"


def test_the_page_names_every_key_and_section_and_its_examples_load(write):
    page = PAGE.read_text(encoding="utf-8")
    keys = {*KEYS, *(key for section in SECTION_KEYS.values() for key in section)}
    assert sorted(key for key in keys if f"`{key}`" not in page) == []
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        load_config("pytorch", write(json.loads(example)))
