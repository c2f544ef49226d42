"""What a user is told about a wrong config: the key, the value, what is allowed and what was probably meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windtunnel.errors import ProbeConfigError
from windtunnel.probe.config.api_list import read_api_list
from windtunnel.probe.config.merged_config import load_config

# what stands in the file, and pieces of the sentence
WRONG_VALUES = [
    ({"leval": "L1"}, ['unknown key "leval"', 'did you mean "level"?']),
    ({"zzz": 1}, ['unknown key "zzz"', "known keys:", "dump_path"]),
    (
        {"statistics": {"sumary_mode": "md5"}},
        ['"sumary_mode" in "statistics"', 'did you mean "summary_mode"?'],
    ),
    ({"tensor": {"tensor_lists": []}}, ['unknown key "tensor_lists" in "tensor"']),
    ({"exception_dump": {"a": 1}}, ['unknown key "a" in "exception_dump"', "takes no keys"]),
    ({"statistics": []}, ['"statistics" is []', "an object"]),
    ({"task": "statistic"}, ['"task" is "statistic"', '"overflow_check"', 'did you mean "statistics"?']),
    ({"task": 3}, ['"task" is 3', '"tensor"']),
    ({"level": "l0"}, ['"level" is "l0"', 'did you mean "L0"?']),
    ({"level": ["L0"]}, ['"level" is ["L0"]', '"debug"']),
    ({"dump_path": 3}, ['"dump_path" is 3', "path of a folder"]),
    ({"dump_path": "a\0b"}, ["dump_path", "cannot contain this character"]),
    ({"dump_path": "\ud800"}, ["dump_path", "cannot contain this character"]),
    ({"dump_path": "x" * 256}, ["dump_path", "255"]),
    ({"dump_path": __file__}, ["dump_path", "it is a file"]),
    ({"rank": 0}, ['"rank" is 0', "a list such as"]),
    ({"rank": [-1]}, ['"rank": -1 is not between 0 and 1000000']),
    ({"rank": [1000001]}, ['"rank": 1000001 is not between']),
    ({"step": [1.5]}, ['"step": 1.5 is neither']),
    ({"step": [True]}, ['"step": True is neither']),
    ({"step": ["5-3"]}, ['"step": the range "5-3" is reversed']),
    ({"step": ["1-2-3"]}, ['"1-2-3" is neither']),
    ({"step": ["9" * 5000]}, ["is not between 0 and 1000000"]),
    ({"async_dump": 1}, ['"async_dump" is 1', "true, false"]),
    ({"extra_info": "yes"}, ['"extra_info" is "yes"']),
    ({"dump_enable": "on"}, ['"dump_enable" is "on"']),
    ({"precision": "hi"}, ['"precision" is "hi"', '"low", "high"']),
    ({"risk_level": "core"}, ['"risk_level" is "core"', 'did you mean "CORE"?']),
    ({"custom_op_namespaces": "x"}, ['"custom_op_namespaces" is "x"', '["x"]']),
    ({"load": {"path": "a"}}, ['"load" is not supported', "never changes"]),
    ({"file_format": "bin"}, ['"file_format" is "bin"', '"pt", "npy"']),
    ({"strict_json": 0}, ['"strict_json" is 0']),
    ({"flush_seconds": -1}, ['"flush_seconds" is -1', "seconds"]),
    ({"flush_seconds": float("nan")}, ['"flush_seconds" is NaN']),
    ({"api_list": "/no/such.yaml"}, ["api_list /no/such.yaml is not a file"]),
    ({"api_list": 1}, ['"api_list" is 1']),
    ({"statistics": {"list": "relu"}}, ['"statistics.list" is "relu"', '["relu"]']),
    ({"statistics": {"list": [1]}}, ['"statistics.list" is [1]', "list of strings"]),
    ({"statistics": {"list": ["re:("]}}, ['"re:("', "not a valid regular expression"]),
    ({"statistics": {"scope": ["a"]}}, ['"statistics.scope" is ["a"]', "it has 1"]),
    ({"statistics": {"scope": ["conv", "relu"]}}, ['"Functional.conv2d.0.forward"', 'level "L1"']),
    (
        {"level": "L0", "statistics": {"scope": ["Torch.a.0.forward", "Torch.b.0.forward"]}},
        ['level "L0"', '"Module.conv1.Conv2d.forward.0"'],
    ),
    (
        {"statistics": {"scope": ["Module.a.A.forward.0", "Module.b.B.forward.0"]}},
        ['level "L1"', '"Functional.conv2d.0.forward"'],
    ),
    ({"statistics": {"data_mode": "all"}}, ['"statistics.data_mode" is "all"', '["all"]']),
    ({"statistics": {"data_mode": ["all", "input"]}}, ['"all" cannot be combined']),
    ({"statistics": {"data_mode": ["inputs"]}}, ['"inputs" is not one of', '"backward"']),
    ({"statistics": {"summary_mode": "md4"}}, ['"statistics.summary_mode" is "md4"', 'did you mean "md5"?']),
    ({"statistics": {"summary_mode": ["std"]}}, ['is ["std"]', '"l2norm"']),
    ({"statistics": {"slice": {"dim": 0}}}, ['"statistics.slice" is {"dim": 0}']),
    ({"statistics": {"slice": [{"dims": 0}]}}, ['unknown key "dims" in "statistics.slice[0]"', '"dim"?']),
    ({"statistics": {"slice": [{"dim": -1}]}}, ['"statistics.slice[0].dim" is -1', "0 or more"]),
    ({"statistics": {"slice": [{}, {"end": "4"}]}}, ['"statistics.slice[1].end" is "4"', "an integer"]),
    ({"statistics": {"slice": [3]}}, ['"statistics.slice[0]" is 3', "an object"]),
    ({"statistics": {"request_id": 7}}, ['"statistics.request_id" is 7']),
    ({"task": "tensor", "tensor": {"bench_path": "/no/dir"}}, ['"tensor.bench_path"', "no such folder"]),
    ({"task": "tensor", "tensor": {"diff_nums": 0}}, ['"tensor.diff_nums" is 0', "-1 for no limit"]),
    ({"task": "overflow_check", "overflow_check": {"overflow_nums": True}}, ["overflow_nums", "true"]),
]


@pytest.mark.parametrize(("values", "pieces"), WRONG_VALUES, ids=[f"{v}"[:60] for v, _ in WRONG_VALUES])
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path, values, pieces):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ProbeConfigError) as caught:
        load_config("pytorch", path)
    sentence = str(caught.value)
    assert [piece for piece in pieces if piece not in sentence] == []
    assert "\n" not in sentence
    assert len(sentence) < 600
    if "api_list" not in values:
        assert str(path) in sentence


def test_a_wrong_argument_says_that_it_is_one():
    for argument in ({"level": "L9"}, {"task": 1}, {"step": 5}, {"step": ["x"]}, {"dump_path": 3}):
        with pytest.raises(
            ProbeConfigError, match=r"PrecisionDebugger's arguments: .*" + next(iter(argument))
        ):
            load_config("pytorch", **argument)
    with pytest.raises(ProbeConfigError, match="config_path is 3"):
        load_config("pytorch", 3)


BROKEN_FILES = [
    (b'{"task": "tensor",}', ["line 1, column 19", "found '}'"]),
    (b'{"task": "tensor"\n "level": 1}', ["line 2, column 2", "expecting ',' delimiter", "level"]),
    (b'{"task": "tensor" // why\n}', ["line 1, column 19", "no comments"]),
    (b'{"a": ', ["line 1", "the end of the file"]),
    (b"", ["line 1, column 1", "the end of the file"]),
    (b"[1]", ["contains a list", "object"]),
    (b'"x"', ["contains a string"]),
    (b"null", ["contains null"]),
    (b'{"task": "tensor", "task": "statistics"}', ['duplicate key "task"', "remove one"]),
    (b'{"statistics": {"list": [], "list": []}}', ['duplicate key "list"']),
    (b"[" * 200_000, ["nested too deeply"]),
    (b'{"a":' * 200_000, ["nested too deeply"]),
    (b'{"step": [' + b"1" * 10_000 + b"]}", ["a number with thousands of digits"]),
    (b'{"task": "\xff"}', ["not UTF-8", "byte 10 is 0xff"]),
    ('{"task": "tensor"}'.encode("utf-16"), ["not UTF-8"]),
    (b" " * (4 * 1024 * 1024 + 1), ["4194305 bytes"]),
]


@pytest.mark.parametrize(("data", "pieces"), BROKEN_FILES, ids=[repr(d[:30]) for d, _ in BROKEN_FILES])
def test_a_broken_file_is_named_with_the_place(tmp_path, data, pieces):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ProbeConfigError) as caught:
        load_config("pytorch", path)
    sentence = str(caught.value)
    assert [piece for piece in (*pieces, str(path)) if piece not in sentence] == []
    assert "\n" not in sentence
    assert len(sentence) < 600


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"level": "L0"}')
    assert load_config("pytorch", path).level == "L0"


def test_a_path_that_is_no_readable_file(tmp_path):
    with pytest.raises(
        ProbeConfigError, match=r"config file .*missing\.json does not exist .*working directory"
    ):
        load_config("pytorch", tmp_path / "missing.json")
    with pytest.raises(ProbeConfigError, match="is a directory"):
        load_config("pytorch", tmp_path)
    with pytest.raises(ProbeConfigError, match="cannot be read"):
        load_config("pytorch", "a\0b")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ProbeConfigError, match="a device or a pipe"):
        load_config("pytorch", pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ProbeConfigError, match="cannot be read"):
        load_config("pytorch", loop)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(ProbeConfigError, match="cannot be read: Permission denied"):
        load_config("pytorch", path)


API_LISTS = [
    ("funtional:\n  - relu\n", ["line 1", 'unknown section "funtional"', 'did you mean "functional"?']),
    ("- relu\n", ["line 1", '"relu" is not in a section']),
    ("functional:\n  - relu\n  gelu\n", ["line 3", "'gelu' is not understood"]),
    ("functional: [relu]\n", ["line 1", "is not understood"]),
    ("torch:\n  - mm\ntorch:\n  - bmm\n", ["line 3", 'duplicate section "torch"']),
    ("# nothing\n", ["names no API"]),
    ("functional: !!python/object/apply:os.system ['true']\n", ["line 1", "is not understood"]),
]


@pytest.mark.parametrize(("text", "pieces"), API_LISTS, ids=[repr(text[:30]) for text, _ in API_LISTS])
def test_an_api_list_that_cannot_be_read_is_named_with_the_line(tmp_path, text, pieces):
    ops = tmp_path / "ops.yaml"
    ops.write_text(text)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"api_list": str(ops)}))
    with pytest.raises(ProbeConfigError) as caught:
        load_config("pytorch", path)
    assert [piece for piece in (*pieces, str(ops)) if piece not in str(caught.value)] == []


def test_an_api_list_in_msprobes_style(tmp_path):
    ops = tmp_path / "ops.yaml"
    ops.write_text(
        "# remark\n\nfunctional:\n  - conv2d   # why\n  - 'relu'\n  - bool astype\ntensor: []\n"
        "torch:\n- linalg.norm\nmint.nn.functional:\n  - gelu\ncommunication.comm_func:\n  - all_reduce\n"
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"api_list": str(ops)}))
    assert load_config("pytorch", path).api_list == {
        ("Functional", "conv2d"),
        ("Functional", "relu"),
        ("Functional", "bool astype"),
        ("Torch", "norm"),
        ("MintFunctional", "gelu"),
        ("Distributed", "all_reduce"),
    }


def test_the_lists_msprobe_ships_are_read_as_yaml_reads_them(tmp_path):
    shipped = pytest.importorskip("msprobe")
    yaml = pytest.importorskip("yaml")
    files = [*Path(shipped.__file__).parent.rglob("support_wrap_ops.yaml")]
    assert files
    for file in files:
        listed = yaml.safe_load(file.read_text())
        names = {name.split(".")[-1] for section in listed.values() for name in section}
        assert {api for _, api in read_api_list(file)} == names
