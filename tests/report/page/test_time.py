"""The time view, in a real browser: sentences, bars, one step of two ranks, modules, operators, the way to Perfetto."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.report.browser import complaints, n_colours, open_anew, pixels
from tests.report.timed import FAST, PROFILE, SLOW, TIME, timed_rank, timed_run
from tests.report.trace.traces import BAD, some_memory, two_ranks
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.trace.page import trace_document

MODULES = PROFILE.by_module | {f"net.{BAD}": 0.05}
# A browser that has Perfetto: its tab answers, and keeps what it is given.
PERFETTO = """
window.given = []; window.opened = [];
window.open = (address) => { opened.push(address); return { postMessage(message, origin) {
  given.push([message, origin]);
  if (message === "PING" && given.length > 1) dispatchEvent(new MessageEvent("message", {data: "PONG", origin: "https://ui.perfetto.dev"}));
} }; };
"""


@pytest.fixture(scope="module")
def trace():
    ranks = two_ranks()
    return trace_document(ranks, memories=[some_memory(len(recording)) for recording, _ in ranks])


@pytest.fixture(scope="module")
def written(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("page") / "report.html"
    profile = replace(PROFILE, by_module=MODULES)
    run = timed_run(timed_rank(FAST, profile), timed_rank(SLOW, replace(profile, n_kernels=7)))
    run = replace(run, time=replace(TIME, notes=(BAD,)))
    path.write_bytes(page_bytes("run", run_document(run, "timed", trace=trace)))
    return path


@pytest.fixture
def shown(browser, written):
    open_anew(browser, written, "#time")
    return browser


@pytest.fixture(autouse=True)
def _silent(shown):
    yield
    assert complaints(shown) == []
    assert shown.title == "timed"


def _text(driver, selector):
    return driver.find_element("css selector", selector).text


def _span(driver):
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return driver.find_element("id", "trace-span").text


def _hover(driver, name):
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    driver.execute_script("document.querySelector('.trace-view').scrollIntoView({block: 'center'})")
    place = driver.execute_script("return windtunnelTrace.place(arguments[0])", name)
    mouse = ActionBuilder(driver)
    mouse.pointer_action.move_to_location(int(place["x"]), int(place["y"]))
    mouse.perform()
    return driver.find_element("id", "tip").text.splitlines()


def _click(driver, selector):
    """Not under the head of the page, which stays where it is."""
    element = driver.find_element("css selector", selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def _choose(driver, rank):
    driver.execute_script("windtunnel.page.choose({rank: arguments[0]})", rank)


def test_the_page_gets_the_last_step_packed_and_small(trace):
    assert (trace["ranks"], trace["step"], trace["leftOut"]) == ([0, 1], 3, [])
    assert {track["kind"] for track in trace["tracks"]} == {
        "phases",
        "host",
        "modules",
        "stream",
        "communication",
    }
    assert len(json.dumps(trace)) < 20_000
    labels = [json.dumps(label) for label in trace["labels"]]
    assert len(labels) == len(set(labels)), "two ranks that say the same say it once"
    assert trace_document([]) is None


def test_the_job_is_reported_in_figures_and_sentences(shown):
    facts = _text(shown, ".time-facts").splitlines()
    assert facts[:3] == ["a step", "1 s", "the first takes 1.25 s"]
    assert {"8,192", "50.0 %", "66.7 %", "10.0 %"} <= set(facts)
    text = _text(shown, "#view-time")
    for sentence in (TIME.bound_by, f"Rank 1 is the slowest: {TIME.slowest_why}.", TIME.network, f"{BAD}."):
        assert sentence in text


def test_the_parts_of_a_bar_are_those_of_the_rank_and_add_up(shown):
    _choose(shown, 0)
    rows = [row.text.splitlines()[0] for row in shown.find_elements("css selector", ".time-parts tr")]
    assert rows == [
        "kernels 500 ms 50.0 %",
        "bubble: waiting for other stages 200 ms 20.0 %",
        "waiting for the network, tp 125 ms 12.5 %",
        "no kernel launched yet 100 ms 10.0 %",
        "waiting for slower ranks, tp 50 ms 5.0 %",
        "waiting for other streams 25 ms 2.5 %",
        "the step 1 s",
    ]  # fmt: skip
    widths = shown.execute_script(
        "return [...document.querySelectorAll('.time-row')].map((row) =>"
        " [...row.querySelectorAll('.time-part')].map((part) => parseFloat(part.style.width)))"
    )
    assert widths == [[50, 12.5, 5, 20, 2.5, 10], [75, 12.5, 2.5, 10]]


def test_a_click_on_a_bar_chooses_its_rank(shown):
    _choose(shown, 0)
    shown.find_elements("css selector", ".time-row")[1].click()
    assert shown.execute_script("return windtunnel.page.rank") == 1
    assert _text(shown, ".time-split h3") == "Rank 1"
    assert "in 7 kernels a step" in _text(shown, "#view-time")
    _choose(shown, 0)
    assert "in 69 kernels a step" in _text(shown, "#view-time")


def test_the_step_is_drawn_with_waiting_in_words(shown):
    shown.execute_script("document.querySelector('.trace-view').scrollIntoView({block: 'center'})")
    box = shown.execute_script(
        "const box = document.querySelector('.trace-picture').getBoundingClientRect();"
        " return [box.top, box.bottom, box.left, box.right].map(Math.round)"
    )
    top, bottom, left, right = box
    assert n_colours(pixels(shown)[top:bottom, left:right]) > 30
    names = [line.text for line in shown.find_elements("css selector", ".trace-names div")]
    assert names == ["rank 0", "steps and phases", "stream 0", "rank 1", "steps and phases", "stream 0"]
    assert _hover(shown, "aten.mm_backward")[:2] == ["aten.mm_backward", "80 µs from 55 µs"]
    assert _hover(shown, "waiting for all_reduce")[0] == "waiting for all_reduce"
    _click(shown, "[data-kind=all]")
    assert "dp <b> (2 ranks)" in _text(shown, ".trace-names")
    assert BAD in _hover(shown, BAD)
    _click(shown, "[data-kind=streams]")


def test_keys_buttons_and_the_wheel_zoom(shown):
    from selenium.webdriver.common.action_chains import ActionChains

    shown.execute_script("document.querySelector('.trace-view').focus()")
    ActionChains(shown).send_keys("0").perform()
    everything = _span(shown)
    ActionChains(shown).send_keys("w").perform()
    closer = _span(shown)
    assert closer != everything
    _click(shown, ".trace-bar [title='zoom in']")
    assert _span(shown) not in (closer, everything)
    _click(shown, ".trace-bar [title='show everything']")
    assert _span(shown) == everything
    wheel = (
        "document.activeElement.blur();"
        "const event = new WheelEvent('wheel', {deltaY: -60, ctrlKey: arguments[0], clientX: 700, clientY: 500,"
        " bubbles: true, cancelable: true});"
        "document.querySelector('.trace-picture').dispatchEvent(event); return event.defaultPrevented"
    )
    assert shown.execute_script(wheel, False) is False, "the page scrolls"
    assert _span(shown) == everything
    assert shown.execute_script(wheel, True) is True
    assert _span(shown) != everything
    _click(shown, ".trace-bar [title='show everything']")


def test_a_search_finds_slices(shown):
    from selenium.webdriver.common.keys import Keys

    box = shown.find_element("id", "trace-search")
    box.send_keys("adam", Keys.ENTER)
    assert _text(shown, "#trace-found") == "2 found"  # one step, two ranks, on their streams
    assert _text(shown, "#trace-details").splitlines()[0] == "aten.adam"
    box.send_keys(Keys.ESCAPE)
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE)
    _click(shown, ".trace-bar [title='show everything']")


def test_modules_are_a_tree_with_layers_together(shown):
    rows = [
        row.text
        for row in shown.find_elements("css selector", ".time-modules tbody tr")
        if row.is_displayed()
    ]
    assert rows[0].split() == ["layers.0-5.mlp", "×", "6", "600", "ms", "80.0", "%", "600", "ms"]
    assert any(row.startswith(f"net.{BAD}") for row in rows)
    assert any(row.startswith("outside of modules 148 ms") for row in rows)
    shown.find_element("xpath", "//button[text()='layers together']").click()
    rows = [row.text for row in shown.find_elements("css selector", ".time-modules tbody tr")]
    assert sum("mlp" in row for row in rows) == 6


def test_operators_are_sorted_by_any_column(shown):
    first = ".time-operators tbody tr:first-child td"
    assert _text(shown, first) == "aten.mm"
    for key, expected in (("op", "(kernels of the compiler)"), ("gbs", "aten.cat"), ("count", "aten.mm")):
        _click(shown, f".time-sort[data-key={key}]")
        assert _text(shown, first) == expected
    _click(shown, ".time-sort[data-key=count]")
    assert _text(shown, first) == "aten.cat"


def test_perfetto_gets_every_slice_at_its_time(shown, trace):
    shown.execute_script(PERFETTO)
    _click(shown, ".perfetto-open")
    shown.execute_async_script(
        "const done = arguments[0];"
        "const wait = () => given.length && given.at(-1)[0] !== 'PING' ? done() : setTimeout(wait, 20); wait()"
    )
    text, title, origin, address = shown.execute_script(
        "const [message, origin] = given.at(-1);"
        "return [new TextDecoder().decode(message.perfetto.buffer), message.perfetto.title, origin, opened[0]]"
    )
    assert (title, origin, address) == ("timed", "https://ui.perfetto.dev", "https://ui.perfetto.dev")
    events = json.loads(text)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == sum(track["start"]["n"] for track in trace["tracks"])
    backward = [e for e in slices if e["name"] == "aten.mm_backward" and e["cat"] == "kernel"]
    assert [e["dur"] for e in backward] == [80, 180]
    assert {e["args"]["module"] for e in backward} == {BAD}
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [named[e["pid"]] for e in backward] == ["rank 0", "rank 1"]
    assert {e["ph"] for e in events} == {"M", "X", "s", "f", "C"}
    assert "has the trace" in _text(shown, ".perfetto-save + span")


def test_a_blocked_tab_is_reported(shown):
    shown.execute_script("window.open = () => null")
    _click(shown, ".perfetto-open")
    assert "allow pop-ups" in _text(shown, ".perfetto-save + span")


def test_it_follows_the_theme_of_the_page(shown):
    shown.execute_script("document.querySelector('.trace-view').scrollIntoView({block: 'center'})")
    means = []
    for _ in range(2):
        shown.find_element("id", "theme").click()
        _span(shown)
        means.append(pixels(shown)[100:].mean())
    assert means[0] > 180  # light, then dark
    assert means[1] < 80
