"""The frame of every page: one file, nothing from elsewhere, text that stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.runs import A100, FITTING
from windtunnel.report.page import web_page
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.report.results.run import RunResult, same_as

TEMPLATES = Path(web_page.__file__).parents[1] / "templates"
BAD = "</script><script>window.pwned = 1</script><!--"
KINDS = ("run", "comparison", "precision")


def _run(n_ranks=1):
    others = tuple(same_as(rank, FITTING) for rank in range(1, n_ranks))
    return RunResult("0.1.0", 1, n_ranks, A100, "cuda", (FITTING, *others))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_nothing_from_elsewhere_and_runs_only_its_own_script(kind):
    page = page_bytes(kind, {"title": BAD, "note": BAD}).decode()
    assert page.count("</script>") == 2  # the data's and the script's
    assert "<script>window.pwned" not in page
    head, rest = page.split('<script type="application/json" id="data">')
    data, script = rest.split("</script>\n<script>")
    assert json.loads(data)["note"] == BAD
    assert [
        where
        for where in re.findall(r"(?:href|src)=[\"']([^\"']*)", head)
        if where[:5] != "data:" and where[0] != "#"
    ] == []
    digest = hashlib.sha256(script.split("</script>")[0].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in head
    assert "default-src 'none'" in head


@pytest.mark.parametrize("word", ["data", "script", "style", "title", "script_hash"])
def test_text_that_looks_like_a_place_of_the_template_is_text(word):
    text = f"train_{{{{{word}}}}}.py"
    page = page_bytes("run", {"title": text, "note": text})
    assert page.count(text.encode()) == 3  # the title, and twice in the data
    assert len(page) - len(page_bytes("run", {"title": "", "note": ""})) == 3 * len(text)


def test_half_a_character_is_written_as_in_the_report():
    details = {0: {"strings": ["layer\udc80"]}}
    document = run_document(_run(), "train\udcff.py", details) | {"named": {"rank\ud800": 1}}
    page = page_bytes("run", document).decode()
    assert "<title>train\\udcff.py</title>" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["details"]["0"]["strings"] == ["layer\\udc80"]
    assert (data["title"], data["named"]) == ("train\\udcff.py", {"rank\\ud800": 1})


def test_flops_of_a_job_may_be_more_than_64_bits_hold():
    page = page_bytes("run", {"title": "", "flops": 39 * 10**18, "most": 2**63 - 1}).decode()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert (data["flops"], data["most"]) == (39 * 10**18, 2**63 - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_licence_of_the_charting_library_is_in_every_page(kind):
    page = page_bytes(kind, {"title": ""}).decode()
    assert (TEMPLATES / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8").strip() in page


def test_every_script_and_style_is_used_and_goes_into_the_wheel():
    named = {name for names in web_page.VIEWS.values() for name in names}
    there = {f"{path.parent.name}/{path.name}" for path in TEMPLATES.rglob("*.js")} - {
        "vendor/uPlot.iife.min.js"
    }
    shell = {f"shell/{name}.js" for name in ("words", "columns", "shell", "begin")}
    assert named | shell | {"time/trace_begin.js"} == there
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    patterns = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"][
        "windtunnel"
    ]
    package = Path(web_page.__file__).parents[2]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {path for path in TEMPLATES.rglob("*") if path.is_file()} <= packed


def test_a_page_is_whole_or_not_there(tmp_path):
    write_page(tmp_path / "p.html", b"abc")
    assert (tmp_path / "p.html").read_bytes() == b"abc"
    with pytest.raises(OSError, match="No such file"):
        write_page(tmp_path / "missing" / "p.html", b"abc")
    assert [path.name for path in tmp_path.iterdir()] == ["p.html"]


def test_thousands_of_ranks_are_columns():
    few, many = (len(page_bytes("run", run_document(_run(n), "x"))) for n in (1, 16_384))
    assert many - few < 100_000


def test_details_beyond_the_room_of_a_page_are_left_out_and_it_says_so():
    run = RunResult("0.1.0", 1, 3, A100, "cuda", tuple(_rank(n, need) for n, need in enumerate((5, 9, 7))))
    details = {rank: {"rows": 1, "left": "x" * 6_000_000} for rank in range(3)}
    document = run_document(run, "x", details)
    assert list(document["details"]) == [1, 2]  # those that need most
    assert document["left_out"][0].startswith("every allocation is shown for 2 of 3 simulated ranks")
    assert run_document(run, "x", {rank: {"rows": 1} for rank in range(3)})["left_out"] == []


def test_ranks_whose_memory_over_time_is_left_out_are_counted():
    run = RunResult("0.1.0", 1, 70, A100, "cuda", tuple(_rank(n, 100 - n) for n in range(70)))
    document = run_document(run, "x")
    assert document["simulated"][63]["timeline"] is not None
    assert document["simulated"][64]["timeline"] is None
    assert document["left_out"] == [
        "6 ranks that need less are shown without their memory over time: it is in report.json"
    ]


def _rank(number, need):
    return replace(FITTING, rank=number, peak_with_fragments_bytes=need)
