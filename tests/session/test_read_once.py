"""A recording is read once, its lifetimes and tape are built once, and it is played once per allocator."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection

import pytest

from tests.memory.training_run import record_training
from tests.session.test_time_stage import request_in
from windtunnel.commands.main import main
from windtunnel.memory import allocator_map, mindspore_fragments, peak, recorded_memory
from windtunnel.session import analysts as analysts_module
from windtunnel.session import rank_recording
from windtunnel.session.analysts import Analysts
from windtunnel.session.executor import Events
from windtunnel.session.fork_server_program import _work_on
from windtunnel.session.request import task_of

SCRIPT = """\
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
ONCE = {"read_recording": 1, "lifetimes_of": 1, "tape_of": 1, "play": 1}


@pytest.fixture
def counts(monkeypatch):
    """How often this process reads a recording, builds its parts, and plays its tape."""
    found: Counter[str] = Counter()

    def count(module, name):
        true = getattr(module, name)

        def counted(*args, **kwargs):
            found[name] += 1
            return true(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(rank_recording, "read_recording")
    count(recorded_memory, "lifetimes_of")
    count(recorded_memory, "tape_of")
    for module in (peak, allocator_map, mindspore_fragments):
        count(module, "play")
    return found


def run(tmp_path, *options):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return main(["run", "--out", str(tmp_path / "out"), *options, str(script)])


def test_one_rank_with_its_page(tmp_path, counts):
    assert run(tmp_path) == 0
    assert "peak of live bytes" in (tmp_path / "out" / "report.html").read_text()
    assert counts == ONCE


def test_one_rank_with_its_time(tmp_path, counts):
    assert run(tmp_path, "--level", "3") == 0
    assert counts == ONCE


def test_what_does_not_fit_is_played_once_more_within_the_limit(tmp_path, counts):
    device = tmp_path / "small.toml"
    device.write_text('name = "small"\nkind = "cuda"\nmemory = "72 MiB"\n')
    assert run(tmp_path, "--no-advise", "--device", str(device)) == 4
    assert counts == ONCE | {"play": 2}


class Threads:
    """A fork server whose children are threads, so that their work can be counted."""

    def __init__(self):
        self.kinds = []
        self.threads = []

    def fork(self, kind, what, line, output):
        self.kinds.append(kind)
        order, connection = pickle.dumps(what), Connection(os.dup(line))
        thread = threading.Thread(target=self._work, args=(kind, order, connection), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _work(self, kind, order, connection):
        with connection:
            _work_on(kind, pickle.loads(order), connection)


def analysed(tmp_path, n_ranks):
    """Analysts, after they have analysed some ranks; the recording of each is the same."""
    request = request_in(tmp_path, world_size=n_ranks, level=1)
    server, events = Threads(), Events()
    analysts = Analysts(request, events, server)
    for rank in range(n_ranks):
        task = task_of(request, rank)
        record_training(task.recording_path)
        analysts.analyse(task, 0)
    findings = [events.get(timeout=30).finding for _ in range(n_ranks)]
    return (
        analysts,
        server,
        {f.result.rank: f.device_index for f in sorted(findings, key=lambda f: f.result.rank)},
    )


def test_the_tightest_ranks_of_a_world_are_read_once(tmp_path, counts):
    analysts, server, devices = analysed(tmp_path, 12)
    details = analysts.details({rank: devices[rank] for rank in range(8)}, 2)
    assert sorted(details) == list(range(8))
    assert set(server.kinds) == {"analyse"}
    assert counts == dict.fromkeys(ONCE, 12)
    for thread in server.threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in server.threads)


def test_only_the_tightest_so_far_wait(tmp_path):
    analysts, server, _ = analysed(tmp_path, 12)
    ended = time.monotonic() + 30
    while sum(thread.is_alive() for thread in server.threads) > 8 and time.monotonic() < ended:
        time.sleep(0.01)
    assert sum(thread.is_alive() for thread in server.threads) == 8
    analysts.details({}, 1)
    for thread in server.threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in server.threads)


def test_ranks_too_large_to_wait_are_read_again_and_give_the_same(tmp_path, monkeypatch):
    kept, _, devices = analysed(tmp_path / "kept", 2)
    monkeypatch.setattr(analysts_module, "_MOST_KEPT_BYTES", 1)
    read_again, server, _ = analysed(tmp_path / "again", 2)
    found = read_again.details(devices, 1)
    assert server.kinds.count("detail") == 2
    assert sorted(found) == [0, 1]
    assert found == kept.details(devices, 1)


def test_no_process_waits_for_a_page_that_nobody_wants(tmp_path):
    request = request_in(tmp_path, level=1, world_size=2, writes_page=False)
    server, events = Threads(), Events()
    analysts = Analysts(request, events, server)
    record_training(task_of(request, 0).recording_path)
    analysts.analyse(task_of(request, 0), 0)
    events.get(timeout=30)
    server.threads[0].join(timeout=30)
    assert not server.threads[0].is_alive()
