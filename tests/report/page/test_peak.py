"""The flame graph and the allocator's map in a real browser, on a small training with names as bad as they get."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.memory.recorded import detail_of, memory_of
from tests.report.browser import complaints, n_colours, pixels
from tests.report.runs import FITTING, run_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Frame, Free, Mark, Op, Phase, Role, Signature, Step, TensorSpec
from windtunnel.memory.allocator_map import STATES
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.report.page.rank_detail import detail_document
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.units import MIB, format_bytes

EVIL = "<img src=x onerror=window['taken']=1>"  # without a dot: a module's path is cut at dots
READY = (
    "const done = arguments[0]; const look = async () => { if (!window.windtunnel) return setTimeout(look, 5);"
    " await windtunnel.ready(); requestAnimationFrame(() => done()); }; look();"
)


def _recording(path):
    """Four layers of 30 MiB, a weight, a head with a bad name; one activation is freed, so that there is a hole."""
    names = (*(f"net.layers.{i}.mlp" for i in range(4)), EVIL, "net.layers.0.mlp.weight")
    spec = TensorSpec((3, 5), (5, 1), "float32")
    signatures = [Signature("aten.mm.default", (), (spec,), ""), Signature(EVIL, (), (spec,), "")]
    frames = [
        Frame("/home/me/train.py", 41, "main"),
        Frame("/home/me/model.py", 7, "forward", 0),
        Frame("/home/me/head.py", 9, EVIL, 0),
    ]
    events = [Alloc(1, 50 * MIB, phase=Phase.BUILD, frame=0), Mark(1, Role.WEIGHT, 5)]
    for i in range(4):
        events += [Alloc(10 + i, 30 * MIB, op=i, role=Role.ACTIVATION, module=i, frame=1)]
        events += [Op(i, 0, (1,), (10 + i,), module=i, frame=1)]
    events += [Free(11), Alloc(20, 60 * MIB, op=4, role=Role.ACTIVATION, module=4, frame=2)]
    events += [Op(4, 1, (), (20,), module=4, frame=2)]
    events += [Alloc(21, 8 * MIB, op=5, role=Role.TEMPORARY, module=4, phase=Phase.BACKWARD)]
    events += [Op(5, 0, (), (21,), module=4, phase=Phase.BACKWARD), Free(21), Free(20), Step(1)]
    record_events(path, events, names, signatures, frames)
    return read_recording(path)


def _allocator(limit, spec="cuda"):
    return Allocator.from_spec(spec, device_bytes=limit)


def _rank(found):
    return replace(
        FITTING,
        peak_bytes=found.peak_bytes,
        peak_with_fragments_bytes=found.peak_with_fragments_bytes,
        peak_at=found.peak_at,
        at_peak_bytes=found.at_peak,
        at_peak_by_module=found.by_module,
        largest_at_peak=found.largest,
    )


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    recording = _recording(tmp_path_factory.mktemp("run") / "r.arrows")
    return recording, memory_of(recording, _allocator)


@pytest.fixture(scope="module")
def pages(memory, tmp_path_factory):
    recording, found = memory
    rank = _rank(found)
    folder = tmp_path_factory.mktemp("peak")
    details = {0: detail_document(detail_of(recording, _allocator))}
    thin = {0: detail_document(detail_of(recording, _allocator, most_allocations=1))}
    two = run_of(rank, replace(rank, rank=1))
    for name, run, told in (
        ("whole", run_of(rank), details),
        ("thin", run_of(rank), thin),
        ("two", two, details),
    ):
        (folder / f"{name}.html").write_bytes(page_bytes("run", run_document(run, name, told)))
    return folder


@pytest.fixture
def show(browser, pages):
    def opened(name="whole", view="peak"):
        browser.get("about:blank")
        browser.get((pages / f"{name}.html").as_uri() + f"#{view}")
        browser.execute_async_script(READY)
        return browser.find_element("id", f"view-{view}")

    yield opened
    assert complaints(browser) == []
    assert browser.execute_script("return window.taken") is None


def _nodes(view):
    return [each.get_attribute("aria-label") for each in view.find_elements("css selector", ".flame-node")]


def _node(view, name):
    return next(
        each
        for each in view.find_elements("css selector", ".flame-node")
        if each.get_attribute("aria-label").startswith(f"{name}, ")
    )


def _total(view):
    return view.find_element("id", "flame-total").text


def _press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser, duration=0).send_keys(*keys).perform()


def _focused(browser):
    return browser.execute_script("return document.activeElement.getAttribute('aria-label')")


def test_everything_adds_up_to_the_peak_of_the_report(show, memory):
    view, found = show(), memory[1]
    assert _total(view) == format_bytes(found.peak_bytes)
    kinds = {b.get_attribute("data-role"): b.text for b in view.find_elements("css selector", "[data-role]")}
    assert kinds.pop("all") == f"all kinds {format_bytes(found.peak_bytes)}"
    held = {role: n for role, n in found.at_peak.items() if n}
    assert {role: text.split(" ", text.count(" ") - 1)[-1] for role, text in kinds.items()} == {
        role: format_bytes(n) for role, n in held.items()
    }


def test_layers_are_together_until_they_are_distinguished(show):
    view = show()
    assert _nodes(view)[:3] == [
        "alive at the peak, 208.0 MiB, 100.0 %",
        "net, 140.0 MiB, 67.3 %",
        "layers, 140.0 MiB, 67.3 %",
    ]
    assert "0,2-3, 140.0 MiB, 67.3 %" in _nodes(view)
    view.find_element("xpath", ".//label[contains(., 'layers together')]/input").click()
    assert [n for n in _nodes(view) if n[0] in "0123"] == [
        "0, 80.00 MiB, 38.5 %",
        "2, 30.00 MiB, 14.4 %",
        "3, 30.00 MiB, 14.4 %",
    ]


def test_one_kind_alone(show):
    view = show()
    view.find_element("css selector", '[data-role="activations"]').click()
    assert _total(view) == "150.0 MiB"
    assert "temporary" not in " ".join(_nodes(view))
    assert f"{EVIL}, 60.00 MiB, 28.8 %" in _nodes(view)


def test_the_width_of_a_node_is_its_share(show, browser):
    view = show()
    whole, part = (
        browser.execute_script("return arguments[0].getBoundingClientRect().width", _node(view, name))
        for name in ("alive at the peak", "layers")
    )
    assert part / whole == pytest.approx(140 / 208, abs=0.002)


def test_by_source_line_from_the_script_inwards(show):
    view = show()
    view.find_element("xpath", ".//button[text()='by source line']").click()
    assert "train.py:41 main, 200.0 MiB, 96.2 %" in _nodes(view)
    assert f"head.py:9 {EVIL}, 60.00 MiB, 28.8 %" in _nodes(view)
    assert "(no line of Python: backward, or a library), 8.00 MiB, 3.8 %" in _nodes(view)
    assert _total(view) == "208.0 MiB"


def test_a_click_zooms_and_escape_goes_back(show, browser):
    from selenium.webdriver.common.keys import Keys

    view = show()
    _node(view, "layers").click()
    assert _total(view) == "140.0 MiB"
    assert EVIL not in " ".join(_nodes(view))
    assert "Largest tensors in net › layers" in view.text
    _press(browser, Keys.ESCAPE)
    assert view.find_element("css selector", ".flame-crumbs").text.splitlines()[:2] == [
        "alive at the peak",
        "net",
    ]
    _press(browser, "0")
    assert _total(view) == "208.0 MiB"


def test_arrow_keys_walk_the_tree(show, browser):
    from selenium.webdriver.common.keys import Keys

    view = show()
    browser.execute_script("document.querySelector('.flame-node[tabindex=\"0\"]').focus()")
    seen = []
    for key in (Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_UP):
        _press(browser, key)
        seen.append(_focused(browser).rpartition(", ")[0].rpartition(", ")[0])
    assert seen == ["net", EVIL, "net", "layers", "net"]
    assert browser.find_element("id", "tip").text.startswith(
        "net\n140.0 MiB, 67.3 %, 4 tensors\nactivations 90.00 MiB, weights 50.00 MiB"
    )
    _press(browser, Keys.ENTER)
    assert _total(view) == "140.0 MiB"


def test_the_pointer_names_what_it_is_on(show, browser):
    from selenium.webdriver.common.action_chains import ActionChains

    view = show()
    ActionChains(browser, duration=0).move_to_element(_node(view, f"{EVIL} 3x5 float32")).perform()
    assert browser.find_element("id", "tip").text.splitlines() == [
        f"{EVIL} › {EVIL} 3x5 float32",
        "60.00 MiB, 28.8 %, 1 tensor",
        "activations 60.00 MiB",
        "made at head.py:9",
    ]


def test_a_search_says_how_many_bytes_match(show):
    view = show()
    view.find_element("css selector", "input[type=search]").send_keys("MLP")
    assert view.find_element("css selector", "[role=status]").text == "1 place, 140.0 MiB, 67.3 %"
    assert [each.text for each in view.find_elements("css selector", ".flame-node.match")] == ["mlp"]
    view.find_element("css selector", "input[type=search]").send_keys("x")
    assert view.find_element("css selector", "[role=status]").text == "nothing matches"


def test_the_largest_tensors_open_their_stacks(show):
    from selenium.webdriver.common.keys import Keys

    view = show()
    rows = view.find_elements("css selector", "#flame-groups tbody tr:not([hidden])")
    assert [cell.text for cell in rows[0].find_elements("css selector", "td")] == [
        "aten.mm net.layers.0,2-3.mlp", "activations", "90.00 MiB", "43.3 %", "3", "3x5 float32", "model.py:7 ▸",
    ]  # fmt: skip
    rows[0].send_keys(Keys.ENTER)
    stack = view.find_element("css selector", "tr.flame-stack:not([hidden])")
    assert stack.text == "/home/me/model.py:7 forward\n/home/me/train.py:41 main"


def test_another_moment_can_be_looked_at(show, browser, memory):
    view = show()
    detail = detail_of(memory[0], _allocator)
    row = int(detail.born[2])
    browser.execute_async_script(
        "windtunnel.page.choose({at: arguments[0]}); setTimeout(arguments[1], 50)", row
    )
    alive = (detail.born <= row) & (detail.freed > row)
    assert _total(view) == format_bytes(int(detail.n_bytes[alive].sum()))
    assert f"Alive after event {row}" in view.text
    view.find_element("xpath", ".//button[text()='back to the peak']").click()
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    assert _total(view) == "208.0 MiB"


def test_what_was_thinned_away_still_counts(show):
    view = show("thin")
    assert _total(view) == "208.0 MiB"


def test_a_rank_without_details_is_reported_by_module(show, browser):
    view = show("two")
    browser.execute_async_script("windtunnel.page.choose({rank: 1}); setTimeout(arguments[0], 50)")
    assert "Only the tightest rank is shown with every allocation" in view.text
    assert _total(view) == "208.0 MiB"
    assert not view.find_element("xpath", ".//button[text()='by source line']").is_enabled()
    browser.execute_script("windtunnel.show('allocator')")
    browser.execute_async_script(READY)
    assert "of rank 1 there is no map" in browser.find_element("id", "view-allocator").text


def test_the_map_of_the_allocator_is_the_reports(show, browser, memory):
    view, found = show("whole", "allocator"), memory[1]
    assert view.find_element("id", "allocator-allocated").text == format_bytes(found.peak_bytes)
    last = view.find_elements("css selector", "[aria-label=Moment] button")[-1]
    last.click()
    assert view.find_element("id", "allocator-reserved").text == format_bytes(found.peak_with_fragments_bytes)
    canvas = view.find_element("css selector", "canvas")
    box = canvas.rect
    drawn = pixels(browser)[
        int(box["y"]) : int(box["y"] + box["height"]), int(box["x"]) : int(box["x"] + box["width"])
    ]
    assert n_colours(drawn) > 4


def test_blocks_and_holes_are_named_by_pointer_and_keys(show, browser, memory):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    view = show("whole", "allocator")
    canvas = view.find_element("css selector", "canvas")
    corner = ActionChains(browser, duration=0).move_to_element_with_offset(
        canvas, -canvas.size["width"] // 2 + 8, -canvas.size["height"] // 2 + 10
    )
    corner.perform()
    assert browser.find_element("id", "tip").text.startswith(
        "net.layers.0.mlp.weight\n50.00 MiB, weights\nmade at train.py:41\n"
    )
    browser.execute_script("document.querySelector('#view-allocator canvas').focus()")
    said = []
    for _ in range(24):
        _press(browser, Keys.ARROW_RIGHT)
        said.append(view.find_element("css selector", ".allocator-said strong").text)
    columns = detail_of(memory[0], _allocator).maps[0].columns
    holes = columns.block_bytes[columns.block_state == STATES.index("inactive")].tolist()
    assert said[0] == "net.layers.0.mlp.weight"
    assert f"{EVIL} in {EVIL}" in said
    assert holes
    assert {text for text in said if text.startswith("hole")} == {f"hole of {format_bytes(n)}" for n in holes}


@pytest.mark.parametrize("spec", ["cuda-expandable", "mindspore", "npu"])
def test_other_allocators_are_drawn_as_they_count(show, pages, memory, spec):
    make = partial(_allocator, spec=spec)
    found = memory_of(memory[0], make)
    detail = detail_of(memory[0], make)
    document = run_document(run_of(_rank(found)), spec, {0: detail_document(detail)})
    (pages / f"{spec}.html").write_bytes(page_bytes("run", document))
    view, columns = show(spec, "allocator"), detail.maps[0].columns
    assert view.find_element("id", "allocator-allocated").text == format_bytes(found.peak_bytes)
    assert view.find_element("id", "allocator-reserved").text == format_bytes(columns.reserved_bytes)
    # Segments that are longer than what is counted of them must not look like lost memory.
    taken = int(columns.n_bytes.sum())
    assert (f"The segments are {format_bytes(taken)} long" in view.text) == (taken > columns.reserved_bytes)
