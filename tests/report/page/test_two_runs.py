"""Two runs in a browser: what changed in a sentence, figures of both reports, sums that agree, turned round at a click."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.browser import complaints, n_colours, open_anew, open_browser, pixels
from tests.report.runs import FITTING, LARGE, run_of
from tests.report.timed import TIME, timed_run
from windtunnel.commands.comparison_page import comparison_page, is_run_folder
from windtunnel.memory.attribution import ModuleShare, RoleBytes
from windtunnel.report.json.run import write_report
from windtunnel.report.page.two_runs import comparison_document
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.report.results.two_runs import run_difference, sentences
from windtunnel.units import GIB

EVIL = "<script>alert(1)</script>"
A = run_of(replace(LARGE, rank=1), FITTING)
B = run_of(
    FITTING,
    replace(
        FITTING,
        rank=1,
        peak_bytes=62 * GIB,
        peak_with_fragments_bytes=70 * GIB,
        at_peak_bytes=RoleBytes(weights=20 * GIB, activations=42 * GIB),
        at_peak_by_module=(
            ModuleShare(EVIL, "weights", 20 * GIB),
            ModuleShare("head", "activations", 42 * GIB),
        ),
    ),
)


@pytest.fixture(scope="module")
def driver():
    with open_browser(1280, 900) as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison") / "page.html"
    write_page(path, page_bytes("comparison", comparison_document("before", A, None, "after", B, None)))
    return path


@pytest.fixture
def page(driver, written):
    open_anew(driver, written)
    return driver


def _click(driver, selector):
    driver.execute_script("document.querySelector(arguments[0]).click()", selector)


def _texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
    )


def _rows(driver, table):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.cells].map((cell) => cell.textContent))",
        f"#{table} tbody tr",
    )


def test_it_says_what_changed_first(page):
    assert (
        _texts(page, "#view-comparison h1, #view-comparison > p")[:2] == sentences(run_difference(A, B))[:2]
    )
    assert _texts(page, ".comparison-side h3") == ["A before", "B after"]
    assert complaints(page) == []


def test_rows_by_kind_and_by_module_end_in_what_the_ranks_need(page):
    needs = ["what the rank needs", "96.00 GiB", "70.00 GiB", "−26.00 GiB"]
    assert _rows(page, "comparison-roles")[-1][:4] == needs
    assert _rows(page, "comparison-modules")[-1][:4] == needs
    kinds = {row[0]: row[1:4] for row in _rows(page, "comparison-roles")}
    assert kinds["weights"] == ["14.00 GiB", "20.00 GiB", "+6.00 GiB"]
    assert kinds["gradients"] == ["14.00 GiB", "0 B", "−14.00 GiB"]
    assert kinds["fragments and cache"] == ["6.00 GiB", "8.00 GiB", "+2.00 GiB"]


def test_names_of_modules_are_text(page):
    assert any(row[0] == EVIL for row in _rows(page, "comparison-modules"))
    assert page.execute_script("return document.querySelectorAll('main script').length") == 0


def test_tables_are_sorted_by_a_click_on_their_head(page):
    heads = page.find_elements("css selector", "#comparison-modules th button")
    assert heads[-1].text.startswith("change")
    page.execute_script("arguments[0].click()", heads[2])  # A
    figures = [float(row[2].split()[0]) for row in _rows(page, "comparison-modules")[:-1]]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > figures[1] > 0
    assert (
        page.execute_script("return document.querySelectorAll('#comparison-modules th')[2].ariaSort")
        == "descending"
    )


def test_ranks_are_told_side_by_side(page):
    assert [row[:4] for row in _rows(page, "comparison-ranks")] == [
        ["1", "✗ → ✓", "96.00 GiB", "70.00 GiB"],
        ["0", "✓ → ✓", "66.00 GiB", "66.00 GiB"],
    ]


def test_it_can_be_turned_round(page):
    _click(page, "#comparison-swap")
    assert _texts(page, "#view-comparison h1") == sentences(run_difference(B, A))[:1]
    assert _texts(page, ".comparison-side h3") == ["A after", "B before"]
    assert _rows(page, "comparison-modules")[-1][1:4] == ["70.00 GiB", "96.00 GiB", "+26.00 GiB"]
    _click(page, "#comparison-swap")
    assert _texts(page, ".comparison-side h3") == ["A before", "B after"]
    assert complaints(page) == []


def test_memory_over_time_is_drawn_in_both_themes(page):
    for theme in ("light", "dark"):
        page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        page.execute_script("dispatchEvent(new Event('resize'))")
        assert len(page.find_elements("css selector", ".comparison-times canvas")) == 1
        assert n_colours(pixels(page)) > 30
    assert complaints(page) == []


def test_times_are_compared_at_level_3(driver, tmp_path):
    slow = timed_run(time=replace(TIME, step_seconds=1.31))
    path = tmp_path / "page.html"
    write_page(path, page_bytes("comparison", comparison_document("a", timed_run(), None, "b", slow, None)))
    open_anew(driver, path)
    assert _rows(driver, "comparison-step") == [["whole step", "1 s", "1.31 s", "+310 ms", ""]]
    assert ["matmul", "500 ms", "500 ms", "same", ""] in _rows(driver, "comparison-classes")
    assert complaints(driver) == []


def test_folders_of_runs_are_compared_with_or_without_their_pages(tmp_path):
    for name, run in (("a", A), ("b", B)):
        (tmp_path / name).mkdir()
        write_report(tmp_path / name / "report.json", run)
    (tmp_path / "b" / "report.html").write_text("damaged")
    assert is_run_folder(tmp_path / "a")
    assert not is_run_folder(tmp_path)
    page, text = comparison_page(tmp_path / "a", tmp_path / "b")
    assert page.startswith(b"<!doctype html>")
    words = " ".join(text.split())
    assert sentences(run_difference(A, B))[0] in words
    assert "needs 96.00 GiB 70.00 GiB -26.00 GiB" in words
