"""The channel between a rank and the process that runs it, over a real socket."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from windtunnel.session.executor import Fetch, Post, Step
from windtunnel.session.rank_channel import RankChannel, answer, read_messages


@contextmanager
def _line():
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    with ours, theirs:
        yield ours, theirs


def test_steps_and_mail_arrive_in_order_with_every_byte():
    with _line() as (ours, theirs):
        rank = RankChannel(theirs)
        rank.step(1)
        rank.post("a\nb", b"\n\x00\xff")
        rank.post("empty", b"")
        theirs.close()
        assert list(read_messages(ours, 3)) == [
            Step(3, 1),
            Post(3, "a\nb", b"\n\x00\xff"),
            Post(3, "empty", b""),
        ]


@pytest.mark.parametrize("payload", [b"", b"a\nvalue", None])
def test_a_question_waits_for_its_answer(payload):
    with _line() as (ours, theirs):
        heard = []
        asking = threading.Thread(target=lambda: heard.append(RankChannel(theirs).fetch("key", 5)))
        asking.start()
        assert next(read_messages(ours, 2)) == Fetch(2, "key", 5)
        answer(ours, payload)
        asking.join()
        assert heard == [payload]


def test_a_large_object_is_carried_whole():
    payload = bytes(range(256)) * (1 << 18)  # 64 MiB, more than any socket holds at once
    with _line() as (ours, theirs):
        sending = threading.Thread(target=lambda: RankChannel(theirs).post("key", payload))
        sending.start()
        assert next(read_messages(ours, 2)) == Post(2, "key", payload)
        sending.join()


def test_a_rank_that_asks_nobody_is_interrupted():
    with _line() as (ours, theirs):
        ours.close()
        with pytest.raises(KeyboardInterrupt):
            RankChannel(theirs).fetch("key", 0)


def test_a_worker_of_the_script_does_not_talk_on_the_line():
    with _line() as (ours, theirs):
        rank = RankChannel(theirs)
        if (child := os.fork()) == 0:
            rank.step(7)
            os._exit(0 if rank.fetch("key", 0) is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        rank.step(1)
        theirs.close()
        assert list(read_messages(ours, 0)) == [Step(0, 1)]
