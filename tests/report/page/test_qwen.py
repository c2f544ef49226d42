"""The page as people have it: a real run of the Qwen2.5-7B demo, and a world whose names are markup, in a real browser."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.commands.cli import windtunnel
from tests.made_once import made_once
from tests.report.browser import complaints, n_colours, open_browser, pixels
from windtunnel.commands.page_server import PageServer
from windtunnel.commands.saved_page import saved_page
from windtunnel.units import format_bytes

DEMO = Path(__file__).parents[3] / "examples" / "qwen25_7b.py"
VIEWS = ("overview", "memory", "peak", "allocator", "time", "warnings")
# A script that runs sets window.pwned; the ways in are a file, a function's file, a class, two modules, an axis.
MARKUP = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mesh = dist.device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "<img src=x onerror=pwned=2>"))
names = {}
exec(compile("def forward(self, x):\\n    return self.inner(x).relu()\\n", "<script>pwned=3</script>.py", "exec"), names)
Odd = type("<svg onload=pwned=4>", (nn.Module,), {"forward": names["forward"]})
width = 1024 * (1 + rank // 2)
odd = Odd()
odd.inner = nn.Linear(width, width)
model = nn.Sequential()
model.add_module("</script><script>pwned=5</script>", odd)
model.add_module("<img src=x onerror=pwned=6>", nn.Linear(width, width))
model.cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    loss = model(torch.randn(512, width, device="cuda")).mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group(1))
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""

_READY = """
const done = arguments[arguments.length - 1];
(async () => {
  while (!window.windtunnel) await new Promise((next) => setTimeout(next, 10));
  await windtunnel.ready();
  requestAnimationFrame(() => requestAnimationFrame(() => done(null)));
})().catch((error) => done(error.message));
"""


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Level 3, batch 4: it does not fit."""

    def run(folder):
        done = windtunnel(
            "run", "--level", 3, "--out", "out", DEMO, "--batch-size", 4, "--steps", 2, cwd=folder
        )
        assert done.returncode == 4, done.stdout + done.stderr

    return made_once(tmp_path_factory, "qwen", run) / "out"


@pytest.fixture(scope="module")
def markup(tmp_path_factory):
    """Four ranks, two of them wider."""

    def run(folder):
        script = folder / "<img src=x onerror=pwned=1>.py"
        script.write_text(MARKUP)
        done = windtunnel("run", "--level", 3, "--world-size", 4, "--out", "out", script, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once(tmp_path_factory, "markup", run) / "out"


@pytest.fixture(scope="module")
def browser():
    with open_browser(1280, 900) as driver:
        yield driver


@pytest.fixture
def report(qwen):
    return json.loads((qwen / "report.json").read_text())


def show(driver, folder, view=""):
    """Open the page anew at a view, and wait until it is drawn."""
    driver.get("about:blank")
    driver.get(f"{(folder / 'report.html').as_uri()}#{view}")
    use_theme(driver, "light")


def use_theme(driver, theme):
    script = "document.documentElement.dataset.theme = arguments[0]; dispatchEvent(new Event('resize'));"
    driver.execute_script(script, theme)
    assert driver.execute_async_script(_READY) is None


def text_of(driver, selector="main"):
    return driver.execute_script("return document.querySelector(arguments[0]).innerText", selector)


def tip(driver):
    """What the box beside the pointer says."""
    return driver.execute_script(
        "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.innerText"
    )


def point(driver, element, right, down):
    """Move the pointer to a place, in parts of the element's size from its centre."""
    from selenium.webdriver import ActionChains

    x, y = round(element.size["width"] * right), round(element.size["height"] * down)
    ActionChains(driver, duration=0).move_to_element_with_offset(element, x, y).perform()
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def shot(driver, element):
    """The pixels of an element."""
    box = driver.execute_script(
        "const b = arguments[0].getBoundingClientRect(); return [b.x, b.y, b.width, b.height]", element
    )
    x, y, width, height = map(round, box)
    return pixels(driver)[y : y + height, x : x + width]


def test_every_view_is_there_and_drawn_in_both_themes(browser, qwen):
    show(browser, qwen)
    tabs = browser.execute_script(
        "return [...document.querySelectorAll('#tabs a')].map((tab) => tab.dataset.view)"
    )
    assert tabs == list(VIEWS)
    for view in VIEWS:
        show(browser, qwen, view)
        assert (
            browser.execute_script("return document.querySelector('main section:not([hidden])').id")
            == f"view-{view}"
        )
        papers = []
        for theme in ("light", "dark"):
            use_theme(browser, theme)
            seen = pixels(browser)
            assert n_colours(seen) > 20, (view, theme)  # antialiased text, and more
            papers.append(int(np.median(seen)))
        assert papers[0] > 200 > 80 > papers[1], view
    assert complaints(browser) == []


def test_figures_on_the_page_are_those_of_the_report(browser, qwen, report):
    (rank,), time = report["ranks"], report["time"]
    by_kind = [format_bytes(n) for n in rank["at_peak_bytes"].values() if n > 0]
    needed, live, usable = (
        format_bytes(rank[name])
        for name in ("peak_with_fragments_bytes", "peak_bytes", "usable_memory_bytes")
    )
    too_much = format_bytes(rank["peak_with_fragments_bytes"] - rank["usable_memory_bytes"])
    expected = {
        "overview": [
            "Does not fit", needed, live, usable, f"{too_much} too much", *by_kind, *rank["peak_at"].values(),
            *(format_bytes(tensors["bytes"]) for tensors in rank["largest_at_peak"][:8]),
        ],
        "memory": [f"Peak {live} live", f"{needed} reserved", f"{usable} usable", *by_kind],
        "peak": [f"all kinds {live}", *by_kind, rank["peak_at"]["op"], rank["peak_at"]["module"]],
        "allocator": [f"{live} of "],
        "time": [
            f"{time['step_seconds']:.3g} s", f"{100 * time['model_flops_utilisation']:.1f} %",
            f"{time['tokens_per_second']:,.0f}", time["bound_by"],
        ],
        "warnings": [
            *(text for value in rank["unknown_values"] for text in (value["where"], value["what"])), *rank["notes"],
        ],
    }  # fmt: skip
    for view, words in expected.items():
        show(browser, qwen, view)
        said = text_of(browser)
        assert [word for word in words if str(word) not in said] == [], view


def test_the_page_says_what_to_checkpoint_first(browser, qwen, report):
    show(browser, qwen, "overview")
    first = text_of(browser, "#overview-checkpoint tbody tr").split("\t")
    layers = [
        share["bytes"]
        for share in report["ranks"][0]["at_peak_by_module"]
        if share["role"] == "activations" and share["module"].startswith("model.layers.")
    ]
    assert first[0].split()[0] == "model.layers.0-27"
    assert format_bytes(sum(layers)) in first


def test_pointing_at_memory_names_the_allocation_its_module_and_line(browser, qwen, report):
    show(browser, qwen, "memory")
    chart = browser.find_element("css selector", ".memory-chart .u-over")
    assert tip(browser) is None
    # Near the bottom are weights; a third of the way up, at the middle of the run, what the optimizer keeps.
    for height, role in ((0.47, "weights"), (0.4, "optimizer state")):
        point(browser, chart, 0, height)
        said = tip(browser)
        assert role in said
        assert "\nin model." in said
        assert ".py:" in said
        assert any(unit in said for unit in ("KiB", "MiB", "GiB"))


def test_memory_is_zoomed_to_an_operator_and_back(browser, qwen):
    show(browser, qwen, "memory")
    chart = browser.find_element("css selector", ".memory-chart")
    whole = shot(browser, chart)
    browser.find_element("xpath", "//button[text()='around the peak']").click()
    for _ in range(3):
        chart.send_keys("+")
    assert (shot(browser, chart) != whole).mean() > 0.2
    strip = browser.find_element("css selector", ".memory-strip")
    named = {point(browser, strip, x / 40, 0.4) or tip(browser) for x in range(-16, 17, 4)} - {None}
    assert len(named) > 2
    assert all("aten." in said and "(event " in said for said in named), named
    browser.execute_script("document.getElementById('tip').hidden = true")
    chart.send_keys("0")
    point(browser, browser.find_element("id", "name"), 0, 0)
    assert (shot(browser, chart) == whole).all()
    assert complaints(browser) == []


def test_a_box_of_the_flame_graph_is_named_and_zoomed(browser, qwen, report):
    show(browser, qwen, "peak")
    boxes = browser.find_elements("css selector", ".flame-node")
    layers = next(box for box in boxes if box.text == "layers")
    point(browser, layers, 0, 0)
    held = [
        share["bytes"]
        for share in report["ranks"][0]["at_peak_by_module"]
        if share["module"].startswith("model.layers.")
    ]
    assert format_bytes(sum(held)) in tip(browser)
    layers.click()
    assert text_of(browser, "#flame-total") == format_bytes(sum(held))
    browser.switch_to.active_element.send_keys("0")
    assert text_of(browser, "#flame-total") == format_bytes(report["ranks"][0]["peak_bytes"])


def test_pointing_at_a_block_of_the_allocator_says_whose_it_is(browser, qwen):
    show(browser, qwen, "allocator")
    point(browser, browser.find_element("css selector", "#view-allocator canvas"), 0, -0.2)
    assert "block at 0x" in tip(browser)
    assert "segment of " in tip(browser)


@pytest.fixture
def phone(browser):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_phone_shows_every_view_without_scrolling_sideways(phone, qwen, markup):
    widths = {}
    for folder in (qwen, markup):
        for view in VIEWS:
            show(phone, folder, view)
            widths[folder, view] = phone.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
    assert {which: found for which, found in widths.items() if found != [390, 390]} == {}


def test_the_page_as_it_is_served_asks_for_nothing_but_itself(browser, qwen):
    """The server's policy lets the page's own scripts run, and the page opens a window that it can send messages to."""
    with PageServer(saved_page(qwen)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for view in VIEWS:
            browser.get("about:blank")
            browser.get(f"{server.address}#{view}")
            assert browser.execute_async_script(_READY) is None
        assert "Does not fit" in browser.execute_script("return windtunnel.page.data.verdict.sentence")
        has_opened = (
            "const other = window.open('about:blank'); const is = other !== null; other?.close(); return is;"
        )
        assert browser.execute_script(has_opened)
        server.shutdown()
    assert set(complaints(browser)) <= {f"asked for {server.address}"}


def test_tabs_are_walked_by_keyboard(browser, qwen):
    from selenium.webdriver.common.keys import Keys

    show(browser, qwen)
    shown = []
    browser.execute_script("document.getElementById('tab-overview').focus()")
    for _ in VIEWS:
        browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        browser.execute_async_script(_READY)
        shown.append(browser.execute_script("return location.hash.slice(1)"))
    assert shown == [*VIEWS[1:], VIEWS[0]]
    assert complaints(browser) == []


def test_a_click_on_the_map_chooses_a_rank(browser, markup):
    ranks = json.loads((markup / "report.json").read_text())["ranks"]
    show(browser, markup, "overview")
    canvas = browser.find_element("css selector", ".rank-canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    assert browser.execute_script("return windtunnel.page.rank") in (2, 3)  # the wider ones
    place = browser.execute_script(
        """
        const canvas = arguments[0], box = canvas.getBoundingClientRect(), tip = document.getElementById("tip");
        for (let y = 2; y < box.height; y += 4) for (let x = 2; x < box.width; x += 4) {
          canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.x + x, clientY: box.y + y}));
          if (!tip.hidden && tip.innerText.startsWith("rank 0")) return [(x + 5) / box.width - 0.5, (y + 5) / box.height - 0.5];
        }
        return null;
        """,
        canvas,
    )
    point(browser, canvas, *place)
    assert format_bytes(ranks[0]["peak_bytes"]) in tip(browser)
    canvas_click(browser)
    assert browser.execute_script("return [windtunnel.page.rank, document.getElementById('rank').value]") == [
        0,
        "0",
    ]
    kinds = text_of(browser, "#overview-kinds")
    assert format_bytes(ranks[0]["peak_with_fragments_bytes"]) in kinds
    assert format_bytes(ranks[2]["peak_with_fragments_bytes"]) not in kinds
    assert complaints(browser) == []


def canvas_click(driver):
    """A click where the pointer is."""
    from selenium.webdriver import ActionChains

    ActionChains(driver, duration=0).click().perform()


def test_names_that_are_markup_are_shown_as_text(browser, markup):
    seen = ""
    for view in VIEWS:
        show(browser, markup, view)
        seen += browser.execute_script("return document.title") + text_of(browser, "body")
        assert browser.execute_script("return [typeof window.pwned, document.querySelectorAll('img, svg').length]") == [
            "undefined", 0,
        ]  # fmt: skip
    for name in (
        "<img src=x onerror=pwned=1>.py",
        "</script><script>pwned=5</script>",
        "<img src=x onerror=pwned=6>",
    ):
        assert name in seen
    assert complaints(browser) == []
