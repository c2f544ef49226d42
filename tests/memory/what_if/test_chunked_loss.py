"""Logits in pieces: which storages of a recording are as large as the logits, and what becomes of them."""

from __future__ import annotations

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Mark, Op, Phase, Role, Signature, TensorSpec
from windtunnel.memory.what_if.chunked_loss import find_loss, in_chunks

N, H, V = 64, 16, 1000


def spec(*shape, dtype="float32"):
    return TensorSpec(shape, (1,) * len(shape), dtype)


LOGITS, HIDDEN, WEIGHT = spec(N, V), spec(N, H), spec(H, V)
SIGNATURES = (
    Signature("aten.mm.default", (HIDDEN, WEIGHT), (LOGITS,), ""),
    Signature("aten.copy_.default", (LOGITS, spec(N, V, dtype="bfloat16")), (), ""),
    Signature("aten._log_softmax.default", (LOGITS,), (LOGITS,), ""),
    Signature("aten._log_softmax_backward_data.default", (LOGITS, LOGITS), (LOGITS,), ""),
    Signature("aten.mm.default", (spec(H, N), LOGITS), (WEIGHT,), ""),
    Signature("aten.relu.default", (HIDDEN,), (HIDDEN,), ""),
)
BYTES = N * V * 4


def _recording(tmp_path, events):
    record_events(tmp_path / "r.arrows", events, names=("head.weight",), signatures=SIGNATURES)
    return read_recording(tmp_path / "r.arrows")


def _training():
    return [
        Alloc(0, H * V * 4),
        Mark(0, Role.WEIGHT, 0),
        Alloc(1, N * H * 4, op=0),
        Op(0, 5, (1,), (1,)),
        Alloc(2, BYTES, op=1),
        Op(1, 0, (1, 0), (2,)),
        Alloc(3, BYTES),  # empty, and then copied into
        Op(2, 1, (3, 2), ()),
        Alloc(4, BYTES, op=3),
        Op(3, 2, (3,), (4,)),
        Alloc(5, BYTES, op=4, phase=Phase.BACKWARD),
        Op(4, 3, (4, 4), (5,), phase=Phase.BACKWARD),
        Alloc(6, H * V * 4, op=5, phase=Phase.BACKWARD),
        Op(5, 4, (1, 5), (6,), phase=Phase.BACKWARD),
    ]


def test_logits_their_copies_and_their_gradients_are_found_and_weights_are_not(tmp_path):
    recording = _recording(tmp_path, _training())
    loss = find_loss(recording)
    assert (loss.n_classes, loss.n_rows, loss.weight_bytes) == (V, N, H * V * 4)
    assert recording.columns["subject"][loss.births].tolist() == [2, 3, 4, 5]
    assert recording.columns["subject"][loss.backward_births].tolist() == [5]


def test_in_chunks_each_is_a_chunk_long_and_the_weights_gradient_needs_a_second_buffer(tmp_path):
    recording = _recording(tmp_path, _training())
    loss = find_loss(recording)
    changed = in_chunks(recording, loss, 8)
    sizes = dict(
        zip(
            changed.columns["subject"][[0, 2, *loss.births]].tolist(),
            changed.columns["value"][[0, 2, *loss.births]].tolist(),
            strict=True,
        )
    )
    chunk = BYTES // 8
    assert sizes == {0: H * V * 4, 1: N * H * 4, 2: chunk, 3: chunk, 4: chunk, 5: chunk + H * V * 4}
    assert recording.columns["value"][loss.births].tolist() == [BYTES] * 4  # the original is as it was


def test_a_weight_with_as_many_rows_as_there_are_tokens_is_still_a_weight(tmp_path):
    """Shapes alone do not tell: with N = H the gradient of the projection looks like the logits."""
    square = spec(N, V)
    signatures = (
        Signature("aten.mm.default", (spec(N, N), square), (square,), ""),
        Signature("aten._log_softmax.default", (square,), (square,), ""),
        Signature("aten.mm.default", (spec(N, N), square), (square,), ""),
    )
    events = [
        Alloc(0, BYTES),
        Mark(0, Role.WEIGHT, 0),
        Alloc(2, BYTES, op=1),
        Op(1, 0, (1, 0), (2,)),
        Alloc(4, BYTES, op=3),
        Op(3, 1, (2,), (4,)),
        Alloc(6, BYTES, op=5, phase=Phase.BACKWARD),
        Op(5, 2, (1, 4), (6,), phase=Phase.BACKWARD),
    ]
    record_events(tmp_path / "r.arrows", events, names=("w",), signatures=signatures)
    recording = read_recording(tmp_path / "r.arrows")
    assert recording.columns["subject"][find_loss(recording).births].tolist() == [2, 4]


def test_a_program_without_a_cross_entropy_has_none(tmp_path):
    assert find_loss(_recording(tmp_path, [Alloc(1, 64, op=0), Op(0, 5, (1,), (1,))])) is None
