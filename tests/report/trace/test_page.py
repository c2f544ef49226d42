"""The page of a trace: in a real browser, with a program whose names are as bad as they get."""

from __future__ import annotations

import json
import re

import pytest

from tests.report.browser import complaints, n_colours, open_browser, pixels
from tests.report.trace.traces import BAD, some_memory, two_layers, two_ranks
from windtunnel.report.trace.page import trace_page


def test_the_page_holds_its_data_and_asks_for_nothing(tmp_path):
    ranks = two_ranks()
    written = trace_page(tmp_path / "t.html", ranks)
    page = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert written.n_bytes == len(page.encode())
    assert (written.n_left_out, written.left_out) == (0, ())
    assert BAD not in page
    assert re.findall(r"(?:src|href)=[\"']?(?!data:)[\w/.:]+", page.split('id="data">')[0]) == []
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["ranks"] == [0, 1]
    assert sum(len(track["start"]) for track in data["tracks"]) == written.n_slices
    assert BAD in [label[0] for label in data["labels"]]


def test_a_large_trace_is_thinned_and_the_page_says_so(tmp_path):
    script = two_layers(n_steps=30)
    written = trace_page(tmp_path / "t.html", [script.played()], max_events=70)
    assert written.n_left_out > 0
    assert written.left_out[0] in (tmp_path / "t.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def driver():
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "trace.html"
    ranks = two_ranks()
    trace_page(path, ranks, memories=[some_memory(len(recording)) for recording, _ in ranks])
    return path


@pytest.fixture
def shown(driver, written):
    """The page as it is at first: one start of the browser for all tests."""
    driver.get(written.as_uri())
    return driver


def _hover(driver, name):
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    place = driver.execute_script("return windtunnelTrace.place(arguments[0])", name)
    mouse = ActionBuilder(driver)
    mouse.pointer_action.move_to_location(int(place["x"]), int(place["y"]))
    mouse.perform()
    return driver.find_element("id", "tip").text


def _span(driver):
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return driver.find_element("id", "span").text


def _press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def test_it_is_drawn_without_a_complaint(shown):
    _span(shown)
    assert n_colours(pixels(shown)[100:, 300:]) > 30
    assert complaints(shown) == []
    names = [line.text for line in shown.find_elements("css selector", "#names div")]
    assert names[:3] == ["rank 0", "steps and phases", "host"]
    assert {"rank 1", "stream 0", "modules, stream 0", "dp <b> (2 ranks)", "allocated bytes"} <= set(names)


def test_hovering_shows_name_module_and_duration(shown):
    text = _hover(shown, "aten.mm_backward").splitlines()
    assert text[0] == "aten.mm_backward"
    assert text[1].startswith("4 µs from")  # the first of that name is the host's
    assert f"module: {BAD}" in text


def test_names_of_the_program_stay_text(shown):
    assert BAD in _hover(shown, BAD)
    assert shown.title == "windtunnel trace"
    assert shown.find_elements("tag name", "img") == []
    assert complaints(shown) == []


def test_a_search_finds_a_slice_and_goes_there(shown):
    from selenium.webdriver.common.keys import Keys

    box = shown.find_element("id", "search")
    box.send_keys("ADAM", Keys.ENTER)
    assert shown.find_element("id", "found").text == "12 found"  # three steps, host and stream, two ranks
    details = shown.find_element("id", "details").text.splitlines()
    assert details[0] == "aten.adam"
    assert "phase: optimizer" in details
    assert _span(shown) == "20 µs in view"  # five times the slice
    assert _hover(shown, "aten.adam").startswith("aten.adam")
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE, Keys.ESCAPE)
    assert shown.find_element("id", "found").text == ""
    assert not shown.find_element("id", "details").is_displayed()


def test_wheel_drag_and_keys_move_the_view(shown):
    from selenium.webdriver.common.action_chains import ActionChains

    canvas, view = shown.find_element("id", "picture"), shown.find_element("id", "view")
    shown.execute_script("arguments[0].focus()", view)
    _press(shown, "0")
    everything = _span(shown)
    ActionChains(shown).move_to_element(canvas).perform()
    shown.execute_script(
        "arguments[0].dispatchEvent(new WheelEvent('wheel',"
        " {deltaY: -60, clientX: 600, clientY: 300, bubbles: true, cancelable: true}))", canvas,
    )  # fmt: skip
    closer = _span(shown)
    assert closer != everything
    before = shown.execute_script("return windtunnelTrace.place('aten.adam').x")
    ActionChains(shown).click_and_hold(canvas).move_by_offset(-50, 0).release().perform()
    assert _span(shown) == closer
    assert shown.execute_script("return windtunnelTrace.place('aten.adam').x") == pytest.approx(
        before - 50, abs=1
    )
    _press(shown, "w")
    assert _span(shown) not in (closer, everything)
    _press(shown, "0")
    assert _span(shown) == everything


def test_it_is_dark_where_the_reader_likes_it_dark(shown):
    light = pixels(shown)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    _span(shown)
    night = pixels(shown)
    assert light.mean() > 180
    assert night.mean() < 80
    assert n_colours(night[100:, 300:]) > 30
    assert complaints(shown) == []
