"""A dry run can connect only to itself, unless --network-access allows more."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.isolation.runner import MODES, PROGRAMS, protection_expected, report_of, site, start, wait


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), _Answer) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _in_modes(*ordinary: str) -> list:
    modes = [mode for mode in MODES if mode != "forbidden"]  # a guard leaves the network as it is
    return [pytest.param(mode, marks=() if mode in ordinary else pytest.mark.thorough) for mode in modes]


def _run(at, server, *options):
    url = f"http://127.0.0.1:{server.server_port}/outside"
    process = start(at, PROGRAMS / "asks_the_network.py", url, options=options, name="network")
    code, said = wait(at, process)
    assert report_of(at)["files"]["protection"] == "layer"
    return code, said


@pytest.mark.parametrize("mode", _in_modes("as_is"))
def test_a_dry_run_reaches_itself_and_nobody_else(mode, server):
    if protection_expected(mode) != "layer":
        pytest.skip("without namespaces the network is the machine's")
    with site(mode, "network") as at:
        code, said = _run(at, server)
    assert server.asked == []
    assert "INSIDE 200" in said
    assert "REFUSED" in said
    seconds = float(said.partition("SECONDS ")[2].split()[0])
    assert seconds < 5
    assert code == 3
    assert "--network-access" in said


@pytest.mark.parametrize("mode", _in_modes())
def test_a_dry_run_that_may_use_the_network_reaches_a_server(mode, server):
    if protection_expected(mode) != "layer":
        pytest.skip("without namespaces the network is the machine's")
    with site(mode, "network") as at:
        code, said = _run(at, server, "--network-access")
    assert server.asked == ["/outside"]
    assert "OUTSIDE 200" in said
    assert code == 0, said
