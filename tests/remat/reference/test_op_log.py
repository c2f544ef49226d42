"""Op logs: what instructions become, and what a damaged file is answered."""

from __future__ import annotations

import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dtr.reference.op_log import Compute, Hold, Pin, Release, op_logs_in, parse_op_log, read_op_log
from tests.remat.reference.written_log import call, constant, copy, line, log, mutate, release, view
from windtunnel.errors import CorruptFile


def test_a_constant_is_computed_for_nothing_and_pinned():
    assert log(constant("w", 8), release("w")).steps == (
        Compute("constant", 0, (), (0,), (8,), (-1,)),
        Pin(0),
        Release(0),
    )


def test_a_call_names_its_outputs_and_what_is_still_held_is_pinned_at_the_end():
    steps = log(constant("x", 8), call("a b", "x x", 5, 16, (8, 1)), release("x", "a")).steps
    assert steps[2] == Compute("op", 5, (0, 0), (1, 2), (16, 0), (-1, 1))
    assert steps[3:] == (Release(0), Release(1), Pin(2))


def test_a_mutation_makes_a_new_tensor_of_the_whole_storage_and_releases_the_old():
    steps = log(constant("x", 8), call("a", "x", 5, 16), view("v", "a", 1), mutate("x v", [1], 7)).steps
    assert steps[4] == Compute("op_", 7, (0, 2), (3,), (16,), (-1,))
    assert steps[5:] == (Release(2), Pin(0), Pin(1), Pin(3))


def test_copies_share_a_tensor_and_copy_from_moves_a_name():
    written = log(
        call("a", "", 1, 4),
        call("b", "", 1, 4),
        copy("c", "a"),
        [line("COPY_FROM", DST="a", SRC="b")],
        release("c"),
    )
    assert written.steps[2:] == (Hold(0), Release(0), Hold(1), Release(0), Pin(1))


def test_what_stands_before_the_start_does_not_count_and_its_releases_are_ignored():
    before = constant("old", 8)
    start = [line("ANNOTATE", ANNOTATION="START")]
    assert log(before, start, release("old"), call("a", "", 1, 4)).steps == (
        Compute("op", 1, (), (0,), (4,), (-1,)),
        Pin(0),
    )


def test_the_number_of_operators_leaves_out_constants():
    assert log(constant("x", 8), call("a", "x", 5, 16), call("b", "", 5, 16)).n_ops == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1 is not JSON"),
        (["[" * 100_000], "line 1 is not JSON"),
        (["3"], "line 1 names no INSTRUCTION"),
        ([line("DANCE")], "DANCE: does not stand here or is unknown"),
        ([line("MEMORY", NAME="a", MEMORY="1")], "MEMORY: does not stand here"),
        ([line("CONSTANT", NAME="a")], "no MEMORY of a follows"),
        ([line("CONSTANT", NAME="a"), line("MEMORY", NAME="b", MEMORY="1")], "no MEMORY of a follows"),
        (constant("a", -1), "MEMORY is '-1', not a whole number from 0 to 2"),
        (constant("a", 2**63), "not a whole number"),
        ([line("CONSTANT", NAME="a"), line("MEMORY", NAME="a", MEMORY=1.5)], "MEMORY is 1.5"),
        (constant("a", 1) + constant("a", 1), "a was made before"),
        ([line("RELEASE")], "NAME is None, not a text"),
        ([line("CALL", NAME="f", RESULT="a", ARGS=[], TIME="1")], "RESULT is 'a', not a list of texts"),
        ([line("CALL", NAME="f", RESULT=[], ARGS=[], TIME="1")], "RESULT is empty"),
        (call("a", "x", 1, 4), "x was never made"),
        (call("a", "", 1, (4, 0)), "a view of argument 0, but there are 0"),
        (call("a", "", 1, (4, -2)), "ALIAS is '-2'"),
        (constant("a", 1) + mutate("a", [1], 1), r"MUTATE is \[1\], not a list of places among 1 argument"),
        (constant("a", 1) + mutate("a", [], 1), r"MUTATE is \[\]"),
        (constant("a", 1) + release("a", "a"), "line 4: RELEASE: the tensor was released before"),
        ([line("COPY", DST="b", SRC="a")], "a was never made"),
    ],
)
def test_a_damaged_log_is_answered_with_the_line_and_the_fact(lines, said):
    with pytest.raises(CorruptFile, match=said):
        parse_op_log(lines, "x.log")


def _is_log_or_refused(lines):
    """Anything else (another exception, a log that names nothing it was given) is a bug."""
    try:
        log = parse_op_log(lines)
    except CorruptFile as error:
        return bool(error.message)
    return len(log.steps) <= len(lines) * 2


@given(st.lists(st.one_of(st.text(), st.from_type(dict).map(str)), max_size=5))
def test_any_text_is_a_log_or_a_corrupt_file(lines):
    assert _is_log_or_refused(lines)


_FIELD = st.sampled_from(["a", "b", ["a"], ["a", "b"], [0], [], 0, 1, -1, "1", "-1", None, {}, True])


@given(
    st.lists(
        st.tuples(
            st.sampled_from("CONSTANT MEMORY CALL MUTATE ALIAS COPY COPY_FROM RELEASE ANNOTATE".split()),
            st.dictionaries(
                st.sampled_from("NAME MEMORY RESULT ARGS TIME MUTATE ALIAS DST SRC ANNOTATION".split()),
                _FIELD,
            ),
        ),
        max_size=8,
    )
)
def test_any_instructions_are_a_log_or_a_corrupt_file(instructions):
    assert _is_log_or_refused([line(kind, **fields) for kind, fields in instructions])


def test_logs_are_read_from_a_zip_file_and_nothing_is_written(tmp_path):
    archive = tmp_path / "in" / "logs.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../outside.log", "\n".join(call("a", "", 1, 4)))
        file.writestr("manifest.json", "{}")
    assert op_logs_in(archive) == ["../outside.log"]
    assert len(read_op_log(archive, "../outside.log").steps) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "logs.zip"]


def test_a_file_that_is_no_log_is_named(tmp_path):
    path = tmp_path / "x.log"
    with pytest.raises(CorruptFile, match=r"there is no op log .*x\.log"):
        read_op_log(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptFile, match="not UTF-8 at byte 0"):
        read_op_log(path)
    with pytest.raises(CorruptFile, match="not a readable zip file"):
        read_op_log(path, "a.log")
    archive = tmp_path / "logs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.log", "x" * 1000)
    with pytest.raises(CorruptFile, match=r"has no member 'b\.log'"):
        read_op_log(archive, "b.log")
    damaged = archive.read_bytes().replace(b"x" * 900, b"y" * 900)
    archive.write_bytes(damaged)
    with pytest.raises(CorruptFile, match=r"a\.log in .* cannot be read"):
        read_op_log(archive, "a.log")


def test_a_member_too_long_is_refused_before_it_is_read(tmp_path, monkeypatch):
    archive = tmp_path / "logs.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.log", " " * 5000)
    monkeypatch.setattr("benchmarks.dtr.reference.op_log._LONGEST_FILE", 4096)
    with pytest.raises(CorruptFile, match="would be 5000 bytes long"):
        read_op_log(archive, "a.log")
