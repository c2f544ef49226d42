"""The threshold curve in a browser: the answer first, every figure as in remat.json, the best point marked."""

from __future__ import annotations

import json

import pytest

from tests.remat.points import point
from tests.report.browser import await_page, complaints, n_colours, open_anew, open_browser, pixels
from tests.report.remat_results import OFF, POINTS, result
from tests.report.terminal.test_advisor import ADVICE
from windtunnel.report.json.remat import remat_text
from windtunnel.report.page.remat import advice_part, page_with, remat_part
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.report.terminal.advisor import advice_document

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def driver():
    with open_browser(1280, 900) as found:
        yield found


@pytest.fixture(scope="module")
def curve():
    return result(notes=(f"a note about {EVIL}",), subject=f"{EVIL}.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory, curve):
    path = tmp_path_factory.mktemp("remat") / "report.html"
    write_page(path, page_bytes("run", page_with(remat_part(curve), "1.2.3", None, None)))
    return path


@pytest.fixture
def page(driver, written):
    open_anew(driver, written)
    return driver


def _text(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? null", selector)


def test_it_opens_on_the_curve_and_answers_first(page, curve):
    document = json.loads(remat_text(curve))
    assert _text(page, "#view-remat h1") == document["answer"]
    assert _text(page, "#remat-use") == "\n".join(document["use"])
    assert complaints(page) == []


def test_the_table_has_every_point_and_marks_the_best(page, curve):
    document = json.loads(remat_text(curve))
    rows = page.execute_script(
        "return [...document.querySelectorAll('#remat-points tbody tr')]"
        ".map((row) => [row.className, ...[...row.cells].map((cell) => cell.textContent)])"
    )
    assert len(rows) == 1 + len(document["points"])
    assert [row[1] for row in rows] == ["off", "4GB", "6GB", "8GB", "10GB"]
    assert [row[0] for row in rows] == ["bad", "", "", "remat-best", "bad"]
    best = rows[3]
    assert best[3] == "+10.0 %"
    assert best[4:6] == [str(document["best"]["evictions"]), str(document["best"]["rematerialisations"])]
    assert best[7] == "9.00 GiB"
    assert "best" in best[9]
    failed = document["points"][3]["out_of_memory"]
    assert failed["operator"] in rows[4][10]


def test_keys_walk_along_the_points(page):
    from selenium.webdriver.common.keys import Keys

    charts = page.find_element("css selector", ".remat-charts")
    chosen = lambda: _text(page, ".remat-about h3")
    assert chosen() == "✓ 8GB, policy dtr: fits, the best"
    charts.send_keys(Keys.ARROW_LEFT)
    assert chosen() == "✓ 6GB, policy dtr: fits"
    charts.send_keys(Keys.END)
    assert chosen() == "✗ 10GB, policy dtr: does not fit"
    assert "Out of memory in step" in _text(page, ".remat-about")
    charts.send_keys(Keys.HOME, Keys.ARROW_LEFT)
    assert chosen() == "✓ 4GB, policy dtr: fits"
    assert complaints(page) == []


def test_pointing_at_a_threshold_tells_its_figures(page):
    from selenium.webdriver import ActionChains

    over = page.find_elements("css selector", ".remat-plots .u-over")[1]
    width, height = over.size["width"], over.size["height"]
    # 4 to 10 GiB with a twentieth of room on both sides: 6 GiB is a third of the way.
    at = (0.3 + 2) / 6.6 * width - width / 2
    ActionChains(page).move_to_element_with_offset(over, int(at), height // 4).perform()
    words = _text(page, "#tip")
    assert words.startswith("6GB, policy dtr: fits")
    assert "peak reserved: 8.00 GiB" in words
    assert "slower than without a limit: +25.0 %" in words


def test_names_are_text(page):
    assert EVIL in _text(page, "#view-remat")
    assert page.execute_script("return document.querySelectorAll('#view-remat script').length") == 0


def test_two_charts_are_drawn_in_both_themes(page):
    for theme in ("light", "dark"):
        page.execute_script(
            "document.documentElement.dataset.theme = arguments[0]; dispatchEvent(new Event('resize'))", theme
        )
        await_page(page)
        assert len(page.find_elements("css selector", ".remat-plots canvas")) == 2
        assert n_colours(pixels(page)) > 100
    assert complaints(page) == []


def test_policies_are_lines_to_switch_and_no_answer_is_said_too(driver, tmp_path):
    many = (*POINTS, *(point(size, 2.0, 9, policy="lru") for size in (4, 6, 8, 10)))
    for name, found in (
        ("many", result(many)),
        ("none", result(tuple(point(s, 1.0, 12, fits=False) for s in (4, 6)), OFF)),
    ):
        path = tmp_path / f"{name}.html"
        write_page(path, page_bytes("run", page_with(remat_part(found), "1.2.3", None, None)))
        driver.get(path.as_uri())
        await_page(driver)
        assert complaints(driver) == []
        if name == "many":
            buttons = driver.find_elements("css selector", "#view-remat [aria-pressed]")
            assert [button.text.strip() for button in buttons] == ["dtr", "lru"]
            buttons[1].click()
            assert buttons[1].get_attribute("aria-pressed") == "false"
        else:
            assert _text(driver, "#view-remat h1").startswith("None of these thresholds fits")
            assert _text(driver, "#remat-use") is None


def test_an_advice_is_a_picture_of_every_way_with_the_recommended_one_marked(driver, tmp_path):
    path = tmp_path / "report.html"
    write_page(path, page_bytes("run", page_with(advice_part(ADVICE, f"{EVIL}.py", "a100"), "1", None, None)))
    driver.get(path.as_uri())
    await_page(driver)
    document = advice_document(ADVICE)
    assert _text(driver, "#view-advice h1") == document["answer"]
    rows = driver.execute_script(
        "return [...document.querySelectorAll('#advice-points tbody tr')]"
        ".map((row) => [row.className, row.cells[0].textContent])"
    )
    assert [label for _, label in rows] == [point["label"] for point in document["points"]]
    assert [at for at, (kind, _) in enumerate(rows) if kind == "good"] == [document["recommended"]]
    assert _text(driver, "#view-advice .card h3") == "✓ windtunnel.dtr: fits, recommended"
    driver.find_element("css selector", ".advice-plot").send_keys(
        "\ue012"
    )  # to the left: the next lower peak
    assert _text(driver, "#view-advice .card h3") == "✓ best fixed set: fits"
    assert complaints(driver) == []
