"""RankMessages between ranks: who is answered what, and when."""

from __future__ import annotations

from contextlib import closing

from windtunnel.session.executor import Fetch, Post
from windtunnel.session.mailbox import Mailbox


def test_what_is_there_is_given_at_once_and_stays_for_others():
    office = Mailbox()
    assert office.post(Post(0, "a", b"x")) == []
    assert office.fetch(Fetch(1, "a", sender=0)) == [(1, b"x")]
    assert office.fetch(Fetch(2, "a", sender=0)) == [(2, b"x")]
    assert office.waiting == {}


def test_a_large_value_waits_in_a_file_and_comes_back_byte_for_byte():
    values = {key: bytes([i]) * n for i, (key, n) in enumerate((("a", 200_000), ("b", 3), ("c", 1_000_000)))}
    with closing(Mailbox()) as office:
        for key, value in values.items():
            office.post(Post(0, key, value))
        for _ in range(2):
            found = {key: office.fetch(Fetch(1, key, sender=0)) for key in values}
            assert found == {key: [(1, value)] for key, value in values.items()}


def test_who_asks_early_waits_for_the_post():
    office = Mailbox()
    assert office.fetch(Fetch(1, "a", sender=0)) == []
    assert office.fetch(Fetch(2, "a", sender=0)) == []
    assert office.fetch(Fetch(3, "b", sender=0)) == []
    assert office.post(Post(0, "a", b"")) == [(1, b""), (2, b"")]  # nothing is a value too
    assert set(office.waiting) == {3}


def test_what_an_ended_rank_did_not_post_never_comes():
    office = Mailbox()
    office.post(Post(0, "a", b"x"))
    office.fetch(Fetch(1, "b", sender=0))
    assert office.end(0) == [(1, None)]
    assert office.fetch(Fetch(2, "b", sender=0)) == [(2, None)]
    assert office.fetch(Fetch(2, "a", sender=0)) == [(2, b"x")]  # it did post this before


def test_ranks_that_wait_for_each_other_are_all_let_go():
    office = Mailbox()
    office.fetch(Fetch(0, "a", sender=1))
    office.fetch(Fetch(1, "b", sender=2))
    office.fetch(Fetch(9, "z", sender=0))  # outside the circle: rank 0 may still post it
    assert sorted(office.fetch(Fetch(2, "c", sender=0))) == [(0, None), (1, None), (2, None)]
    assert set(office.waiting) == {9}


def test_a_rank_that_waits_for_itself_is_let_go():
    assert Mailbox().fetch(Fetch(0, "a", sender=0)) == [(0, None)]


def test_a_chain_of_waiting_ranks_is_no_circle():
    office = Mailbox()
    for rank in range(5):
        assert office.fetch(Fetch(rank, f"{rank}", sender=rank + 1)) == []
    assert office.post(Post(5, "4", b"x")) == [(4, b"x")]


def test_a_rank_that_dies_while_it_waits_is_forgotten():
    office = Mailbox()
    office.fetch(Fetch(1, "a", sender=0))
    assert office.end(1) == []
    assert office.post(Post(0, "a", b"x")) == []


def test_a_rank_that_begins_again_asks_again():
    office = Mailbox()
    office.fetch(Fetch(1, "a", sender=0))
    office.restart(1)
    assert office.post(Post(0, "a", b"x")) == []
    assert office.fetch(Fetch(1, "a", sender=0)) == [(1, b"x")]
