"""Which ranks run, when, and what they are answered: with an executor that plays a script of events."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from windtunnel.exit_codes import INTERRUPTED
from windtunnel.report.results.run import RankResult
from windtunnel.session.executor import (
    Analysed,
    Ended,
    Events,
    Fetch,
    Interrupted,
    Post,
    Remark,
)
from windtunnel.session.rank_analysis import Finding
from windtunnel.session.world import ChosenRanks, World, WorldProgress


class Played:
    """Executor and analysts in one: each rank says its lines when started or answered, then ends."""

    n_slots = 2

    def __init__(self, events, says=None, codes=None):
        self.events, self.says, self.codes = events, says or {}, codes or {}
        self.running, self.log, self.most = set(), [], 0
        self.heard = {}

    def start(self, task):
        self.log.append(f"start {task.rank}")
        self.running.add(task.rank)
        self.most = max(self.most, len(self.running))
        self.go_on(task.rank)

    def answer(self, rank, payload):
        self.log.append(f"answer {rank}")
        self.heard.setdefault(rank, []).append(payload)
        self.go_on(rank)

    def go_on(self, rank):
        for event in (lines := self.says.get(rank, [])):
            if event is None:
                return  # goes on for ever
            self.events.put(event)
            if isinstance(event, Fetch):
                self.says[rank] = lines[lines.index(event) + 1 :]
                return
        self.end(rank, self.codes.get(rank, 0))

    def end(self, rank, code):
        self.running.discard(rank)
        self.events.put(Ended(rank, code))

    def stop(self, number):
        self.log.append(f"stop {number.name}")
        if number == signal.SIGKILL or not self.codes.get("stubborn"):
            for rank in sorted(self.running):
                self.end(rank, INTERRUPTED)

    def close(self):
        pass

    def analyse(self, task, code):
        status = "failed" if code else "ok"
        result = RankResult(task.rank, status, error="boom" if code else None)
        communication = None if code else SimpleNamespace(digest=f"class {task.rank % 2}", rough_digest="")
        self.events.put(Analysed(task.rank, Finding(result, communication, code)))


class Parity:
    """As `RankClasses`: rank 0 first, then rank 1 if rank 0 came to its end."""

    def __init__(self):
        self.known = {}

    def wanted(self):
        if 0 not in self.known:
            return (0,)
        return (1,) if 1 not in self.known else ()

    def learn(self, communication, rank):
        self.known[rank] = communication

    def representatives(self):
        return {rank: rank % 2 for rank in range(8)}


def _play(choice, says=None, codes=None, n_jobs=2, **more):
    events = Events()
    played = Played(events, says, codes)
    world = World(
        choice, played, played, events, lambda rank: SimpleNamespace(rank=rank), n_jobs, world_size=8, **more
    )
    return world.run(), played


def test_chosen_ranks_run_each_once_and_never_more_than_jobs_at_a_time():
    outcome, played = _play(ChosenRanks((5, 2, 7)), n_jobs=1)
    assert played.log == ["start 5", "start 2", "start 7"]
    assert list(outcome.findings) == [5, 2, 7]
    assert played.most == 1
    assert outcome.is_whole
    assert outcome.asked_by == {}


def test_ranks_are_found_by_what_the_ones_before_did():
    outcome, played = _play(Parity(), stops_with_rank_0=True)
    assert played.log == ["start 0", "start 1"]
    assert outcome.is_whole


def test_a_failed_rank_0_stops_the_search():
    outcome, played = _play(Parity(), codes={0: 3}, stops_with_rank_0=True)
    assert played.log == ["start 0", "stop SIGKILL"]
    assert list(outcome.findings) == [0]
    assert not outcome.is_whole
    assert not outcome.is_interrupted


def test_another_failed_rank_does_not_lose_the_others():
    outcome, _ = _play(ChosenRanks((0, 1, 2)), codes={0: 3, 1: 3})
    assert [f.result.status for f in outcome.findings.values()] == ["failed", "failed", "ok"]


def test_the_sender_of_mail_is_started_for_who_asks_beyond_jobs():
    says = {3: [Fetch(3, "a", 2)], 2: [Fetch(2, "b", 1)], 1: [Post(1, "b", b"x"), Post(2, "a", b"y")]}
    outcome, played = _play(ChosenRanks((3,)), says, n_jobs=1)
    assert played.log[:3] == ["start 3", "start 2", "start 1"]
    assert played.heard == {2: [b"x"], 3: [b"y"]}
    assert outcome.asked_by == {2: 3, 1: 2}
    assert sorted(outcome.findings) == [1, 2, 3]


def test_ranks_that_wait_do_not_count_against_jobs():
    says = {0: [Fetch(0, "a", 1)], 1: [Fetch(1, "b", 2)]}
    _, played = _play(ChosenRanks((0, 1, 2, 3)), says, n_jobs=1)
    assert played.heard == {0: [None], 1: [None]}
    assert sorted(played.log[:3]) == ["start 0", "start 1", "start 2"]


def test_a_sender_that_ends_first_releases_the_waiting_receiver():
    _, played = _play(ChosenRanks((0,)), {0: [Fetch(0, "a", 1)]})
    assert played.heard == {0: [None]}


def test_ranks_that_wait_in_a_circle_all_go_on():
    says = {0: [Fetch(0, "a", 1)], 1: [Fetch(1, "b", 0)]}
    outcome, played = _play(ChosenRanks((0, 1)), says)
    assert played.heard == {0: [None], 1: [None]}
    assert len(outcome.findings) == 2


@pytest.mark.parametrize("sender", [-1, 8])
def test_a_rank_outside_the_world_sends_nothing(sender):
    _, played = _play(ChosenRanks((0,)), {0: [Fetch(0, "a", sender)]})
    assert played.heard == {0: [None]}
    assert played.log == ["start 0", "answer 0"]


def test_remarks_are_kept_and_a_retry_asks_again():
    says = {0: [Remark(0, "again", is_retry=True)]}
    assert _play(ChosenRanks((0,)), says)[0].remarks == {0: ("again",)}


def test_an_interrupt_ends_all_and_keeps_what_ran():
    says = {0: [Interrupted(), None], 1: [None]}
    outcome, played = _play(ChosenRanks((0, 1, 2)), says)
    assert played.log == ["start 0", "start 1", "stop SIGINT"]
    assert {rank: f.code for rank, f in outcome.findings.items()} == {0: 130, 1: 130}
    assert outcome.is_interrupted


def test_a_second_interrupt_has_no_patience():
    says = {0: [Interrupted(), Interrupted(), None]}
    outcome, played = _play(ChosenRanks((0,)), says, codes={"stubborn": True})
    assert played.log == ["start 0", "stop SIGINT", "stop SIGKILL"]
    assert outcome.findings[0].code == INTERRUPTED


def test_the_time_left_is_what_the_ranks_so_far_took():
    progress = WorldProgress(n_slots=2)
    assert progress.seconds_left is None
    progress = replace(progress, n_done=4, n_known=10, seconds_of_done=8.0)
    assert progress.seconds_left == 6.0  # six more of 2 s, two at a time
