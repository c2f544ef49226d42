"""Repeated blocks, at the depth at which people checkpoint, in any tree of modules."""

from __future__ import annotations

from windtunnel.memory.attribution import ModuleShare
from windtunnel.memory.checkpoint_units import checkpoint_units, seconds_in


def units(held, weights=()):
    shares = [ModuleShare(path, "activations", n_bytes) for path, n_bytes in held.items()]
    shares += [ModuleShare(path, "weights", 7) for path in weights]
    return [(unit.module, len(unit.members), unit.n_bytes) for unit in checkpoint_units(shares)]


def test_layers_of_a_transformer_are_blocks_and_the_rest_stands_beside_them():
    held = {f"model.layers.{i}.{leaf}": 10 for i in range(6) for leaf in ("mlp.act_fn", "self_attn", "mlp")}
    held |= {"model.norm": 3, "lm_head": 40, "": 1, "model": 2}
    blocks, *others = units(held)
    assert blocks == ("model.layers.0-5", 6, 180)
    assert others == [("lm_head", 1, 40), ("model.norm", 1, 3), ("model", 1, 2), ("", 1, 1)]


def test_what_an_ancestor_of_blocks_computes_itself_is_not_the_whole_of_it():
    found = checkpoint_units(
        [ModuleShare("net", "activations", 5), ModuleShare("net.layers.0.mlp", "activations", 9)]
    )
    assert [(unit.module, unit.is_whole, unit.is_repeated) for unit in found] == [
        ("net.layers.0", True, True),
        ("net", False, False),
    ]


def test_a_flat_model_is_its_layers():
    assert units({"fc1": 4, "act": 9, "fc2": 2}) == [("act", 1, 9), ("fc1", 1, 4), ("fc2", 1, 2)]


def test_plain_layers_in_a_row_are_one_unit_apart_from_blocks():
    held = {"0": 5, "1": 6} | {f"{i}.{leaf}": 10 for i in range(2, 8) for leaf in ("conv1", "relu")}
    assert units(held) == [("2-7", 6, 120), ("0-1", 2, 11)]


def test_a_numbered_layer_inside_a_block_is_part_of_the_block():
    assert units({f"b.{i}.{j}": 2 for i in range(5) for j in range(3)}) == [("b.0-4", 5, 30)]


def test_names_without_numbers_stop_below_what_wraps_everything():
    held = {"module.encoder.conv.a": 4, "module.encoder.conv.b": 5, "module.decoder.up": 2}
    assert units(held) == [("module.encoder", 1, 9), ("module.decoder", 1, 2)]


def test_of_stages_of_blocks_the_blocks_count():
    held = {f"layers.{s}.blocks.{b}.attn": 10 for s in range(3) for b in range(2)} | {
        "layers.0.downsample": 1
    }
    assert units(held) == [("layers.0-2.blocks.0-1", 6, 60), ("layers.0.downsample", 1, 1)]


def test_of_many_layers_with_experts_the_layers_count():
    held = {f"layers.{i}.mlp.experts.{e}.up": 10 for i in range(8) for e in range(4)}
    held |= {f"layers.{i}.self_attn": 2 for i in range(8)}
    assert units(held) == [("layers.0-7", 8, 336)]


def test_weights_tell_that_a_numbered_module_has_modules_in_it():
    held = {f"blocks.{i}": 8 for i in range(4)} | {"blocks.9": 1}
    assert units(held, [f"blocks.{i}.a" for i in range(4)]) == [("blocks.0-3", 4, 32), ("blocks.9", 1, 1)]


def test_names_of_mindspore_cells():
    held = {f"network.model.layers.{i}.attention.rope": 3 for i in (0, 1, 3)} | {"network.loss": 1}
    assert units(held) == [("network.model.layers.0-1,3", 3, 9), ("network.loss", 1, 1)]


def test_without_activations_there_is_no_unit():
    assert units({}, ["layers.0.mlp"]) == []
    assert units({"layers.0.mlp": 0}) == []


def test_every_byte_is_in_one_unit():
    held = {"": 1, "a": 2, "a.0.b": 4, "a.0.c.1.d": 8, "a.1.b": 16, "e.f": 32, "0.g.3": 64}
    assert sum(n_bytes for *_, n_bytes in units(held)) == sum(held.values())


def test_the_time_of_a_unit_is_that_of_all_its_modules_and_of_no_other():
    shares = [ModuleShare(f"layers.{i}.mlp", "activations", 9) for i in range(2)]
    layers, own = checkpoint_units([*shares, ModuleShare("", "activations", 1)])
    times = {"layers.0.mlp": 1.0, "layers.1.attn.q": 2.0, "layers.1": 4.0, "layers.10.mlp": 8.0, "": 16.0}
    assert seconds_in(layers, times) == 7.0
    assert seconds_in(own, times) == 16.0
