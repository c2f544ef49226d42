"""The memory view in a real browser: its figures are the report's, and the pointer names what it is on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.memory.allocators.rounding_allocator import RoundingAllocator
from tests.memory.recorded import detail_of, memory_of
from tests.memory.training_run import record_training
from tests.report.browser import complaints, open_browser
from tests.report.runs import FITTING, run_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Frame, Free, Op, Phase, Role, Signature, Step, TensorSpec
from windtunnel.memory.analysis import Moment, OutOfMemory
from windtunnel.memory.attribution import ROLE_NAMES, ROLES
from windtunnel.report.page.rank_detail import detail_document
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.units import MIB, format_bytes

EVIL = "<script>alert(1)</script>"
STACKED = (
    "weights",
    "frozen",
    "copies",
    "optimizer",
    "gradients",
    "activations",
    "inputs",
    "communication",
    "workspace",
    "temporary",
)


def evil_recording(path):
    """Bands of many heights, and names that would like to be markup."""
    names = (EVIL, f"{EVIL}.weight", "layers.0", "layers.1")
    spec = TensorSpec((4, 1024), (1024, 1), "float32")
    signatures = [Signature("aten.mm.default", (), (spec,), ""), Signature(EVIL, (), (spec,), "")]
    frames = [Frame(f"/home/{EVIL}/train.py", 41, "main"), Frame("/home/me/model.py", 7, EVIL, 0)]
    events = [Alloc(1, 40 * MIB, role=Role.WEIGHT, module=0, phase=Phase.BUILD, frame=0)]
    for i, size in enumerate((8, 24, 16, 32)):
        events += [Alloc(10 + i, size * MIB, op=i, role=Role.ACTIVATION, module=i % 4, frame=1)]
        events += [Op(i, i % 2, (1,), (10 + i,), module=i % 4, frame=1)]
    events += [Free(11), Alloc(20, 20 * MIB, op=8, phase=Phase.BACKWARD, role=Role.TEMPORARY, module=2)]
    events += [
        Op(8, 0, (), (20,), phase=Phase.BACKWARD, module=2),
        Free(20),
        Free(13),
        Free(12),
        Free(10),
        Step(1),
    ]
    record_events(path, events, names, signatures, frames)
    return read_recording(path)


def page_of(recording, path, most=1000, is_detailed=True, others=(), **changes):
    memory = memory_of(recording, RoundingAllocator)
    detail = detail_of(recording, RoundingAllocator, 0, most)
    rank = replace(
        FITTING,
        steps=memory.n_steps,
        usable_memory_bytes=memory.peak_with_fragments_bytes * 10,
        peak_bytes=memory.peak_bytes,
        peak_with_fragments_bytes=memory.peak_with_fragments_bytes,
        peak_at=memory.peak_at,
        at_peak_bytes=memory.at_peak,
        at_peak_by_module=memory.by_module,
        largest_at_peak=memory.largest,
        timeline=memory.timeline,
        **changes,
    )
    details = {0: detail_document(detail)} if is_detailed else {}
    path.write_bytes(page_bytes("run", run_document(run_of(rank, *others), "page", details)))
    return detail, memory


class Page:
    """The memory view of a page, and what a reader does with it."""

    def __init__(self, driver, path):
        self.driver = driver
        driver.get("about:blank")
        driver.get(f"file://{path}#memory")
        driver.execute_async_script(
            "const done = arguments[0]; const look = async () => { if (!window.windtunnel) return setTimeout(look, 5);"
            " await windtunnel.ready(); requestAnimationFrame(() => done()); }; look();"
        )

    def find(self, selector):
        return self.driver.find_element("css selector", f"#view-memory {selector}")

    def text(self, selector=".memory-panel"):
        return self.find(selector).text

    def button(self, word):
        self.driver.find_element("xpath", f"//*[@id='view-memory']//button[text()='{word}']").click()

    def keys(self, *keys):
        self.find(".memory-chart").send_keys(*keys)

    def in_view(self):
        words = self.find(".memory-overview").get_attribute("aria-label").replace(",", "").split()
        return int(words[3]), int(words[5])

    def strip(self):
        return self.find(".memory-strip").get_attribute("aria-label")

    def point(self, x, y, does_click=False):
        """Move the pointer to these shares of the chart's width and height; what the box says."""
        from selenium.webdriver.common.action_chains import ActionChains

        over = self.find(".u-over")
        size = over.size
        moves = ActionChains(self.driver, duration=0).move_to_element_with_offset(
            over, round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        )
        (moves.click() if does_click else moves).perform()
        tip = self.driver.find_element("id", "tip")
        return tip.text if tip.is_displayed() else ""

    def colours_drawn(self):
        """Different colours on the chart, without what surrounds it."""
        return self.driver.execute_script(
            "const c = document.querySelector('#view-memory .u-wrap canvas'), all = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(all.buffer)).size"
        )

    def at(self):
        return self.driver.execute_script("return windtunnel.page.at")


@pytest.fixture(scope="module")
def driver():
    with open_browser(1200, 1000) as driver:
        yield driver


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evil")
    recording = evil_recording(folder / "r.arrows")
    path = folder / "page.html"
    oom = OutOfMemory(Moment(1, "aten.mm", "layers.1", "forward"), 5, 24 * MIB, "no room")
    detail, memory = page_of(recording, path, out_of_memory=oom)
    return path, detail, memory


def stack_at(detail, row):
    """(allocation, the height of its middle) at a row, as the chart stacks them."""
    names = [ROLE_NAMES[role] for role in ROLES]
    lives = np.flatnonzero((detail.born <= row) & (detail.freed > row))
    role = [names[detail.labels.role[detail.label[i]]] for i in lives]
    found, height = [], 0
    for i, _ in sorted(
        zip(lives.tolist(), role, strict=True), key=lambda one: (STACKED.index(one[1]), one[0])
    ):
        found.append((i, height + int(detail.n_bytes[i]) // 2))
        height += int(detail.n_bytes[i])
    return found


def test_the_figures_are_those_of_the_report(driver, evil):
    path, _, memory = evil
    page = Page(driver, path)
    assert f"Peak {format_bytes(memory.peak_bytes)} live" in page.text(".memory-head")
    legend = page.text(".memory-legend")
    for name, n_bytes in memory.at_peak.items():
        if n_bytes:
            word = {"temporary": "temporary tensors"}.get(name, name)
            assert f"{word} {format_bytes(n_bytes)}" in legend
    assert f"{format_bytes(memory.peak_bytes)} live" in page.text()
    assert page.colours_drawn() > 20  # kinds, shades of bands, lines, letters
    assert complaints(driver) == []


def test_the_pointer_names_the_allocation_it_is_on(driver, evil):
    path, detail, memory = evil
    page = Page(driver, path)
    high = 1.07 * memory.peak_with_fragments_bytes
    for row in (int(detail.born[2]), detail.peak_row, int(detail.freed[2])):
        for allocation, height in stack_at(detail, row):
            said = page.point((row + 0.5) / detail.n_rows, 1 - height / high)
            label = detail.label[allocation]
            assert format_bytes(int(detail.n_bytes[allocation])) in said
            assert detail.texts[detail.labels.module[label]] in said
            assert f"(event {detail.born[allocation]})" in said
    assert "live," in page.point(0.02, 0.05)  # above everything: the moment as a whole
    assert complaints(driver) == []


def test_names_that_look_like_markup_are_text(driver, evil):
    path, detail, _ = evil
    page = Page(driver, path)
    page.point((detail.born[1] + 0.5) / detail.n_rows, 0.93, does_click=True)
    assert EVIL in page.text()
    assert EVIL in page.text(".memory-picked")
    assert driver.execute_script("return document.querySelectorAll('#view-memory script').length") == 0


def test_a_click_lists_what_is_live_at_that_moment(driver, evil):
    path, detail, _ = evil
    page = Page(driver, path)
    row = int(detail.freed[2])
    allocation, height = stack_at(detail, row)[1]
    high = 1.07 * int(detail.reserved_bytes.max())
    page.point((row + 0.5) / detail.n_rows, 1 - height / high, does_click=True)
    assert page.at() == row
    panel = page.text()
    assert panel.startswith(f"At the chosen moment: step 1, forward (event {row})")
    assert format_bytes(int(detail.n_bytes[allocation])) in page.text(".memory-picked")
    assert f"/home/me/model.py:7 {EVIL}" in page.text(".memory-picked pre")
    rows = driver.find_elements("css selector", "#view-memory .memory-live tbody tr")
    assert len(rows) == 4  # a weight and three activations
    rows[0].send_keys("\n")
    assert "40.00 MiB of weights" in page.text(".memory-picked")


def test_keys_zoom_down_to_one_operator_and_back(driver, evil):
    path, detail, _ = evil
    page = Page(driver, path)
    assert page.in_view() == (0, detail.n_rows - 1)
    page.keys("+++++")
    first, last = page.in_view()
    assert last - first <= 5
    assert "operators: aten.mm" in page.strip() or EVIL in page.strip()
    page.keys("\ue012" * 3)  # left
    assert page.in_view()[0] < first
    page.keys("0")
    assert page.in_view() == (0, detail.n_rows - 1)
    page.keys("\ue013")  # up: taller
    page.keys("0")
    assert complaints(driver) == []


def test_shift_and_an_arrow_move_the_moment_to_the_next_change(driver, evil):
    from selenium.webdriver.common.keys import Keys

    path, detail, _ = evil
    page = Page(driver, path)
    page.keys(Keys.SHIFT, Keys.ARROW_LEFT)
    changes = sorted({*detail.born.tolist(), *detail.freed.tolist()})
    assert page.at() == changes[changes.index(detail.peak_row) - 1]


def test_a_drag_zooms_and_a_double_click_shows_all_again(driver, evil):
    from selenium.webdriver.common.action_chains import ActionChains

    path, detail, _ = evil
    page = Page(driver, path)
    over = page.find(".u-over")
    width = over.size["width"]
    drag = (
        ActionChains(driver, duration=20).move_to_element_with_offset(over, -width // 4, 0).click_and_hold()
    )
    drag.move_by_offset(width // 4, 3).release().perform()
    first, last = page.in_view()
    assert first == pytest.approx(detail.n_rows / 4, abs=1.5)
    assert last == pytest.approx(detail.n_rows / 2, abs=1.5)
    assert page.at() is None  # a drag chooses nothing
    ActionChains(driver, duration=0).move_to_element_with_offset(over, 40, 40).double_click().perform()
    assert page.in_view() == (0, detail.n_rows - 1)


def test_the_wheel_zooms_at_the_pointer(driver, evil):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    path, detail, _ = evil
    page = Page(driver, path)
    over = page.find(".u-over")
    left = ScrollOrigin.from_element(over, -over.size["width"] // 2 + 5, 0)
    ActionChains(driver, duration=0).scroll_from_origin(left, 0, -300).perform()
    first, last = page.in_view()
    assert first == 0
    assert last < detail.n_rows - 1


def test_a_kind_can_be_switched_off(driver, evil):
    path, detail, memory = evil
    page = Page(driver, path)
    page.find('.memory-legend [data-role="weights"]').click()
    assert page.find('.memory-legend [data-role="weights"]').get_attribute("aria-pressed") == "false"
    high = 1.07 * (memory.peak_bytes - memory.at_peak.weights)  # the scale of what is left
    said = page.point((detail.peak_row + 0.5) / detail.n_rows, 1 - 2 * MIB / high)
    assert "8.00 MiB" in said  # the first activation lies at the bottom now
    assert f"of the {format_bytes(memory.peak_bytes)} live here" in said  # shares are of everything
    assert complaints(driver) == []


def test_buttons_show_the_last_step_and_what_surrounds_the_peak(driver, tmp_path):
    recording = record_training(tmp_path / "r.arrows")
    detail, memory = page_of(recording, tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.button("last step")
    assert page.in_view() == (detail.step_row[1], detail.n_rows - 1)
    assert "step 2" in page.strip()
    assert "forward, backward" in page.strip()
    page.button("whole run")
    assert page.in_view() == (0, detail.n_rows - 1)
    # What the panel lists at the peak is the report's own list.
    first = memory.largest[0]
    line = driver.find_element("css selector", "#view-memory .memory-live tbody tr").text
    assert "64x64 float32" in line
    for word in (first.op, format_bytes(first.n_bytes), first.module, first.where, str(first.count)):
        assert word in line


def test_a_thinned_page_says_so_and_still_adds_up(driver, tmp_path):
    recording = record_training(tmp_path / "r.arrows")
    _, memory = page_of(recording, tmp_path / "page.html", most=5)
    page = Page(driver, tmp_path / "page.html")
    assert "9 of 14 allocations" in page.text(".memory-head")
    assert "3 of 8 operators are not listed" in page.text(".memory-head")
    assert f"{format_bytes(memory.peak_bytes)} live" in page.text()
    assert "only counts" in page.text()
    assert complaints(driver) == []


def test_a_rank_without_details_has_its_outline(driver, tmp_path):
    recording = record_training(tmp_path / "r.arrows")
    _, memory = page_of(recording, tmp_path / "page.html", is_detailed=False)
    page = Page(driver, tmp_path / "page.html")
    assert "has only an outline" in page.text(".memory-head")
    assert f"activations {format_bytes(memory.at_peak.activations)}" in page.text(".memory-legend")
    assert "weights" in page.point(0.5, 0.97)
    assert complaints(driver) == []


def test_another_rank_is_shown_by_the_one_that_does_its_work(driver, tmp_path):
    recording = record_training(tmp_path / "r.arrows")
    alike = replace(FITTING, rank=1, status="same_as", same_as=0, timeline=None)
    failed = replace(FITTING, rank=2, status="failed", timeline=None)
    page_of(recording, tmp_path / "page.html", others=(alike, failed))
    page = Page(driver, tmp_path / "page.html")
    driver.execute_script("windtunnel.page.choose({rank: 1})")
    wait(page, "Memory of rank 1 over time")
    assert "Rank 1 does the same work as rank 0, which is shown." in page.text(".memory-head")
    driver.execute_script("windtunnel.page.choose({rank: 2})")
    wait(page, "no timeline of rank 2")
    assert not page.find(".memory-chart").is_displayed()
    driver.execute_script("windtunnel.page.choose({rank: 0})")
    wait(page, "Memory of rank 0 over time")
    assert page.find(".memory-chart").is_displayed()
    assert complaints(driver) == []


def wait(page, words):
    page.driver.execute_async_script(
        "const [words, done] = arguments; const look = () =>"
        " document.querySelector('#view-memory .memory-head').innerText.includes(words) ? done() : setTimeout(look, 5);"
        " look();",
        words,
    )
