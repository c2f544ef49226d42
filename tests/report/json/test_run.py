"""report.json: the fixed schema, whole or absent, and read back as it was."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.runs import ASCEND, FILES, FITTING, LARGE, run_of
from windtunnel.cluster.mesh_axes import MeshAxis
from windtunnel.errors import CorruptFile
from windtunnel.memory.analysis import Moment
from windtunnel.memory.attribution import RoleBytes
from windtunnel.report.json.run import read_report, report_text, write_report
from windtunnel.report.results.run import Remedy, UnknownValue, failed_rank, same_as
from windtunnel.units import GIB

FIXED_RUN = {"schema", "windtunnel", "level", "world_size", "fits", "device", "allocator", "ranks"}
FIXED_RANK = {
    "rank", "status", "same_as", "steps", "device_memory_bytes", "usable_memory_bytes", "base_address",
    "peak_bytes", "peak_with_fragments_bytes", "peak_at", "at_peak_bytes", "step_time_us", "build_time_us",
    "unknown_values", "error",
}  # fmt: skip


def test_the_fixed_part_of_the_schema_is_there():
    document = json.loads(report_text(run_of(FITTING, device=ASCEND)))
    assert set(document) == FIXED_RUN | {
        "verdict", "advice", "notes", "mismatches", "time", "mesh", "files", "framework",
    }  # fmt: skip
    assert document["device"] == {"name": "ascend-910b-64gb", "memory_bytes": 68719476736}
    (rank,) = document["ranks"]
    assert set(rank) >= FIXED_RANK
    assert rank["peak_at"] == {"step": 2, "op": "aten.mm", "module": "layers.13.mlp", "phase": "backward"}
    assert set(rank["at_peak_bytes"]) == {f.name for f in fields(RoleBytes)}
    assert rank["unknown_values"] == [
        {"where": "train.py:41", "what": "float(loss)", "value": 1.0, "count": 3}
    ]


def test_the_axes_of_the_job_are_read_back_and_reports_without_them_are_read_too(tmp_path):
    run = replace(run_of(FITTING, world_size=8), mesh=(MeshAxis("pp", 2, 4), MeshAxis("tp", 4, 1)))
    write_report(tmp_path / "report.json", run)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["mesh"] == [
        {"name": "pp", "size": 2, "stride": 4},
        {"name": "tp", "size": 4, "stride": 1},
    ]
    assert read_report(tmp_path / "report.json").mesh == run.mesh
    del document["mesh"]
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert read_report(tmp_path / "report.json").mesh == ()


def test_what_would_have_been_written_is_read_back_and_reports_without_it_are_read_too(tmp_path):
    run = replace(run_of(FITTING), files=FILES)
    write_report(tmp_path / "report.json", run)
    assert read_report(tmp_path / "report.json").files == FILES
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["files"]["changes"][1] == {
        "what": "removed", "path": "/data/checkpoint-100", "n_bytes": None, "n_bytes_before": 3 << 30, "moved_from": None,
    }  # fmt: skip
    document["files"]["changes"][1]["what"] = "eaten"
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match="unknown change of a file: eaten"):
        read_report(tmp_path / "report.json")
    del document["files"]
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert read_report(tmp_path / "report.json").files is None


def test_byte_fields_are_whole_numbers():
    def visit(value, name=""):
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(inner, key if "bytes" in key or not name else name)
        elif isinstance(value, list):
            for inner in value:
                visit(inner, name)
        elif "bytes" in name and value is not None:
            assert type(value) is int

    visit(json.loads(report_text(run_of(LARGE))))


def _same(a, b):
    return report_text(a) == report_text(b)


@pytest.mark.parametrize("ranks", [(), (FITTING,), (LARGE, same_as(1, LARGE)), (failed_rank(0, "boom"),)])
def test_a_report_is_read_back_as_it_was(tmp_path, ranks):
    write_report(tmp_path / "report.json", run_of(*ranks))
    found = read_report(tmp_path / "report.json")
    assert _same(found, run_of(*ranks))
    for rank, wanted in zip(found.ranks, ranks, strict=True):
        assert replace(rank, timeline=None) == replace(wanted, timeline=None)


texts = st.text(max_size=12)
sizes = st.integers(0, 1 << 50)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(Moment, st.integers(0, 99), texts, texts, texts) | st.none(),
    st.builds(RoleBytes, *[sizes] * 8),
    st.lists(st.builds(UnknownValue, texts, texts, st.booleans() | st.integers() | texts | st.none(), sizes)),
    st.dictionaries(texts, sizes, max_size=4),
    texts | st.none(),
)
def test_any_rank_survives_the_file(tmp_path_factory, moment, held, unknown, build, error):
    rank = replace(
        FITTING,
        peak_at=moment,
        at_peak_bytes=held,
        unknown_values=tuple(unknown),
        build_time_us=build,
        error=error,
    )
    path = tmp_path_factory.mktemp("j") / "report.json"
    write_report(path, run_of(rank))
    assert replace(read_report(path).ranks[0], timeline=None) == replace(rank, timeline=None)


def test_a_failed_write_leaves_the_old_report_and_no_litter(tmp_path):
    path = tmp_path / "report.json"
    write_report(path, run_of(FITTING))
    before = path.read_text()
    broken = replace(FITTING, step_time_us=float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        write_report(path, run_of(broken))
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_the_old_report_is_replaced_in_one_go(tmp_path):
    path = tmp_path / "report.json"
    write_report(path, run_of(FITTING))
    write_report(path, run_of(LARGE))
    assert not read_report(path).fits
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "ranks": 3}',
        '{"schema": 1, "windtunnel": "0", "level": 1}',
    ],
)
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(CorruptFile):
        read_report(tmp_path / "report.json")


def test_a_missing_report_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(CorruptFile, match="windtunnel run"):
        read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("world_size",), True, "world_size is True, not a non-negative integer"),
        (("world_size",), 1.5, "world_size is 1.5, not a non-negative integer"),
        (("device", "name"), 5, "device.name is 5, not a string"),
        (("ranks", 0, "peak_bytes"), -1, "ranks[0].peak_bytes is -1, not a non-negative integer"),
        (("ranks", 0, "peak_bytes"), 10**40, "ranks[0].peak_bytes is 1000"),
        (("ranks", 0, "peak_bytes"), "NaN", "ranks[0].peak_bytes is 'NaN'"),
        (("ranks", 0, "step_time_us"), float("nan"), "ranks[0].step_time_us is nan, not a number"),
        (("ranks", 0, "fits"), 1, "ranks[0].fits is 1, not true or false"),
        (("ranks", 0, "build_time_us"), [], "ranks[0].build_time_us is [], not a table"),
        (("ranks", 0, "build_time_us"), {"a": None}, "ranks[0].build_time_us['a'] is None"),
        (("ranks", 0, "peak_at", "module"), None, "ranks[0].peak_at.module is None, not a string"),
        (("ranks", 0, "at_peak_bytes", "inputs"), {}, "ranks[0].at_peak_bytes.inputs is {}"),
        (("ranks", 0, "notes"), [["<b>"]], "ranks[0].notes[0] is ['<b>'], not a string"),
        (("ranks", 0, "unknown_values", 0, "value"), [1], "ranks[0].unknown_values[0].value is [1]"),
        (("ranks", 0, "unknown_values", 0, "count"), None, "ranks[0].unknown_values[0].count is None"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(path, value, said, tmp_path):
    document = json.loads(report_text(run_of(FITTING)))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=re.escape(said)):
        read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"world_size": 0}, "its 3 ranks are not distinct ranks below 0"),
        ({"world_size": 10**18}, "its world size is 1,000,000,000,000,000,000"),
        ({"world_size": 2}, "its 3 ranks are not distinct ranks below 2"),
        ({"ranks": (FITTING, FITTING)}, "its 2 ranks are not distinct ranks below 3"),
        ({"ranks": (same_as(1, FITTING),)}, "a rank is represented by a missing one"),
        ({"mesh": (MeshAxis("tp", 2, 1),)}, "the axes of its mesh do not multiply to 3 ranks"),
        ({"mesh": (MeshAxis("tp", 0, 1),)}, "the axes of its mesh do not multiply to 3 ranks"),
    ],
)
def test_ranks_that_cannot_be_together_are_refused(change, said, tmp_path):
    run = run_of(FITTING, same_as(1, FITTING), same_as(2, FITTING), world_size=3)
    write_report(tmp_path / "report.json", run)
    assert read_report(tmp_path / "report.json").world_size == 3
    write_report(tmp_path / "report.json", replace(run, **change))
    with pytest.raises(CorruptFile, match=re.escape(said)):
        read_report(tmp_path / "report.json")


def test_a_report_of_nothing_but_brackets_is_refused(tmp_path):
    (tmp_path / "report.json").write_text("[" * 200_000)
    with pytest.raises(CorruptFile, match="is not a windtunnel report"):
        read_report(tmp_path / "report.json")


def test_the_verdict_the_advice_and_the_notes_are_in_the_report_and_the_advice_is_read_back(tmp_path):
    advice = (
        Remedy(
            "a batch of 2 instead of 4",
            "--batch-size 2",
            5 * GIB,
            True,
            "windtunnel run train.py",
            grows=False,
        ),
    )
    noted = replace(FITTING, notes=("the script printed nothing",))
    run = replace(run_of(noted), advice=advice)
    write_report(tmp_path / "report.json", run)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["verdict"] == run.verdict
    assert document["verdict"].startswith("Fits: needs 66.00 GiB")
    assert document["notes"] == ["the script printed nothing"]
    assert document["advice"][0]["needs_bytes"] == 5 * GIB
    assert read_report(tmp_path / "report.json").advice == advice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "it has no field 'schema'"),
        ('{"schema": 1}', "it has no field 'windtunnel'"),
        ("[]", "it contains [], not the fields of a report"),
        ('{"schema": 1', "it is truncated or not JSON at line 1, column 13 (Expecting ',' delimiter)"),
        ("", "it is truncated or not JSON at line 1, column 1 (Expecting value)"),
        ("\udcff", "byte 0 is not valid UTF-8"),
    ],
)
def test_what_is_wrong_with_a_report_is_reported_in_words(text, said, tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CorruptFile) as refused:
        read_report(path)
    assert refused.value.message == f"{path} is not a windtunnel report: {said}"
    assert "--force" in refused.value.hint


def _large(n_ranks):
    second = replace(FITTING, rank=8, peak_bytes=FITTING.peak_bytes // 2)
    shown = [second if rank % 16 >= 8 else FITTING for rank in range(n_ranks)]
    ranks = [one if rank == one.rank else same_as(rank, one) for rank, one in enumerate(shown)]
    return run_of(*ranks, world_size=n_ranks)


def test_a_world_of_1024_ranks_is_listed_in_full():
    ranks = json.loads(report_text(_large(1024)))["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(1024))
    assert not any("stands_for" in rank for rank in ranks)


def test_a_larger_world_has_one_entry_for_all_ranks_that_do_the_same(tmp_path):
    run = _large(131_072)
    write_report(tmp_path / "report.json", run)
    assert (tmp_path / "report.json").stat().st_size < 1_000_000
    first, second = json.loads((tmp_path / "report.json").read_text())["ranks"]
    assert (first["rank"], first["n_ranks"], second["rank"], second["n_ranks"]) == (0, 65_536, 8, 65_536)
    assert first["stands_for"][:2] == [[0, 7, 1], [16, 23, 1]]
    read = read_report(tmp_path / "report.json")
    assert [rank.rank for rank in read.ranks] == list(range(131_072))
    assert (read.ranks[7].same_as, read.ranks[9].same_as) == (0, 8)
    assert [rank.peak_bytes for rank in read.ranks[:16]] == [rank.peak_bytes for rank in run.ranks[:16]]


@pytest.mark.parametrize(
    ("stands_for", "said"),
    [
        ([[0, 10**15, 1]], "rank 0 represents [0, 1000000000000000, 1]"),
        ([[0, 8, 0]], "rank 0 represents [0, 8, 0]"),
        ([[1, 8, 1]], "rank 0 does not represent itself"),
        ([[0, 1023, 1]], "its 2,048 ranks are not distinct ranks below 2,048"),
        ([[0, 2047, 1]], "it has more ranks than its world size of 2,048"),
        ([[0, 2047, 1]] * 9, "it has more ranks than its world size of 2,048"),
        ([0], "one of its fields has the wrong type"),
    ],
)
def test_ranks_that_nobody_can_stand_for_are_refused(stands_for, said, tmp_path):
    document = json.loads(report_text(_large(2048)))
    document["ranks"][0]["stands_for"] = stands_for
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=re.escape(said)):
        read_report(tmp_path / "report.json")
