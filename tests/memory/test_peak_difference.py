"""What two peaks hold of the same thing: every byte of either side in one row."""

from __future__ import annotations

from windtunnel.memory.attribution import LiveTensors, ModuleShare, RoleBytes
from windtunnel.memory.peak_difference import Change, module_changes, role_changes, tensor_changes


def test_layers_of_both_sides_meet_in_one_row():
    a = [ModuleShare(f"layers.{i}.mlp", "activations", 10) for i in range(2)]
    b = [ModuleShare(f"layers.{i}.mlp", "activations", 10) for i in range(3)]
    assert module_changes(a, b) == (Change("layers.0-2.mlp", "activations", 20, 30),)


def test_rows_add_up_to_both_peaks_and_the_largest_change_is_first():
    a = [ModuleShare("x", "weights", 5), ModuleShare("x", "activations", 7), ModuleShare("", "temporary", 2)]
    b = [
        ModuleShare("x", "weights", 5),
        ModuleShare("y.0", "activations", 1),
        ModuleShare("", "temporary", 4),
    ]
    changes = module_changes(a, b)
    assert [(c.module, c.role, c.difference) for c in changes] == [
        ("x", "activations", -7), ("", "temporary", 2), ("y.0", "activations", 1), ("x", "weights", 0),
    ]  # fmt: skip
    assert sum(c.a_bytes for c in changes) == 14
    assert sum(c.b_bytes for c in changes) == 10
    assert sum(c.difference for c in changes) == 10 - 14


def test_roles_keep_their_order():
    changes = role_changes(RoleBytes(weights=3, activations=4), RoleBytes(weights=3, workspace=1))
    assert [(c.role, c.difference) for c in changes if c.difference] == [
        ("activations", -4),
        ("workspace", 1),
    ]
    assert changes[0] == Change("", "weights", 3, 3)


def test_tensors_are_the_same_if_they_come_from_the_same_place_whatever_their_shape():
    def tensors(batch, n_bytes, where="m.py:7"):
        return LiveTensors("", "aten.mm", "mlp", "activations", (batch, 8), "bfloat16", where, 2, n_bytes)

    (change, lone) = tensor_changes([tensors(4, 64)], [tensors(2, 32), tensors(2, 16, "m.py:9")])
    assert (change.a_bytes, change.b_bytes, change.difference) == (64, 32, -32)
    assert (change.a_shape, change.b_shape) == ("4x8 bfloat16", "2x8 bfloat16")
    # That a side does not list it does not mean it has none.
    assert (lone.where, lone.a_bytes, lone.b_bytes, lone.difference) == ("m.py:9", None, 16, None)
