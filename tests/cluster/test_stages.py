"""The stages of a rank's pipeline, from what it sends and receives."""

from __future__ import annotations

from tests.report.trace.traces import Script, play
from windtunnel.cluster.stages import stages_around


def _timelines(*scripts):
    return {timeline.rank: timeline for _, timeline in play(*scripts)}


def _pipeline(world=8, tp=2):
    """Stages of `tp` ranks each; every rank hands on to the one behind it."""
    scripts = []
    for rank in range(world):
        first = rank - rank % tp
        script = Script(rank, groups=(tuple(range(world)), tuple(range(first, first + tp))))
        if rank >= tp:
            script.receive(rank - tp)
        script.kernel()
        if rank + tp < world:
            script.send(rank + tp)
        script.step()
        scripts.append(script)
    return scripts


def test_the_ranks_it_hands_on_to_are_its_stages():
    timelines = _timelines(*_pipeline())
    assert stages_around(0, timelines, 8) == (0, 2, 4, 6)
    assert stages_around(5, timelines, 8) == (1, 3, 5, 7)


def test_stages_nobody_played_are_left_out():
    timelines = _timelines(*_pipeline())
    del timelines[4]
    assert stages_around(2, timelines, 8) == (0, 2, 6)


def test_a_rank_that_sends_nothing_stands_alone():
    script = Script(3, groups=((0, 1, 2, 3),))
    script.kernel()
    script.step()
    assert stages_around(3, _timelines(script), 4) == (3,)
