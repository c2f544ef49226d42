"""`windtunnel compare` as a user has it: what is printed, what is written, what the exit code says."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.commands.cli import windtunnel
from tests.probe.dumps import Call, write_dump
from windtunnel.commands.main import main
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.source_lines import read_column

X = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "msprobe"


@pytest.fixture
def dumps(tmp_path):
    """A run, the same run again, and one in which a ReLU lets a little too much through."""

    def run(name, factor, nudge=0.0):
        y = np.maximum(X, 0) * np.float32(factor) + np.float32(nudge)
        calls = [
            Call("Functional.linear.0.forward", [X], [X * 2]),
            Call("Functional.relu.0.forward", [X * 2], [y]),
            Call("Functional.relu.0.backward", [y], [X]),
            Call("Tensor.add_.0.forward", [X, 0.1], [y]),
        ]
        return write_dump(tmp_path / name / "step0" / "rank0", calls, level="L1").parents[1]

    return run("a", 1), run("same", 1), run("b", 1.001), run("near", 1, 1e-7)


def call(capsys, *args):
    code = main(["compare", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_equal_dumps_exit_0_and_say_so_first(dumps, capsys):
    code, out, _ = call(capsys, dumps[0], dumps[1])
    assert code == 0
    assert out.splitlines()[0] == "Equal: all 9 values agree."
    assert out.splitlines()[-1].startswith("next: windtunnel compare")


def test_different_dumps_exit_3_and_name_the_place_first(dumps, capsys):
    code, out, _ = call(capsys, dumps[0], dumps[2])
    assert code == 3
    lines = out.splitlines()
    assert lines[0] == "First divergence: Functional.relu.0.forward.output.0   (step 0, rank 0)"
    assert "B is 1.001 times A." in lines[1]
    assert "this call computes a different result" in lines[2]
    assert "At /home/me/train.py:7 in forward: y = f(x)" in out
    assert "9 values compared: 6 equal, 0 within rounding, 3 different." in out


def test_rounding_is_equal_until_it_is_asked_for(dumps, capsys):
    code, out, _ = call(capsys, dumps[0], dumps[3])
    assert code == 0
    assert out.startswith("Equal within rounding: the largest relative error is")
    assert "--exact" in out.splitlines()[-1]
    assert call(capsys, dumps[0], dumps[3], "--exact")[0] == 3


@pytest.mark.parametrize(("limit", "code"), [("0.01", 0), ("1e-4", 3)])
def test_fail_over_sets_the_limit(dumps, capsys, limit, code):
    assert call(capsys, dumps[0], dumps[2], "--fail-over", limit)[0] == code


def test_json_is_strict_and_complete(dumps, capsys):
    code, out, _ = call(capsys, dumps[0], dumps[2], "--json")
    assert code == 3
    document = json.loads(out, parse_constant=pytest.fail)
    assert document["equal"] is False
    first = document["first_divergence"]
    assert (first["item"], first["inputs"]) == ("Functional.relu.0.forward.output.0", "equal")
    assert first["error"] == pytest.approx(1e-3, rel=0.5)
    assert document["counts"]["compared"] == 9
    assert [row["judged"] for row in first["around"]] == ["equal", "equal", "different"]


def test_csv_has_msprobes_columns_and_a_row_per_value(dumps, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    code, out, _ = call(capsys, dumps[0], dumps[2], "--csv", "--out", path)
    assert code == 3
    assert out.startswith("First divergence")
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert len(rows) == 9
    assert list(rows[0])[:8] == [
        "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
        "NPU Requires_grad", "Bench Requires_grad",
    ]  # fmt: skip
    assert list(rows[0])[8:24:8] == ["Max diff", "NPU max"]
    row = rows[3]
    assert row["NPU Name"] == "Functional.relu.0.forward.output.0"
    assert (row["Result"], row["Evidence"], row["Judged"]) == ("error", "sketch", "different")
    assert float(row["NormRelativeErr"].rstrip("%")) == pytest.approx(0.1, rel=0.01)
    assert row["NPU_Stack_Info"] == "N/A"  # it stands at the first value of the call
    assert "train.py" in rows[2]["NPU_Stack_Info"]


def test_csv_of_tensors_has_their_columns(tmp_path, capsys):
    for name, factor in (("a", 1), ("b", 2)):
        write_dump(tmp_path / name, [Call("Torch.f.0.forward", [X], [X * np.float32(factor)])], files=True)
    path = tmp_path / "rows.csv"
    call(capsys, tmp_path / "a", tmp_path / "b", "--csv", "--out", path)
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert float(rows[0]["Cosine"]) == pytest.approx(1.0)
    assert float(rows[1]["MaxRelativeErr"]) == pytest.approx(0.5)
    assert float(rows[1]["One Thousandth Err Ratio"]) == 0.0
    assert rows[1]["Data_name"].count("Torch.f.0.forward.output.0.pt") == 2


def test_the_page_stands_alone_and_marks_the_place(dumps, tmp_path, capsys):
    path = tmp_path / "page.html"
    code, out, _ = call(capsys, dumps[0], dumps[2], "--html", "--out", path)
    assert code == 3
    assert str(path) in out
    assert not re.search(r"src\s*=|url\(|@import", path.read_text(encoding="utf-8").partition("<script")[0])
    document = read_page_document(path)
    assert document["headline"] == out.splitlines()[0]
    (part,) = document["parts"]
    names = bytes(read_column(part["calls"]["names"])).decode().split("\0")
    assert names[part["first"]] == "Functional.relu.0.forward"
    assert read_column(part["calls"]["phase"]).tolist() == [0, 0, 1, 2]


def test_names_in_a_dump_cannot_put_markup_into_the_page(tmp_path, capsys):
    for name, factor in (("a", 1), ("b", 2)):
        write_dump(
            tmp_path / name, [Call("Torch.<script>x</script>.0.forward", [X], [X * np.float32(factor)])]
        )
    path = tmp_path / "page.html"
    call(capsys, tmp_path / "a", tmp_path / "b", "--html", "--out", path)
    assert "<script>x" not in path.read_text(encoding="utf-8")


def test_half_a_character_in_a_name_does_not_cost_the_page(tmp_path, capsys):
    for name, factor in (("a", 1), ("b", 2)):
        write_dump(tmp_path / name, [Call("Torch.\ud800.0.forward", [X, "\udfff"], [X * np.float32(factor)])])
    path = tmp_path / "page.html"
    assert call(capsys, tmp_path / "a", tmp_path / "b", "--html", "--out", path)[0] == 3
    document = read_page_document(path)
    assert document["compare"]["first_divergence"]["item"] == r"Torch.\ud800.0.forward.output.0"
    names = bytes(read_column(document["parts"][0]["calls"]["names"])).decode()
    assert names == r"Torch.\ud800.0.forward"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda path: path.write_text(path.read_text(encoding="utf-8")[:300]),
            "ends in the middle of a value",
        ),
        (lambda path: path.write_text("no json"), "is not valid JSON"),
        (lambda path: path.unlink(), "contains no dump"),
    ],
)
def test_a_damaged_dump_is_one_sentence_and_exit_2(dumps, capsys, change, words):
    change(dumps[1] / "step0" / "rank0" / "dump.json")
    code, out, err = call(capsys, dumps[0], dumps[1])
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 2


def test_wrong_usage_is_reported(dumps, capsys, tmp_path):
    assert call(capsys, dumps[0], tmp_path / "nope")[0] == 2
    assert call(capsys, dumps[0], dumps[1], "--out", "x")[0] == 2
    assert call(capsys, dumps[0], dumps[1], "--html", "--out", tmp_path / "no" / "x.html")[0] == 2
    for options in (
        ["--fail-over", "-1"],
        ["--fail-over", "x"],
        ["--json", "--csv"],
        ["--exact", "--fail-over", "1"],
    ):
        with pytest.raises(SystemExit) as exit:
            main(["compare", str(dumps[0]), str(dumps[1]), *options])
        assert exit.value.code == 2


def test_csv_to_stdout_leaves_the_verdict_to_stderr(dumps, tmp_path):
    done = windtunnel("compare", dumps[0], dumps[2], "--csv", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.startswith('"NPU Name","Bench Name"')
    assert len(list(csv.reader(io.StringIO(done.stdout)))) == 10
    assert done.stderr.startswith("First divergence: Functional.relu.0.forward.output.0")


def test_a_terminal_without_the_letters_of_a_name_is_no_error(tmp_path):
    for name, factor in (("a", 1), ("b", 2)):
        write_dump(tmp_path / name, [Call("Module.层.0.Linear.forward.0", [X], [X * np.float32(factor)])])
    done = windtunnel("compare", "a", "b", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("First divergence: Module.?.0.Linear.forward.0.output.0")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample dumps of msProbe are not here")
def test_real_dumps_of_msprobe_are_read_and_equal_to_themselves(capsys):
    for sample in sorted(path for path in SAMPLES.iterdir() if path.is_dir()):
        code, out, _ = call(capsys, sample, sample)
        assert (code, out.startswith("Equal")) == (0, True), sample.name
    code, out, _ = call(
        capsys, SAMPLES / "torch_mix_statistics_md5/step0", SAMPLES / "torch_mix_statistics_md5/step1"
    )
    assert code == 3
    assert "Functional.conv2d.0.forward.input.0" in out.splitlines()[0]


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",), ("--html",)])
def test_empty_dumps_are_not_equal_but_nothing_to_compare(dumps, tmp_path, monkeypatch, capsys, form):
    monkeypatch.chdir(tmp_path)
    one, two = (write_dump(tmp_path / name / "step0" / "rank0", []).parents[1] for name in ("e1", "e2"))
    for a, b, sentence in (
        (one, two, f"{one} and {two} have"),
        (one, dumps[0], f"{one} has"),
        (dumps[0], two, f"{two} has"),
    ):
        code, out, err = call(capsys, a, b, *form)
        assert code == 2
        assert err == (
            f"windtunnel: there is nothing to compare: {sentence} no entries\n"
            "  next: check list, scope, step and rank of the config, and that the program ran between start() and stop()\n"
        )
        assert out == "" or form == ("--csv",)  # of which rows are on their way before the end is known
        assert not Path("compare.html").exists()


def test_dumps_without_an_entry_in_common_are_nothing_to_compare(dumps, tmp_path, capsys):
    modules = write_dump(
        tmp_path / "m" / "step0" / "rank0", [Call("Module.fc.Linear.forward.0", [X], [X])], level="L0"
    ).parents[1]
    code, _, err = call(capsys, dumps[0], modules)
    assert code == 2
    assert f"none of the 4 entries of {dumps[0]} matches any of the 1 of {modules}" in err


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("step0/rank0", "step5/rank0", "the dumps have no step in common: step0 against step5"),
        ("step0/rank0", "step0/rank1", "the dumps have no rank in common: rank0 against rank1"),
    ],
)
def test_dumps_that_share_no_step_or_rank_are_nothing_to_compare(tmp_path, capsys, a, b, words):
    for side, part in (("a", a), ("b", b)):
        write_dump(tmp_path / side / part, [Call("Torch.relu.0.forward", [X], [X])])
    code, _, err = call(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 2
    assert f"windtunnel: {words}\n  next: pass one" in err
    assert call(capsys, tmp_path / "a" / a, tmp_path / "b" / b)[0] == 0  # named, they are meant
