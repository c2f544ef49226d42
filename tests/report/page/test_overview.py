"""The overview and the warnings in a real browser: every figure is the report's, every text of the user is text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.browser import complaints
from tests.report.runs import FILES, FITTING, LARGE, run_of
from tests.report.timed import TIME, timed_run
from windtunnel.cluster.matching import Mismatch
from windtunnel.memory.attribution import ModuleShare, RoleBytes
from windtunnel.report.facts import five_facts
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import DeviceResult, UnknownValue, failed_rank, same_as
from windtunnel.units import GIB, MIB, format_bytes

EVIL = "<img src=x onerror=window['taken']=1>"  # without a dot: a module's path is cut at dots
HEAD = ModuleShare(EVIL, "activations", 5 * GIB)
TOO_LARGE = replace(LARGE, at_peak_by_module=(*LARGE.at_peak_by_module, HEAD))


def _many():
    """Rank 2 and three that do the same are the worst of six."""
    worst = replace(TOO_LARGE, rank=2)
    return run_of(FITTING, same_as(1, FITTING), worst, *(same_as(rank, worst) for rank in (3, 4, 5)))


def _warned():
    said = replace(
        FITTING,
        unknown_values=(UnknownValue(EVIL, "float(loss)", 1.0, 3), UnknownValue("train.py:9", "x", None, 1)),
        notes=("the same note",),
        build_time_us={f"layers.{i}": 1_000_000 for i in range(4)},
    )
    ranks = (
        said,
        replace(said, rank=1),
        replace(said, rank=2, notes=("another", "the same note"), unknown_values=()),
    )
    return replace(run_of(*ranks, same_as(3, said)), mismatches=(Mismatch((0, 1), f"{EVIL} never meets"),))


RUNS = {
    "large": run_of(TOO_LARGE),
    "many": _many(),
    "failed": run_of(failed_rank(0, f"{EVIL}; no data")),
    "level0": replace(
        run_of(replace(FITTING, peak_bytes=0, peak_with_fragments_bytes=0, at_peak_bytes=RoleBytes())),
        level=0,
    ),
    "cpu": run_of(FITTING, device=DeviceResult("cpu", 80 * GIB)),
    "timed": timed_run(),
    "idle": run_of(
        replace(
            FITTING,
            peak_with_fragments_bytes=61 * MIB,
            peak_bytes=60 * MIB,
            at_peak_bytes=RoleBytes(60 * MIB),
        )
    ),
    "warned": _warned(),
    "written": replace(run_of(FITTING), files=FILES),
    "quiet": run_of(replace(FITTING, unknown_values=())),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overview")
    for name, run in RUNS.items():
        (folder / f"{name}.html").write_bytes(page_bytes("run", run_document(run, f"{name} {EVIL}")))
    return folder


@pytest.fixture
def show(browser, pages):
    """Open a page, and check at the end that it had nothing to complain about."""

    def opened(name, view="overview"):
        address = (pages / f"{name}.html").as_uri() + f"#{view}"
        browser.get("about:blank")  # another test may have chosen another rank on the same page
        browser.get(address)
        browser.execute_async_script(
            "const done = arguments[0]; const look = async () => { if (!window.windtunnel) return setTimeout(look, 5);"
            " await windtunnel.ready(); requestAnimationFrame(() => done()); }; look();"
        )
        return browser.find_element("id", f"view-{view}")

    yield opened
    assert complaints(browser) == []
    assert browser.execute_script("return window.taken") is None


def _rows(view, table):
    rows = view.find_elements("css selector", f"#{table} tbody tr")
    return [[cell.text for cell in row.find_elements("css selector", "td")] for row in rows]


def test_the_verdict_comes_first_in_its_own_words(show):
    view = show("large")
    said = view.find_element("css selector", ".overview-verdict").text
    fact, holders, remedy = verdict(RUNS["large"]).rstrip(".").split("; ")
    assert said == f"✗ {fact}.\n{holders[0].upper()}{holders[1:]}.\n{remedy[0].upper()}{remedy[1:]}."
    assert view.text.startswith(said)


def test_the_kinds_add_up_to_the_need(show):
    rows = _rows(show("large"), "overview-kinds")
    held = sorted((n, role) for role, n in LARGE.at_peak_bytes.items() if n)
    assert sorted(row[1] for row in rows[: len(held)]) == sorted(format_bytes(n) for n, _ in held)
    assert [row[:2] for row in rows[len(held) :]] == [
        ["live at the peak", format_bytes(LARGE.peak_bytes)],
        [
            "fragments: reserved, but of no use to any tensor",
            format_bytes(LARGE.peak_with_fragments_bytes - LARGE.peak_bytes),
        ],
        ["needed", format_bytes(LARGE.peak_with_fragments_bytes)],
    ]


def test_the_bar_is_as_long_as_the_need_and_the_limit_stands_where_it_is(show, browser):
    show("large")
    places = browser.execute_script(
        "const at = (s) => document.querySelector(s).getBoundingClientRect(), whole = at('.overview-bar');"
        "const last = [...document.querySelectorAll('.overview-part')].at(-1).getBoundingClientRect();"
        "return [(last.right - whole.left) / whole.width, (at('.overview-limit').left - whole.left) / whole.width]"
    )
    assert places[1] / places[0] == pytest.approx(
        LARGE.usable_memory_bytes / LARGE.peak_with_fragments_bytes, abs=0.01
    )


def test_how_much_is_missing_when_and_what_did_not_fit_first(show):
    answers = show("large").find_element("css selector", ".overview-answers").text
    assert (
        f"{format_bytes(LARGE.peak_with_fragments_bytes - LARGE.usable_memory_bytes)} too much for" in answers
    )
    assert "step 2, backward, aten.mm in layers.13.mlp" in answers
    assert "2.00 GiB at step 1, forward, aten.mm in layers.3.mlp" in answers


def test_which_module_to_checkpoint_first(show):
    advice = show("large").find_element("id", "overview-checkpoint")
    assert (
        "layers.0-3: at most 16.00 GiB less. The inputs of the 4 modules stay, and the peak may move."
        in advice.text
    )
    assert "windtunnel remat --advise --device a100-80gb" in advice.text
    rows = _rows(advice, "overview-checkpoint")
    assert rows == [["layers.0-3", "4", "16.00 GiB", "16.7 %"], [EVIL, "1", "5.00 GiB", "5.2 %"]]


def test_at_level_3_what_computing_again_takes(show):
    rows = _rows(show("timed"), "overview-checkpoint")
    assert rows == [
        ["layers.0-3", "4", "16.00 GiB", "24.2 %", "≈ 133 ms", f"≤ {format_bytes(16 * GIB / (400 / 3))}"]
    ]


def test_modules_and_tensors_are_the_reports(show):
    view = show("large")
    assert _rows(view, "overview-modules")[0][:2] == ["layers.0-3.mlp", "28.00 GiB"]
    first = LARGE.largest_at_peak[0]
    assert _rows(view, "overview-tensors")[0] == [
        f"{first.op} {first.module}",
        format_bytes(first.n_bytes),
        "4",
        "4096×8 bfloat16",
        "m.py:7",
    ]
    assert view.find_element("id", "overview-facts").text.splitlines() == list(
        five_facts(TOO_LARGE, RUNS["large"].device)
    )


def test_of_many_ranks_the_worst_is_shown_and_another_can_be(show, browser):
    view = show("many")
    assert "rank 2 of 6; 3 other ranks need as much: map of all ranks" in view.text
    assert "What holds the memory of rank 2 at its peak" in view.text
    browser.execute_script("windtunnel.page.choose({rank: 1})")
    assert "Below: rank 1, which does the same as rank 0" in view.text
    assert f"rank 1 needs {format_bytes(FITTING.peak_with_fragments_bytes)}" in view.text
    assert "For rank 2, the tightest." in view.text
    view.find_element("xpath", ".//button[text()='show rank 2']").click()
    assert "rank 2 needs 96.00 GiB" in view.text


def test_a_failed_run_says_why_and_where_its_log_is(show):
    view = show("failed")
    assert view.text.startswith(f"✗ Failed: {EVIL}; no data.")
    assert "rank0/run.log" in view.text
    assert "What holds the memory" not in view.text


def test_at_level_0_nothing_is_said_about_memory(show):
    text = show("level0").text
    assert text.startswith("✓ Runs: it builds and takes 3 optimizer steps.")
    assert "GiB" not in text
    assert "not measured at level 0" in text


def test_a_cpu_has_no_limit(show):
    view = show("cpu")
    assert view.text.startswith("✓ Runs: needs 66.00 GiB.")
    assert view.find_elements("css selector", ".overview-limit") == []
    assert "to spare" not in view.text


def test_a_limit_far_off_is_reported_rather_than_drawn(show):
    view = show("idle")
    assert view.find_elements("css selector", ".overview-limit") == []
    assert f"79.00 GiB usable is {79 * GIB // (61 * MIB):,} times as long as this bar" in view.text


def test_time_is_told_when_it_was_predicted(show):
    text = show("timed").text
    assert "1 s a step, 8,192 tokens/s, MFU 50.0 %, pipeline bubble 10.0 % on average over the ranks" in text
    assert TIME.bound_by in text
    assert TIME.slowest_why in text


def test_links_lead_to_the_other_views(show, browser):
    show("large").find_element("xpath", ".//a[text()='flame graph of it']").click()
    assert browser.execute_script("return location.hash") == "#peak"


def test_warnings_are_counted_and_what_ranks_say_alike_is_reported_once(show, browser):
    view = show("warned", "warnings")
    assert (
        browser.find_element("id", "tab-warnings").text == "Warnings (5)"
    )  # a mismatch, two values, two notes
    assert _rows(view, "warnings-unknown") == [
        [EVIL, "float(loss)", "1", "3", "ranks 0‑1, 3"],
        ["train.py:9", "x", "null", "1", "ranks 0‑1, 3"],
    ]
    assert "the same note (all ranks)" in view.text
    assert "another (rank 2)" in view.text
    assert f"{EVIL} never meets" in view.text
    assert "windtunnel.mock(" in view.text
    assert _rows(view, "warnings-builds") == [["layers.0-3", "4 s"]]


def test_what_would_have_been_written_is_listed_what_is_lost_first(show):
    view = show("written", "warnings")
    assert _rows(view, "warnings-files") == [
        ["removed", "", "3.00 GiB", "/data/checkpoint-100"],
        ["moved", "5 B", "", "/data/<b>.bak (from /data/model.pt)"],
        ["written", "2.00 GiB", "", "/data/new.pt"],
    ]
    assert "In this dry run a sentence of the guard; the network was off." in view.text
    assert "and 7 smaller ones" in view.text


def test_errors_of_failed_ranks_are_warnings(show):
    assert f"{EVIL}; no data" in show("failed", "warnings").text


def test_a_run_without_warnings_says_so(show, browser):
    assert show("quiet", "warnings").text.startswith("No warnings")
    assert browser.find_element("id", "tab-warnings").text == "Warnings"


def test_skipping_to_the_report_stays_in_the_view_in_front(show, browser):
    show("warned", "warnings")
    browser.execute_async_script(
        "addEventListener('hashchange', () => setTimeout(arguments[0]), {once: true}); document.querySelector('.skip').click()"
    )
    assert browser.execute_async_script("windtunnel.ready().then(arguments[0])") == "warnings"
    assert browser.find_element("id", "view-warnings").is_displayed()


def test_paper_is_light_whatever_the_screen_is(show, browser):
    show("large")
    theme = "return document.documentElement.dataset.theme ?? 'auto'"
    browser.find_element("id", "theme").click()
    browser.find_element("id", "theme").click()
    assert browser.execute_script(theme) == "dark"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(theme) == "light"
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(theme) == "dark"
    browser.find_element("id", "theme").click()
    assert browser.execute_script(theme) == "auto"


@pytest.mark.parametrize("view", ["memory", "peak", "overview"])
def test_a_rank_chosen_while_a_view_is_drawn_is_shown(show, browser, view):
    show("many", "warnings")
    browser.execute_async_script(
        "windtunnel.page.choose({rank: 2}); windtunnel.show(arguments[0]); windtunnel.page.choose({rank: 0});"
        " windtunnel.ready().then(() => requestAnimationFrame(() => setTimeout(arguments[1], 30)))",
        view,
    )
    text = browser.find_element("id", f"view-{view}").text
    assert "rank 0" in text.split("Which module")[0].replace("For rank", "")
    if view != "overview":
        assert "rank 2" not in text.splitlines()[0]
