"""The map of all ranks, in a real browser: a small job with one of everything, and a job of 16,384."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.browser import complaints, pixels
from tests.report.runs import FITTING, LARGE, run_of
from windtunnel.cluster.mesh_axes import MeshAxis
from windtunnel.report.json.run import rank_document
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.results.run import failed_rank, same_as
from windtunnel.units import GIB, format_bytes

BAD = "<script>document.title='taken'</script>"
# pp 2 x dp 4 x tp 2: the first stage needs most, rank 9 does not fit, rank 14 failed, rank 15 was not simulated.
FIRST = replace(FITTING, peak_with_fragments_bytes=72 * GIB, step_time_us=2e6)
SECOND = replace(FITTING, rank=8, peak_with_fragments_bytes=60 * GIB, step_time_us=1e6)
TOO_LARGE = replace(LARGE, rank=9, step_time_us=None)


def _small():
    ranks = [FIRST, *(same_as(rank, FIRST) for rank in range(1, 8)), SECOND, TOO_LARGE]
    ranks += [*(same_as(rank, SECOND) for rank in range(10, 14)), failed_rank(14, BAD)]
    mesh = (MeshAxis("pp", 2, 8), MeshAxis(BAD, 4, 2), MeshAxis("tp", 2, 1))
    return replace(run_of(*ranks, world_size=16), mesh=mesh)


def _large():
    ranks = [FIRST, *(same_as(rank, FIRST) for rank in range(1, 2048)), replace(SECOND, rank=2048)]
    ranks += [same_as(rank, ranks[2048]) for rank in range(2049, 16384)]
    mesh = (MeshAxis("pp", 8, 2048), MeshAxis("dp", 256, 8), MeshAxis("tp", 8, 1))
    return replace(run_of(*ranks), mesh=mesh)


def _equal():
    return run_of(FIRST, *(same_as(rank, FIRST) for rank in range(1, 12)))


def _part():
    """`--ranks 3,5` of eight: numbers of ranks are no indices."""
    return replace(run_of(replace(FIRST, rank=3), replace(SECOND, rank=5)), world_size=8)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for name, run in (("small", _small()), ("large", _large()), ("equal", _equal()), ("part", _part())):
        (folder / f"{name}.html").write_bytes(page_bytes("run", run_document(run, name)))
    return folder


@pytest.fixture
def shown(browser, pages, request):
    """One page for all tests that look at the small job: each starts from what it needs."""
    url = (pages / f"{getattr(request, 'param', 'small')}.html").as_uri() + "#overview"
    if browser.current_url != url:
        browser.get("about:blank")
        browser.get(url)
        browser.execute_async_script(
            "const done = arguments[0];"
            "(async () => { while (!window.windtunnel) await new Promise(r => setTimeout(r, 10));"
            " await windtunnel.ready(); document.querySelector('.rank-map').scrollIntoView({block: 'center'});"
            " requestAnimationFrame(() => requestAnimationFrame(done)); })()"
        )
    yield browser
    assert complaints(browser) == []


def _place(driver, rank):
    return driver.execute_script("return windtunnelRanks.place(arguments[0])", rank)


def _point(driver, rank, is_click=False):
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    place, mouse = _place(driver, rank), ActionBuilder(driver)
    mouse.pointer_action.move_to_location(int(place["x"]), int(place["y"]))
    if is_click:
        mouse.pointer_action.click()
    mouse.perform()
    return driver.find_element("id", "tip").text.splitlines()


def _colours(driver, ranks):
    """The colour of each cell, beside what is drawn in its middle and at its edges."""
    seen, found = pixels(driver), []
    for rank in ranks:
        place = _place(driver, rank)
        found.append(tuple(seen[int(place["y"]), int(place["x"] - place["cell"] * 0.3)].tolist()))
    return found


def _chosen(driver):
    return driver.execute_script("return windtunnel.page.rank")


def _facts(driver):
    names, values = (
        [each.text for each in driver.find_elements("css selector", f".rank-facts {tag}")]
        for tag in ("dt", "dd")
    )
    return dict(zip(names, values, strict=True))


def test_ranks_of_a_stage_have_one_colour_and_those_that_do_not_fit_another(shown):
    first, *others = _colours(shown, [1, 2, 7, 8, 10, 9, 14, 15])
    assert others[:2] == [first, first]
    assert others[2] == others[3]
    assert len({first, *others[2:]}) == 5  # first stage, second, does not fit, failed, not looked at
    legend = shown.find_element("class name", "rank-legend").text
    assert "least 60.00 GiB" in legend
    assert "most 96.00 GiB" in legend
    assert "mark: usable, 79.00 GiB" in legend
    assert "1 rank does not fit" in legend
    assert "1 rank failed" in legend
    assert "1 rank was not simulated" in legend
    assert "ring: rank 9 needs most" in legend


def test_hovering_names_the_rank_its_place_and_its_figures(shown):
    assert _point(shown, 5) == [
        "rank 5",
        f"pp 0, {BAD} 2, tp 1",
        "peak 60.00 GiB",
        "with fragments 72.00 GiB",
        "step 2 s",
        "same as rank 0, which was simulated",
    ]
    assert _point(shown, 9)[0] == "rank 9, which needs most"
    assert _point(shown, 9)[3] == "with fragments 96.00 GiB, which does not fit"
    assert _point(shown, 14)[2] == "failed: there are no numbers"
    assert _point(shown, 15)[2] == "was not simulated"
    assert shown.title == "small"


def test_a_click_chooses_a_rank_and_shows_its_figures(shown):
    _point(shown, 10, is_click=True)
    assert _chosen(shown) == 10
    facts, document = _facts(shown), rank_document(SECOND)
    assert facts["status"] == "same work as rank 8, which was simulated"
    assert facts["place"] == f"pp 1 of 2, {BAD} 1 of 4, tp 0 of 2"
    assert facts["peak"] == format_bytes(document["peak_bytes"])
    assert facts["peak with fragments"] == format_bytes(document["peak_with_fragments_bytes"])
    assert facts["usable"] == format_bytes(document["usable_memory_bytes"])
    assert facts["base address"] == document["base_address"]
    assert facts["step time"] == "1 s"
    assert facts["same work (4)"] == "8, 11-13"
    held = {
        row.text.split(" GiB")[0]
        for row in shown.find_elements("css selector", ".rank-held tr")
    }  # fmt: skip
    assert "optimizer state 28.00" in held
    assert "weights 14.00" in held


def test_the_keyboard_moves_between_ranks_and_chooses(shown):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    _point(shown, 0, is_click=True)
    shown.execute_script("document.querySelector('.rank-canvas').focus()")
    ActionChains(shown).send_keys(Keys.ARROW_RIGHT, Keys.ENTER).perform()
    assert _chosen(shown) == 1
    down = shown.execute_script(
        "const at = windtunnelRanks.place(1); for (const r of [3, 9]) { const b = windtunnelRanks.place(r);"
        " if (b.x === at.x && b.y > at.y) return r; } return null"
    )
    ActionChains(shown).send_keys(Keys.ARROW_DOWN).perform()
    assert shown.find_element("class name", "rank-status").text.startswith(f"rank {down}")
    ActionChains(shown).send_keys(Keys.ENTER).perform()
    assert _chosen(shown) == down


def test_kinds_of_ranks_are_rows_and_choose_too(shown):
    rows = shown.find_elements("css selector", ".rank-classes tbody tr")
    assert [row.get_attribute("data-rank") for row in rows] == ["9", "0", "8", "14"]
    assert "8 ranks" in rows[1].text
    assert "0-7" in rows[1].text
    assert "72.00 GiB" in rows[1].text
    assert "5 ranks" in rows[2].text
    assert "8, 10-13" in rows[2].text
    rows[3].click()
    assert _chosen(shown) == 14
    assert _facts(shown)["error"] == BAD


def test_colours_follow_the_switch(shown):
    by_need = _colours(shown, [1, 8])
    for mode, n in (("time", 2), ("work", 2), ("peak", 1)):
        shown.execute_script(f"document.querySelector('[data-mode={mode}]').click()")
        seen = _colours(shown, [1, 8])
        assert len(set(seen)) == n, mode  # the peak without fragments is the same
        assert seen != by_need
    shown.execute_script("document.querySelector('[data-mode=fragments]').click()")
    assert _colours(shown, [1, 8]) == by_need


@pytest.mark.parametrize("shown", ["equal"], indirect=True)
def test_equal_ranks_look_equal_and_the_words_say_so(shown):
    assert len(set(_colours(shown, range(1, 12)))) == 1
    assert "All ranks need the same: 72.00 GiB." in shown.find_element("class name", "rank-legend").text


@pytest.mark.parametrize("shown", ["large"], indirect=True)
def test_16384_ranks_are_drawn_and_pointed_at_without_delay(shown):
    draw, hover = shown.execute_script(
        "const canvas = document.querySelector('.rank-canvas'), spent = [];"
        "for (let i = 0; i < 30; i++) { const at = windtunnelRanks.place(i * 517), began = performance.now();"
        " canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: at.x, clientY: at.y, bubbles: true}));"
        " spent.push(performance.now() - began); }"
        "return [Number(canvas.dataset.drawMs), spent.sort((a, b) => a - b)[15]];"
    )
    print(f"16,384 ranks: drawn in {draw} ms, pointed at in {hover:.1f} ms")
    assert draw < 1000
    assert hover < 200
    assert _point(shown, 16000)[:2] == ["rank 16000", "pp 7, dp 208, tp 0"]
    _point(shown, 2047, is_click=True)
    assert _chosen(shown) == 2047
    assert len({*_colours(shown, [5, 2000]), *_colours(shown, [2050, 16380])}) == 2


@pytest.mark.parametrize("shown", ["part"], indirect=True)
def test_a_rank_that_was_not_simulated_is_said_to_be_so_in_every_view(shown):
    for view in ("overview", "memory", "peak"):
        shown.execute_script("windtunnel.show(arguments[0])", view)
        for rank, is_known in ((0, False), (3, True), (7, False), (5, True)):
            shown.execute_script("windtunnel.page.choose({rank: arguments[0]})", rank)
            shown.execute_async_script("windtunnel.ready().then(() => requestAnimationFrame(arguments[0]))")
            text = shown.find_element("id", f"view-{view}").text
            assert (f"Rank {rank} was not simulated" in text) is not is_known, (view, rank)
            assert ("report.json has its figures" in text) is False
