"""Pickles that run code, fill the memory or never end; and plain ones, whichever way they are read."""

from __future__ import annotations

import os
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands.snapshots import write_torch_snapshot
from windtunnel import foreign_pickles
from windtunnel.commands.main import main
from windtunnel.foreign_pickles import UnsafePickle, load_pickle_file, load_pickle_with_calls

# {} kept in slot 402,653,184: nine bytes for which Python's unpickler takes six gigabytes
MEMO_BOMB = b"\x80\x04}r" + struct.pack("<I", 402_653_184) + b"."


def _doubled(n, first=b"K\1K\1\x86"):
    """A tuple of a tuple of a tuple ..., each part used twice: it has 2 ** n leaves."""
    text = first + b"q\1"
    for i in range(1, n):
        text += b"h" + bytes([i]) + b"\x86q" + bytes([i + 1])
    return text


SLOW_KEY = b"\x80\x02}q\0" + _doubled(60) + b"K\1s."


def _load(tmp_path, data):
    path = tmp_path / "p.pickle"
    path.write_bytes(data)
    return load_pickle_file(path)


class _Runs:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (MEMO_BOMB, "stores a value in slot 402,653,184 after 0 others"),
        (SLOW_KEY, "a dict with a tuple key"),
        (pickle.dumps(_Runs()), "asks to run posix.mkdir"),
        (b"\x80\x04cos\nsystem\n.", "asks to run os.system"),
        (b"\x80\x04X\xff\xff\xff\x7f", "ends after 7 bytes, in the middle of a value"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"}.", None),  # a frame of 2^64 bytes is not believed
        (b"\x80\x04" + b"}" * 200_000 + b".", "more than 120,000 lists and dicts"),
        (b"\x80\x04\x8a\x40" + bytes(64) + b".", "an integer of 64 bytes; the limit is 9"),
        (b"\x80\x04j\x07\0\0\0.", "is damaged"),
        (b"\x80\x04N\x85j\x07\0\0\0.", "uses slot 7, which is empty"),
        (b"\x80\x04N\x85N.", "ends with 2 values instead of one"),
        (b"\x80\x04(.", "is damaged"),
        (b"\x80\x04.", "is damaged"),
        (b"\x80\x04]K\1s.", "is damaged"),
        (b"\x80\x04\x82\x01.", "opcode 0x82"),
        (b"\x80\x04N0N.", "opcode 0x30"),
        (b"", "is empty"),
    ],
)
def test_what_a_plain_pickle_never_needs_is_refused_in_a_sentence(tmp_path, monkeypatch, data, reason):
    monkeypatch.chdir(tmp_path)
    if reason is None:
        assert _load(tmp_path, data) == {}
        return
    with pytest.raises(UnsafePickle, match=reason) as caught:
        _load(tmp_path, data)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["p.pickle"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=30,
)  # fmt: skip


@settings(deadline=None)
@given(value=plain, protocol=st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back_by_either_way(tmp_path_factory, value, protocol):
    data = pickle.dumps([value, value], protocol)
    expected = pickle.loads(data)
    assert foreign_pickles._Machine(data).run() == expected
    assert _load(tmp_path_factory.getbasetemp(), data) == expected


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_snapshot_of_torch_is_read_at_the_speed_of_python_own_unpickler(tmp_path, protocol):
    path = write_torch_snapshot(tmp_path / "s.pickle")
    value = pickle.loads(path.read_bytes())
    frames = [{"filename": "train.py", "line": i, "name": "main"} for i in range(400)]  # more than 256 slots
    value["device_traces"][0][0]["frames"] = frames
    value["segments"][0]["frames"] = frames
    data = pickle.dumps(value, protocol)
    assert foreign_pickles._is_simple(data)
    assert _load(tmp_path, data) == value


def test_a_tuple_that_is_used_twice_takes_the_slow_way(tmp_path):
    data = b"\x80\x02" + _doubled(40) + b"."
    assert not foreign_pickles._is_simple(data)
    value = _load(tmp_path, data)
    assert value[0] is value[1]


def test_calls_are_answered_by_the_caller_and_never_made():
    data = b"\x80\x02cmath\nsqrt\nK\4\x85R."
    found = load_pickle_with_calls(data, lambda name, arguments: (name.text, arguments), lambda value: value)
    assert found == ("math.sqrt", (4,))


def _snapshot(**entry):
    """A snapshot of one allocation, some part of which has 2 ** 60 leaves."""
    part = ["x"]
    for _ in range(60):
        part = [part, part]
    first = {"action": "alloc", "addr": 1, "size": 1 << 40, "stream": 0, "frames": []}
    first |= {key: part for key, value in entry.items() if value == "entry"}
    if entry.get("frames") == "name":
        first["frames"] = [{"filename": "x.py", "line": part, "name": part}, {"filename": part}, part]
    settings = {"roundup_power2_divisions": {"1": part}} if "settings" in entry else {}
    if entry.get("settings") == "conf":
        settings = {"PYTORCH_CUDA_ALLOC_CONF": part}
    return pickle.dumps({"segments": [], "device_traces": [[first]], "allocator_settings": settings})


@pytest.mark.parametrize(
    ("changed", "code", "sentence"),
    [
        ({"addr": "entry"}, 2, "found a list where an integer is expected"),
        ({"size": "entry"}, 2, "found a list where an integer is expected"),
        ({"frames": "name"}, 4, "entry 1 of 1 of the trace, asking for 1.00 TiB"),
        ({"settings": "numbers"}, 4, "they cannot be read"),
        ({"settings": "conf"}, 4, "No, expandable segments would not make it fit"),
    ],
)
def test_a_snapshot_whose_parts_are_shared_is_not_walked(
    tmp_path, capsys, monkeypatch, changed, code, sentence
):
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "s.pickle"
    path.write_bytes(_snapshot(**changed))
    assert main(["replay", str(path), "--device", "a100-80gb"]) == code
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err


def test_segments_that_share_their_blocks_are_refused(tmp_path, capsys):
    blocks = [{"address": i, "size": 512, "state": "inactive"} for i in range(10)]
    segments = [{"address": i, "blocks": blocks, "total_size": 512} for i in range(2)]
    trace = [{"action": "alloc", "addr": 1, "size": 512, "stream": 0}]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace]}))
    assert main(["replay", str(path)]) == 2
    assert "the segment at 0x1 has no blocks of its own" in capsys.readouterr().err
