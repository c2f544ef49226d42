"""Two dumps in a browser: where they part, the tree of modules, figures as `compare --json` has them, names as text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from tests.report.browser import complaints, n_colours, open_anew, open_browser, pixels
from windtunnel import __version__
from windtunnel.commands.comparison_page import precision_page
from windtunnel.probe.compare.call_states import call_states
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.report.json.compare import compare_text
from windtunnel.report.page import precision as compare_page
from windtunnel.report.page.precision import PrecisionPage
from windtunnel.report.page.precision_values import chosen_calls
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.source_lines import read_column
from windtunnel.report.page.web_page import write_page
from windtunnel.report.results.compare import CompareResult

EVIL = "<script>alert(1)</script>"
X = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def calls(factor=1.0, n_layers=3):
    """Layers of which the second goes wrong; the third receives it."""
    y, found = X, []
    for i in range(n_layers):
        if i == 1:
            out = y * np.float32(factor)
        else:
            out = y
        module = f"Module.layers.{i}.{EVIL}.Linear.forward.0"
        found.append(Call(f"Functional.{EVIL}.{i}.forward", [y, 0.5], [out], parent=module))
        found.append(Call(module, [y], [out]))
        y = out
    found.append(Call(f"Functional.{EVIL}.0.backward", [y], [y * 2]))
    return found


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    root = tmp_path_factory.mktemp("precision")
    for name, factor in (("a", 1.0), ("b", 1.5)):
        for step in (0, 1):
            write_dump(root / name / f"step{step}" / "rank0", calls(factor if step else 1.0))
    return root / "a", root / "b"


@pytest.fixture(scope="module")
def answer(dumps):
    findings = Findings()
    for found in compare_dumps(*dumps, Tolerance()):
        findings.add(found)
    return json.loads(compare_text(CompareResult(__version__, *map(str, dumps), None, False, findings)))


@pytest.fixture(scope="module")
def driver():
    with open_browser(1280, 900) as found:
        yield found


@pytest.fixture(scope="module")
def written(dumps, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "compare.html"
    write_page(path, precision_page(*dumps)[0])
    return path


@pytest.fixture
def page(driver, written):
    open_anew(driver, written)
    return driver


def _texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
    )


def test_it_names_the_first_divergence_and_its_surroundings(page, answer):
    assert _texts(page, "#view-precision h1") == [f"✗ {answer['verdict']}"]
    first = answer["first_divergence"]
    rows = page.execute_script(
        "return [...document.querySelectorAll('#precision-around tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (row["item"], row["a"], row["b"]) for row in first["around"]
    ]
    assert complaints(page) == []


def test_the_step_that_parts_is_in_front_and_its_place_marked_in_the_tree(page):
    assert _texts(page, "#precision-part option:checked") == ["step 1, rank 0: ✗ differs"]
    (marked,) = page.find_elements("css selector", ".precision-first")
    row = marked.find_element("xpath", "..")
    assert row.get_attribute("aria-selected") == "true"
    assert row.is_displayed()
    assert "begins" in row.get_attribute("class")
    states = page.execute_script(
        "return [...document.querySelectorAll('.precision-node')].filter((row) => row.ariaLevel === '2')"
        ".map((row) => [row.querySelector('.precision-name').textContent, row.querySelector('.precision-sign').textContent])"
    )
    assert states[:3] == [["0", "="], ["1", "✗"], ["2", "↳"]]


def test_the_figures_of_both_sides_stand_beside_each_other(page, answer):
    first = answer["first_divergence"]
    rows = page.execute_script(
        "return [...document.querySelector('.precision-values').tBodies[0].rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    bad = next(at for at, row in enumerate(rows) if row[0].startswith("output.0"))
    norms = [float(rows[bad][6]), float(rows[bad + 1][4 + 1])]
    around = first["around"][-1]
    assert norms == [pytest.approx(float(around["a"])), pytest.approx(float(around["b"]))]
    assert rows[bad][8].startswith("✗ different")
    assert float(rows[bad][7]) == pytest.approx(around["error"], rel=0.05)


def test_keys_walk_the_tree(page):
    from selenium.webdriver.common.keys import Keys

    def active():
        return page.execute_script(
            "const row = document.activeElement; return [row.querySelector('.precision-name').textContent, row.ariaExpanded]"
        )

    page.execute_script("document.querySelector('.precision-node').focus()")
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert active() == ["0", "false"]
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert active() == ["0", "true"]
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert active()[0] == f"{EVIL} Linear"
    page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert active()[0] == "0"
    assert _texts(page, ".precision-panel h3")[0].startswith("layers.0")
    assert complaints(page) == []


def test_a_click_in_the_chart_chooses_the_call(page):
    from selenium.webdriver import ActionChains

    page.find_element("id", "precision-go").click()
    (over,) = page.find_elements("css selector", ".precision-chart .u-over")
    size = over.size
    # The last call of seven lies at the right end; its error of a third is near the top.
    height = (0.4 + 1 + 0.48) / 10.9 * size["height"] - size["height"] / 2
    ActionChains(page).move_to_element_with_offset(
        over, size["width"] // 2 - 2, int(height)
    ).click().perform()
    assert _texts(page, ".precision-panel h3")[0] == f"Functional.Functional.{EVIL}"
    assert "its inputs already differ" in _texts(page, "#tip")[0]
    assert complaints(page) == []


def test_names_of_a_foreign_dump_are_text(page):
    assert EVIL in _texts(page, ".precision-tree")[0]
    assert page.execute_script("return document.querySelectorAll('main script').length") == 0


def test_other_steps_can_be_chosen_and_both_themes_drawn(page):
    from selenium.webdriver.support.ui import Select

    Select(page.find_element("id", "precision-part")).select_by_index(0)
    page.execute_async_script("setTimeout(arguments[0], 100)")
    assert page.find_elements("css selector", ".precision-first") == []
    for theme in ("light", "dark"):
        page.execute_script(
            "document.documentElement.dataset.theme = arguments[0]; dispatchEvent(new Event('resize'))", theme
        )
        page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        assert n_colours(pixels(page)) > 30
    assert complaints(page) == []


# -- what a page of a large dump keeps --------------------------------------------------------------------------------


def test_calls_where_a_difference_begins_are_told_first(dumps):
    found = list(compare_dumps(*dumps, Tolerance()))[1]
    states = call_states(found)
    places, told = chosen_calls(found, states, most_values=7, most_calls=100)
    assert places.tolist() == list(range(7))
    chosen = places[told].tolist()
    assert states.first in chosen
    assert states.first - 1 in chosen
    everything, all_told = chosen_calls(found, states, most_values=1000, most_calls=100)
    assert all_told.all()
    assert len(everything) == len(states.state)


def test_a_thinned_picture_keeps_the_worst_of_every_stretch(tmp_path):
    def calls_of(scale):
        off = {137: scale, 400: scale / 2}
        return [Call(f"Torch.f.{i}.forward", [X], [X * np.float32(1 + off.get(i, 0))]) for i in range(500)]

    paths = [write_dump(tmp_path / name, calls_of(scale)) for name, scale in (("a", 0.0), ("b", 0.5))]
    (found,) = compare_dumps(*paths, Tolerance())
    states = call_states(found)
    places, _ = chosen_calls(found, states, most_values=10**6, most_calls=40)
    assert len(places) <= 40
    assert {134, 135, 136, 137, 400} <= set(places.tolist())


def test_a_page_that_leaves_values_out_says_how_many(dumps, monkeypatch, tmp_path):
    monkeypatch.setattr(compare_page, "_MOST_VALUES", 12)
    monkeypatch.setattr(compare_page, "_LEAST_VALUES", 4)
    findings, page = Findings(), PrecisionPage()
    for found in compare_dumps(*dumps, Tolerance()):
        findings.add(found)
        page.add(found)
    write_page(tmp_path / "p.html", page.finish(CompareResult("1", "a", "b", None, False, findings)))
    parts = read_page_document(tmp_path / "p.html")["parts"]
    for part in parts:
        nodes = part["nodes"]
        roots = read_column(nodes["parent"]) < 0
        total = sum(
            int(read_column(nodes[name])[roots].sum())
            for name in ("equal", "rounding", "different", "one_sided")
        )
        assert total == part["n_values"] == 17  # the tree counts all of them
        assert part["n_told"] < part["n_values"]
