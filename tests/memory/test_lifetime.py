"""Lifetimes and roles of storages, from hand-made events."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.events.file import RecordingWriter, read_recording, record_events, row_of
from windtunnel.events.model import Alloc, Free, Mark, ModuleEnter, Op, Phase, Role, Signature, Step
from windtunnel.memory.lifetime import ALIVE, lifetimes_of

FORWARD, BACKWARD, OPTIMIZER, BUILD = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BUILD


def _lifetimes(tmp_path, events):
    record_events(tmp_path / "r.arrows", events)
    return lifetimes_of(read_recording(tmp_path / "r.arrows"))


def _roles(tmp_path, events):
    found = _lifetimes(tmp_path, events)
    return {s: Role(r) for s, r in zip(found.storage.tolist(), found.role.tolist(), strict=True)}


def test_a_storage_lives_from_its_alloc_to_its_free(tmp_path):
    found = _lifetimes(tmp_path, [Alloc(5, 10), Alloc(3, 20), Free(5), Alloc(4, 30), Free(4)])
    assert found.storage.tolist() == [5, 3, 4]
    assert found.birth.tolist() == [0, 1, 3]
    assert found.death.tolist() == [2, ALIVE, 4]


def test_a_resized_storage_lives_twice(tmp_path):
    found = _lifetimes(tmp_path, [Alloc(1, 10), Free(1), Alloc(1, 20), Free(1), Alloc(1, 30)])
    assert found.n_bytes.tolist() == [10, 20, 30]
    assert found.death.tolist() == [1, 3, ALIVE]


def test_the_last_mark_wins_over_the_role_at_birth(tmp_path):
    events = [
        Alloc(1, 10, role=Role.INPUT),
        Alloc(2, 10),
        Mark(1, Role.WEIGHT),
        Mark(1, Role.GRADIENT),
        Free(1),
    ]
    assert _roles(tmp_path, events) == {1: Role.GRADIENT, 2: Role.TEMPORARY}


def test_a_mark_outlives_a_resize_but_does_not_reach_back(tmp_path):
    found = _lifetimes(
        tmp_path, [Alloc(1, 10), Free(1), Alloc(1, 20), Mark(1, Role.WEIGHT, 0), Free(1), Alloc(1, 30)]
    )
    assert found.role.tolist() == [Role.TEMPORARY, Role.WEIGHT, Role.WEIGHT]
    assert found.name.tolist() == [-1, 0, 0]


def test_a_mark_without_a_name_keeps_the_name_given_before(tmp_path):
    found = _lifetimes(tmp_path, [Alloc(1, 10), Mark(1, Role.WEIGHT, 3), Mark(1, Role.OPTIMIZER)])
    assert (found.role.tolist(), found.name.tolist()) == ([Role.OPTIMIZER], [3])


def test_forward_storages_that_meet_a_backward_are_activations(tmp_path):
    events = [Alloc(1, 10), Alloc(2, 10), Free(2), Alloc(3, 10, phase=BACKWARD), Free(1), Free(3)]
    assert _roles(tmp_path, events) == {1: Role.ACTIVATION, 2: Role.TEMPORARY, 3: Role.TEMPORARY}


def test_a_free_in_backward_alone_does_not_make_an_activation(tmp_path):
    assert _roles(tmp_path, [Alloc(1, 10), Free(1, phase=BACKWARD)]) == {1: Role.TEMPORARY}


def test_unmarked_gradients_and_optimizer_state_are_recognised_by_what_they_outlive(tmp_path):
    events = [
        Alloc(1, 10, phase=BACKWARD),  # alive at the step: a gradient
        Alloc(2, 10, phase=BACKWARD),
        Free(2),
        Alloc(3, 10, phase=OPTIMIZER),  # alive in the next forward: state
        Alloc(4, 10, phase=OPTIMIZER),
        Free(4),
        Step(1),
        Alloc(5, 10),
        Free(1),
    ]
    assert _roles(tmp_path, events) == {
        1: Role.GRADIENT,
        2: Role.TEMPORARY,
        3: Role.OPTIMIZER,
        4: Role.TEMPORARY,
        5: Role.TEMPORARY,
    }


def test_what_a_checkpoint_recomputes_during_backward_is_an_activation(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    outer = writer.frame("/site/torch/utils/checkpoint.py", 1200, "recompute_fn")
    inner = writer.frame("model.py", 8, "forward", outer)
    events = [Alloc(1, 10, phase=BACKWARD, frame=inner), Alloc(2, 10, phase=BACKWARD), Free(1), Free(2)]
    writer.rows += [row_of(e) for e in events]
    writer.close()
    found = lifetimes_of(read_recording(tmp_path / "r.arrows"))
    assert found.role.tolist() == [Role.ACTIVATION, Role.TEMPORARY]


def test_each_storage_knows_its_operator_and_step(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    mm = writer.signature(Signature("aten.mm.default", (), (), ""))
    events = [
        Alloc(1, 10, op=40),
        Op(40, mm, outputs=(1,)),
        Step(1),
        Alloc(2, 10, op=41),
        Step(2),
        Alloc(3, 10),
    ]
    writer.rows += [row_of(e) for e in events]
    writer.close()
    found = lifetimes_of(read_recording(tmp_path / "r.arrows"))
    assert found.signature.tolist() == [
        mm,
        -1,
        -1,
    ]  # the second op's row was never written: killed in between
    assert found.step.tolist() == [1, 2, 2]


def test_a_new_step_begins_after_the_last_one_only_with_another_pass(tmp_path):
    events = [Alloc(1, 10), Step(1), Alloc(2, 10), Step(2), Alloc(3, 10)]
    assert _lifetimes(tmp_path, events).step.tolist() == [1, 2, 2]
    assert _lifetimes(tmp_path, [*events, ModuleEnter(0)]).step.tolist() == [1, 2, 3]
    assert _lifetimes(tmp_path, [*events, Op(0, 0, phase=BACKWARD)]).step.tolist() == [1, 2, 3]


def test_an_empty_recording_has_no_lifetimes(tmp_path):
    assert len(_lifetimes(tmp_path, [])) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 4)), max_size=40))
def test_lifetimes_agree_with_a_slow_reading(tmp_path_factory, script):
    events = []
    for storage, what, role in script:
        events.append([Alloc(storage, 10), Free(storage), Mark(storage, Role(role))][what])
    found = _lifetimes(tmp_path_factory.mktemp("r"), events)
    for storage, birth, death, role in np.stack(
        [found.storage, found.birth, found.death, found.role], 1
    ).tolist():
        later = [
            i
            for i, e in enumerate(events)
            if i > birth and e.__class__ in (Alloc, Free) and e.storage == storage
        ]
        assert death == (later[0] if later and isinstance(events[later[0]], Free) else ALIVE)
        rebirth = next((i for i in later if isinstance(events[i], Alloc)), len(events))
        marks = [e.role for e in events[:rebirth] if isinstance(e, Mark) and e.storage == storage]
        assert role == (marks[-1] if marks else Role.TEMPORARY)
