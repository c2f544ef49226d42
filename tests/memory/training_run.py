"""Two steps of a two-layer training, as events: enough for every role to appear."""

from __future__ import annotations

from windtunnel.events.file import RecordingWriter, read_recording, row_of
from windtunnel.events.model import Alloc, Build, Free, Mark, Op, Phase, Role, Signature, Step, TensorSpec

KIB = 1024


def record_training(path, is_killed=False):
    """A weight of 8 KiB per layer, activations of 16 KiB, one optimizer state of 8 KiB per layer."""
    writer = RecordingWriter(path, {"rank": 0})
    names = [writer.name(n) for n in ("layers.0", "layers.1", "layers.0.weight", "layers.1.weight")]
    line = writer.frame("/home/me/train.py", 41, "main")
    inner = writer.frame("/site-packages/lib/nn.py", 7, "forward", line)
    linear = writer.signature(
        Signature(
            "aten.linear.default",
            (TensorSpec((64, 64), (64, 1), "float32"), TensorSpec((32, 64), (64, 1), "float32")),
            (TensorSpec((64, 64), (64, 1), "float32"),),
            "",
        )
    )
    grad = writer.signature(Signature("aten.mm.default", (), (TensorSpec((32, 64), (64, 1), "float32"),), ""))

    def emit(*events):
        writer.rows.extend(row_of(e) for e in events)

    for layer in (0, 1):
        emit(Alloc(layer, 8 * KIB, phase=Phase.BUILD), Build(names[layer], 1500 * (layer + 1)))
        emit(Mark(layer, Role.WEIGHT, names[2 + layer]))
    op, storage = 0, 2
    for step in (1, 2):
        emit(Alloc(storage, 16 * KIB, role=Role.INPUT, frame=line))
        source, saved, grads = storage, [], []
        storage += 1
        for layer in (0, 1):
            emit(Alloc(storage, 16 * KIB, op=op, module=names[layer], frame=inner))
            emit(Op(op, linear, (source, layer), (storage,), module=names[layer], frame=inner))
            saved.append(storage)
            source, storage, op = storage, storage + 1, op + 1
        if is_killed and step == 2:
            writer.flush()
            return read_recording(path)
        for layer in (1, 0):
            emit(Alloc(storage, 8 * KIB, op=op, module=names[layer], phase=Phase.BACKWARD))
            emit(Op(op, grad, (saved[layer],), (storage,), module=names[layer], phase=Phase.BACKWARD))
            emit(Mark(storage, Role.GRADIENT, names[2 + layer]))
            emit(Free(saved[layer], module=names[layer], phase=Phase.BACKWARD))
            grads.append(storage)
            storage, op = storage + 1, op + 1
        for layer in (0, 1):
            if step == 1:
                emit(Alloc(storage, 8 * KIB, phase=Phase.OPTIMIZER))
                emit(Mark(storage, Role.OPTIMIZER, names[2 + layer]))
                storage += 1
        emit(
            *(Free(g, phase=Phase.OPTIMIZER) for g in grads),
            Free(storage_of_input(step), phase=Phase.OPTIMIZER),
        )
        emit(Step(step))
    writer.close()
    return read_recording(path)


def storage_of_input(step):
    return 2 if step == 1 else 9
