"""The cross-entropy of a recording: its classes, its tokens, its bytes."""

from __future__ import annotations

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Op, Signature, TensorSpec
from windtunnel.memory.what_if.logits import Loss, find_loss

N, V = 64, 1000


def spec(*shape, dtype="float32"):
    return TensorSpec(shape, (1,) * len(shape), dtype)


def _log_softmax(*shape, dtype="float32"):
    return Signature("aten._log_softmax.default", (spec(*shape, dtype=dtype),), (spec(*shape),), "")


SIGNATURES = (
    Signature("aten.relu.default", (spec(N, V),), (spec(N, V),), ""),
    _log_softmax(N, V),
    _log_softmax(4, N, V, dtype="bfloat16"),
    _log_softmax(N, 10 * V),
    _log_softmax(0, V),
)


def _found(tmp_path, *signatures):
    events = [
        event
        for i, signature in enumerate(signatures)
        for event in (Alloc(i, 64, op=i), Op(i, signature, (i,), (i,)))
    ]
    record_events(tmp_path / "r.arrows", events, names=("",), signatures=SIGNATURES)
    return find_loss(read_recording(tmp_path / "r.arrows"))


def test_the_largest_loss_that_ran_counts_and_every_dimension_but_the_last_is_tokens(tmp_path):
    assert _found(tmp_path, 0, 1) == Loss(N * V * 4, V, N)
    assert _found(tmp_path, 1, 2) == Loss(4 * N * V * 2, V, 4 * N)


def test_a_program_without_a_cross_entropy_has_none_and_neither_has_one_without_tokens(tmp_path):
    assert _found(tmp_path, 0) is None
    assert _found(tmp_path, 4) is None
