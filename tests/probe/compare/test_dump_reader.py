"""Reading dumps of any size and origin: windows, layouts, journals, damage."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.errors import CorruptFile, UsageError
from windtunnel.probe.compare.step_reader import read_part
from windtunnel.probe.compare.steps_and_ranks import find_parts, pair_parts
from windtunnel.probe.compare.value_columns import HAS_SKETCH, NUMBER, TENSOR, TEXT, ColumnBuilder, Vocabulary
from windtunnel.probe.files import json_stream
from windtunnel.probe.files.json_stream import EntryStream
from windtunnel.probe.files.step_writer import StepWriter

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(path):
    return read_part(find_parts(path)[0], Vocabulary())


@pytest.mark.parametrize("window", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1, 4])
def test_the_size_of_the_window_and_the_layout_do_not_matter(tmp_path, monkeypatch, window, indent):
    monkeypatch.setattr(json_stream, "_WINDOW", window)
    calls = [Call(f"Functional.relu.{i}.forward", [X * i], [X]) for i in range(5)]
    write_dump(tmp_path / "rank0", calls, indent=indent)
    stream = EntryStream(tmp_path / "rank0" / "dump.json")
    document = json.loads((tmp_path / "rank0" / "dump.json").read_text())
    assert dict(stream) == document.pop("data")
    assert stream.header == document


def test_text_beyond_ascii_and_quotes_survive_a_window_that_cuts_them(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_WINDOW", 3)
    data = {'层.0."x\\y".forward': {"output": [{"type": "str", "value": "über{},\n"}]}}
    (tmp_path / "dump.json").write_text(json.dumps({"data": data}, ensure_ascii=False))
    assert dict(EntryStream(tmp_path / "dump.json")) == data


def test_a_window_without_the_usual_border_is_searched_once(tmp_path, monkeypatch):
    class Text(str):
        n_searches = 0

        def find(self, *args):
            Text.n_searches += 1
            return str.find(self, *args)

    entries = "\n,".join(f'"Torch.f.{i}.forward": {{"output": [{i}]}}' for i in range(500))
    (tmp_path / "dump.json").write_text(f'{{"task": "statistics", "data": {{\n{entries}}}}}')
    stream = EntryStream(tmp_path / "dump.json")
    more = stream._more

    def more_text(n_bytes):
        found = more(n_bytes)
        stream._text = Text(stream._text)
        return found

    monkeypatch.setattr(stream, "_more", more_text)
    assert dict(stream)["Torch.f.499.forward"] == {"output": [499]}
    assert Text.n_searches <= 2


@pytest.mark.parametrize("keep", [0, 1, 10, 200, -3, -30])
def test_a_file_that_was_cut_off_is_refused_in_one_sentence(tmp_path, keep):
    folder = write_dump(tmp_path / "rank0", [Call("Functional.relu.0.forward", [X], [X])])
    text = (folder / "dump.json").read_text()
    (folder / "dump.json").write_text(text[:keep])
    with pytest.raises(CorruptFile, match=r"ends in the middle|not valid JSON"):
        read(folder)


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "dump.json").write_text('{"data": {"x.0.debug": ' + "[" * 200_000 + "]" * 200_000 + "}}")
    with pytest.raises(CorruptFile, match="deep"):
        read(tmp_path)


def test_odd_values_do_not_stop_the_reader(tmp_path):
    body = {
        "input_args": [
            {"type": "torch.Tensor", "dtype": None, "shape": "abc", "Max": "x", "sketch": [1, 2], "md5": 7},
            {
                "type": "torch.Tensor",
                "dtype": "torch.float32",
                "shape": [-1, "2"],
                "Max": 10**400,
                "nan_count": -1,
            },
            {"type": "int", "value": 10**400},
            {"type": "torch.device", "value": "cpu"},
            {"type": "slice", "value": [None, 3, None]},
            True,
            [[], {}, None],
        ],
        "output": None,
    }
    (tmp_path / "dump.json").write_text(json.dumps({"data": {"Torch.f.0.forward": body, "x": 3}}))
    columns = read(tmp_path).columns
    assert columns.entries == ["Torch.f.0.forward", "x"]
    assert columns.kind.tolist() == [TENSOR, TENSOR, TEXT, TEXT, NUMBER, NUMBER]
    assert not (columns.has[:2] & HAS_SKETCH).any()


def test_bare_and_quoted_nan_and_infinity_are_the_same(tmp_path):
    element = '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": %s, "Min": %s}'
    text = f'{{"data": {{"a.0.debug": {{"x": {element % ("NaN", "-Infinity")}}}, '
    quoted = element % ('"NaN"', '"-Infinity"')
    text += f'"b.0.debug": {{"x": {quoted}}}}}}}'
    (tmp_path / "debug.json").write_text(text)
    figures = read(tmp_path).columns.statistics
    assert np.isnan(figures[:, 0]).all()
    assert (figures[:, 1] == -np.inf).all()


def test_rows_are_named_as_msprobe_names_them():
    words = Vocabulary()
    builder = ColumnBuilder(words)
    one = {"type": "int", "value": 1}
    builder.add_entry("Module.m.Linear.forward.0", {
        "input_args": [one, [one, one]], "input_kwargs": {"scale": one}, "output": [{"logits": one}],
        "parameters": {"weight": one},
    })  # fmt: skip
    builder.add_entry("Module.m.Linear.parameters_grad.0", {"weight": [one]})
    columns = builder.finish()
    suffixes = list(words.suffixes)
    assert [suffixes[code] for code in columns.suffix] == [
        "input.0", "input.1.0", "input.1.1", "input.scale", "parameters.weight", "output.0.logits", "weight",
    ]  # fmt: skip
    assert columns.starts.tolist() == [0, 6, 7]


def test_an_entry_that_comes_twice_keeps_its_place_and_its_last_value():
    builder = ColumnBuilder(Vocabulary())
    for name, value in (("a", 1), ("b", 2), ("a", 3)):
        builder.add_entry(name, {"output": [{"type": "int", "value": value}]})
    columns = builder.finish()
    assert columns.entries == ["a", "b"]
    assert columns.statistics[:, 0].tolist() == [3, 2]


def test_what_a_killed_process_left_is_read_from_its_journal(tmp_path):
    folder = StepWriter(
        tmp_path / "step0" / "rank0", header={"task": "statistics", "level": "L1"}, flush_seconds=1e9
    )
    folder.add_entry("Torch.f.0.forward", '{"output": [{"type": "int", "value": 1}]}')
    folder.add_entry("Torch.f.1.forward", '{"output": [{"type": "float", "value": NaN}]}')
    folder.add_stack("Torch.f.1.forward", ("File a.py, line 1, in f, \n f()",))
    data = read(tmp_path)  # not closed: the process is as good as dead
    assert data.was_killed
    assert data.columns.entries == ["Torch.f.0.forward", "Torch.f.1.forward"]
    assert data.stack_of("Torch.f.1.backward") == ("File a.py, line 1, in f, \n f()",)
    assert data.header["level"] == "L1"
    folder.close()
    assert not read(tmp_path).was_killed
    assert read(tmp_path).columns.entries == data.columns.entries


@pytest.mark.parametrize(
    "name", ["../secret.pt", "/etc/passwd", "..", "a/../../secret.pt", "link.pt", "a\0b"]
)
def test_the_name_of_a_tensor_file_cannot_lead_out_of_its_folder(tmp_path, name):
    folder = write_dump(tmp_path / "rank0", [Call("Torch.f.0.forward", [], [X])], files=True)
    (tmp_path / "rank0" / "secret.pt").write_bytes(b"")
    os.symlink("/etc/passwd", folder / "dump_tensor_data" / "link.pt")
    document = json.loads((folder / "dump.json").read_text())
    document["data"]["Torch.f.0.forward"]["output"][0]["data_name"] = name
    (folder / "dump.json").write_text(json.dumps(document))
    assert read(folder).tensor_path(0) is None


def test_steps_and_ranks_are_found_in_every_kind_of_folder(tmp_path):
    one = [Call("Torch.f.0.forward", [], [X])]
    for area in ("", "graph", "pynative"):
        for step in (0, 10, 2):
            write_dump(tmp_path / area / f"step{step}" / "rank1", one)
            write_dump(tmp_path / area / f"step{step}" / "rank0", one)
    write_dump(tmp_path / "step2" / "rank0" / "earlier1", one)
    (tmp_path / "step2" / "rankX").mkdir()
    parts = find_parts(tmp_path)
    assert [(part.area, part.step, part.rank) for part in parts[:7]] == [
        ("", 0, 0), ("", 0, 1), ("", 2, 0), ("", 2, 1), ("", 10, 0), ("", 10, 1), ("graph", 0, 0),
    ]  # fmt: skip
    assert len(parts) == 18
    assert len(find_parts(tmp_path / "graph")) == 6
    assert [(part.step, part.rank) for part in find_parts(tmp_path / "step2")] == [(2, 0), (2, 1)]
    assert find_parts(tmp_path / "step2" / "rank1" / "dump.json")[0].rank == 1


def test_a_path_without_a_dump_is_reported_in_one_sentence(tmp_path):
    for path, words in ((tmp_path / "nope", "does not exist"), (tmp_path, "contains no dump")):
        with pytest.raises(UsageError, match=words):
            find_parts(path)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a dump\.json"):
        find_parts(tmp_path / "other.json")


def test_steps_are_paired_by_number_and_ranks_by_order(tmp_path):
    one = [Call("Torch.f.0.forward", [], [X])]
    for side, steps, folders in (("a", (0, 1), ("proc11",)), ("b", (1, 2), ("proc7",))):
        for step in steps:
            for folder in folders:
                write_dump(tmp_path / side / f"step{step}" / folder, one)
    a, b = find_parts(tmp_path / "a"), find_parts(tmp_path / "b")
    pairs, notes = pair_parts(a, b)
    assert [(pair.step, pair.a[0].order, pair.b[0].order) for pair in pairs] == [(1, 11, 7)]
    assert notes == ["only in A: step0", "only in B: step2"]
    with pytest.raises(UsageError, match="no step in common: step0 against step2"):
        pair_parts(a[:1], b[1:])
    pairs, _ = pair_parts(find_parts(tmp_path / "a" / "step0"), b[1:])  # a step is named
    assert len(pairs) == 1
    with pytest.raises(UsageError, match="no step in common"):
        pair_parts(
            (a[0], a[0].__class__(a[0].folder, (), step=5)), (b[1], b[1].__class__(b[1].folder, (), step=6))
        )


def test_ranks_of_different_numbers_are_grouped_or_refused(tmp_path):
    one = [Call("Torch.f.0.forward", [], [X])]
    for rank in range(4):
        write_dump(tmp_path / "b" / "step0" / f"rank{rank}", one)
    for rank in range(2):
        write_dump(tmp_path / "a" / "step0" / f"rank{rank}", one)
    a, b = find_parts(tmp_path / "a"), find_parts(tmp_path / "b")
    pairs, _ = pair_parts(a, b)
    assert [[part.rank for part in pair.b] for pair in pairs] == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="2 ranks cannot be compared with 3"):
        pair_parts(a, b[:3])


def test_an_eager_run_is_paired_with_graph_and_eager_code_of_a_compiled_one(tmp_path):
    calls = [Call(f"Module.m{i}.Linear.forward.0", [X * i], [X]) for i in range(3)]
    for rank in (0, 1):
        write_dump(tmp_path / "a" / "step0" / f"rank{rank}", calls)
        write_dump(tmp_path / "b" / "graph" / "step0" / f"rank{rank}", calls[:2])
        write_dump(tmp_path / "b" / "pynative" / "step0" / f"rank{rank}", calls[2:])
    pairs, _ = pair_parts(find_parts(tmp_path / "a"), find_parts(tmp_path / "b"))
    assert [[(part.area, part.rank) for part in pair.b] for pair in pairs] == [
        [("graph", 0), ("pynative", 0)],
        [("graph", 1), ("pynative", 1)],
    ]
