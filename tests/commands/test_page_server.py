"""The page is shown to who has its address, and nothing else to anybody: raw requests to a real process."""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.commands.cli import COMMAND, PATIENCE_S, environment
from windtunnel.commands import page_server
from windtunnel.commands.page_server import PageServer

PAGE = b"<!doctype html><html><title>mine</title>" + b"x" * 3_000_000 + b"</html>\n"


@contextmanager
def viewing(*arguments):
    """A `windtunnel view` and the two lines it says first."""
    process = subprocess.Popen(
        [*COMMAND, "view", *map(str, arguments)], env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in the background of a script
    )  # fmt: skip
    try:
        yield process, [process.stdout.readline(), process.stdout.readline()]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "out"
    folder.mkdir()
    (folder / "report.html").write_bytes(PAGE)
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with viewing(folder, "--no-open") as (_, (address, _said)):
        yield address.strip()


def ask(address, request, host=None):
    """Send bytes, in which PATH and HOST stand for what they should be; read until the server closes."""
    parts = urlsplit(address)
    request = request.replace(b"PATH", parts.path.encode()).replace(b"HOST", (host or parts.netloc).encode())
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(1 << 20):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].partition(b" ")[2].decode(), head.decode("latin-1"), body


def test_the_page_is_served_with_headers_that_keep_it_in(address):
    status, head, body = ask(address, b"GET PATH HTTP/1.1\r\nHost: HOST\r\n\r\n")
    assert (status, body) == ("200 OK", PAGE)
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    policy = headers.pop("Content-Security-Policy")
    assert headers == {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Length": str(len(PAGE)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))


def test_head_is_the_same_without_the_page(address):
    whole = ask(address, b"GET PATH HTTP/1.1\r\nHost: HOST\r\n\r\n")
    assert ask(address, b"HEAD PATH HTTP/1.1\r\nHost: HOST\r\n\r\n") == (*whole[:2], b"")


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000"])
def test_a_tunnel_may_end_at_another_port(address, host):
    """As `ssh -L 8000:127.0.0.1:PORT` does."""
    assert ask(address, b"HEAD PATH HTTP/1.1\r\nHost: HOST\r\n\r\n", host)[0] == "200 OK"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1:80@evil.example",
        "evil.example#127.0.0.1", "0.0.0.0", "127.0.0.2", "127x0x0x1", " ", "127.0.0.1:", "127.0.0.1:99999999",
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_mean_this_machine_is_refused(address, host):
    assert refused(ask(address, b"GET PATH HTTP/1.1\r\nHost: HOST\r\n\r\n", host))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET PATH HTTP/1.1\r\n\r\n",  # no name at all
        b"GET PATH HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /AAAAAAAAAAAAAAAAAAAAAA/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH? HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATHreport.html HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATHsecret.txt HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH../secret.txt HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH..%5c..%5csecret.txt HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH%00 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH\x00 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH\xff\xfe HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET //etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET http://HOSTPATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /" + b"a" * 65_532,  # as much as the server reads of a line, and no end
        b"GET PATH HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % i for i in range(101)),
        b"POST PATH HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n",
        b"PUT PATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"DELETE PATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"OPTIONS PATH HTTP/1.1\r\nHost: HOST\r\nOrigin: http://evil.example\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"__init__ PATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"get PATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET PATH a b HTTP/1.1\r\nHost: HOST\r\n\r\n",
    ],
    ids=lambda request: request[:40],
)
def test_whatever_else_is_asked_for_is_not_found(address, request_bytes):
    assert refused(ask(address, request_bytes))


def refused(answer):
    status, head, body = answer
    assert (status, body) == ("404 Not Found", b"")
    assert "\r\nContent-Length: 0\r\n" in head
    assert "\r\nContent-Type" not in head
    return True


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET PATH HTTP/9.9\r\nHost: HOST\r\n\r\n",
        b"GET PATH HTTP/x\r\nHost: HOST\r\n\r\n",
        b"GET PATH\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"\x00" * 100 + b"\n",
    ],
)
def test_what_is_no_request_learns_nothing(address, request_bytes):
    _, _, body = ask(address, request_bytes)
    assert body == b""


def test_a_silent_client_keeps_nobody_waiting(address):
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port)) as silent, socket.create_connection(
        (parts.hostname, parts.port)
    ) as half, socket.create_connection((parts.hostname, parts.port)) as greedy:  # fmt: skip
        half.sendall(f"GET {parts.path} HTT".encode())
        greedy.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        )  # and never reads
        assert ask(address, b"GET PATH HTTP/1.1\r\nHost: HOST\r\n\r\n")[2] == PAGE
        assert silent.fileno() >= 0


def test_patience_with_a_silent_client_has_an_end(monkeypatch):
    """In this process, where the patience can be made short."""
    monkeypatch.setattr(page_server._OnePage, "timeout", 0.1)
    with PageServer(lambda: PAGE) as server, socket.create_connection(server.server_address, 10) as half:
        half.sendall(b"GET / HTT")
        server.handle_request()
        assert half.recv(1) == b""  # closed


def test_two_clients_at_once_get_it_whole(address):
    parts = urlsplit(address)
    clients = [HTTPConnection(parts.netloc, timeout=PATIENCE_S) for _ in range(2)]
    for client in clients:
        client.request("GET", parts.path)
    answers = [client.getresponse() for client in clients]
    pieces = [[], []]
    for _ in range(0, len(PAGE), 100_000):  # by turns
        for answer, got in zip(answers, pieces, strict=True):
            got.append(answer.read(100_000))
    assert [b"".join(got) + answer.read() for answer, got in zip(answers, pieces, strict=True)] == [
        PAGE,
        PAGE,
    ]
    for client in clients:
        client.close()


def test_only_loopback_is_listened_on_at_a_port_and_path_of_chance():
    with PageServer(lambda: PAGE) as one, PageServer(lambda: PAGE) as two:
        assert {server.socket.getsockname()[0] for server in (one, two)} == {"127.0.0.1"}
        assert one.server_address[1] != two.server_address[1]
        assert one.path != two.path
        assert len(one.path) >= 22  # 128 bits


def test_ctrl_c_ends_it_quietly(folder):
    with viewing(folder, "--no-open") as (process, (address, said)):
        assert ask(address.strip(), b"HEAD PATH HTTP/1.1\r\nHost: HOST\r\n\r\n")[0] == "200 OK"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said == f"serving {folder} to this machine only; press Ctrl-C to stop\n"
    assert (rest, errors) == ("\nstopped\n", "")


def test_clients_that_break_off_are_not_spoken_of(folder):
    with viewing(folder, "--no-open") as (process, (address, _)):
        parts = urlsplit(address.strip())
        for request in (b"", b"GET", f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()):
            connection = socket.create_connection((parts.hostname, parts.port))
            connection.sendall(request)
            # Closed with a reset, while the page is on its way.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        assert ask(address.strip(), b"GET PATH HTTP/1.1\r\nHost: HOST\r\n\r\n")[2] == PAGE
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[1] == ""
