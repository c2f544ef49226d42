"""Pages are read back: what was written, and a sentence for everything else."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import CorruptFile
from windtunnel.report.page import saved as page_file
from windtunnel.report.page.columns import pack
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.source_lines import lines_at_peak, read_column
from windtunnel.report.page.web_page import page_bytes, write_page


def test_a_document_comes_back_as_it_was(tmp_path):
    document = {"kind": "run", "title": "</script><script>alert(1)", "texts": ["<b>", "ü", None, 1.5]}
    write_page(tmp_path / "page.html", page_bytes("run", document))
    assert read_page_document(tmp_path / "page.html") == document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<p>something else</p>", "is not a page of windtunnel"),
        (b'<script type="application/json" id="data">{"a": ', "is not a page of windtunnel"),
        (b'<script type="application/json" id="data">{"a": </script>', "its data is not JSON"),
        (b'<script type="application/json" id="data">[1]</script>', "its data has no title"),
        (b'<script type="application/json" id="data">{"title": 3}</script>', "its data has no title"),
        (b"\xff\x00" * 100, "is not a page of windtunnel"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "page.html"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=words):
        read_page_document(path)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(CorruptFile, match="cannot read"):
        read_page_document(tmp_path / "none.html")
    monkeypatch.setattr(page_file, "_MOST_BYTES", 10)
    (tmp_path / "page.html").write_bytes(b" " * 11)
    with pytest.raises(CorruptFile, match="larger than 10 B"):
        read_page_document(tmp_path / "page.html")


@pytest.mark.parametrize(
    "values", [[], [0, 255, 3], [1, 70_000], [-5, 4], [2**40, 1], [5, 6, 900, 901], [0.5, -1e300]]
)
@pytest.mark.parametrize("is_rising", [True, False])
def test_columns_come_back_as_they_were(values, is_rising):
    assert read_column(pack(values, is_rising=is_rising)).tolist() == values


@pytest.mark.parametrize(
    "change", [{"n": 4}, {"n": -1}, {"n": 10**9}, {"data": "!"}, {"data": "AAAA"}, {"type": "O"}]
)
def test_a_column_that_breaks_its_declared_layout_is_refused(change):
    with pytest.raises((ValueError, KeyError)):
        read_column(pack([1, 2, 3]) | change)


def detail(**changes):
    found = {
        "strings": ["", "train.py:3", "m.py:7"],
        "roles": ["weights", "activations"],
        "allocations": {
            "born": pack([0, 2, 3, 9]), "life": pack([20, 5, 1, 4]), "size": pack([1, 0, 1, 0]), "what": pack([0, 1, 1, 1]),
        },
        "sizes": pack([16, 512]),
        "whats": {"where": pack([1, 2]), "role": pack([0, 1])},
        "rest": {"row": pack([0, 6]), "bytes": [pack([8, 4]), pack([0, 2])]},
        "peak_row": 4,
    }  # fmt: skip
    return {"details": {"3": found | changes}}


def test_lines_at_the_peak_add_up_to_it():
    # At row 4 the weights (512), one activation of 16 and the 8 that were not named are alive; 10 no tensor explains.
    assert lines_at_peak(detail(), 3, 512 + 16 + 8 + 10) == {
        ("train.py:3", "weights"): 512, ("m.py:7", "activations"): 16, ("", "weights"): 8, ("", "unnamed"): 10,
    }  # fmt: skip


def test_a_page_that_tells_no_lines_or_those_of_another_run_is_no_answer():
    assert lines_at_peak(detail(), 0, 600) is None
    assert lines_at_peak(detail(), 3, 100) is None  # less than what is alive: not this run
    assert lines_at_peak(detail(whats=np.nan), 3, 600) is None
    assert lines_at_peak({}, 3, 600) is None
