"""Which modules are the repeated blocks, from their names and what they save."""

from __future__ import annotations

from tests.remat.handmade import Tape
from windtunnel.remat.advisor.blocks import find_blocks, name_blocks
from windtunnel.remat.simulated.program import Alloc, Op


def _model(paths, n_inside=3, inside_bytes=100, outer=""):
    """Modules in a row, each saving a few large things inside; data of 10 bytes goes between them.

    Inside, one thing is made from the one before: to checkpoint each by itself would hold them all as inputs.
    """
    tape = Tape()
    x = tape.alloc(10)
    if outer:
        tape.enter(outer)
    handles = []
    for path in paths:
        tape.enter(path)
        inner = x
        for i in range(n_inside):
            tape.enter(f"{path}.linear{i}")
            (made,) = tape.call([inner], [inside_bytes])
            handles.append(tape.save(made))
            tape.exit()
            if inner != x:
                tape.free(inner)
            inner = made
        (y,) = tape.call([inner], [10])
        tape.free(inner)
        tape.exit()
        x = y
    if outer:
        tape.exit()
    for handle in reversed(handles):
        tape.backward([handle])
    tape.step()
    return tape.program()[0]


def test_numbered_siblings_are_blocks():
    blocks = find_blocks(_model([f"model.layers.{i}" for i in range(4)], outer="model"))
    assert [block.path for block in blocks] == [f"model.layers.{i}" for i in range(4)]
    assert name_blocks(blocks) == "4 blocks, model.layers.0 to model.layers.3"


def test_siblings_in_several_stages_are_one_family():
    paths = ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]
    assert [block.path for block in find_blocks(_model(paths))] == paths


def test_words_with_numbers_count_as_siblings():
    paths = ["features.denselayer1", "features.denselayer2", "features.denselayer3"]
    assert [block.path for block in find_blocks(_model(paths))] == paths


def test_blocks_span_exactly_their_own_actions():
    program = _model(["layers.0", "layers.1"])
    first, second = find_blocks(program)
    inside = [
        program.place(action.row).startswith(("layers.0", "layers.1"))
        for action in program.actions
        if isinstance(action, (Alloc, Op))
    ]
    spanned = [
        first.first <= at < first.end or second.first <= at < second.end
        for at, action in enumerate(program.actions)
        if isinstance(action, (Alloc, Op))
    ]
    assert spanned == inside
    assert sum(inside) == 2 * 4 * 2
    assert first.end <= second.first


def test_nothing_repeated_is_no_blocks():
    blocks = find_blocks(_model(["encoder"]))
    assert blocks == ()
    assert name_blocks(blocks) == "no repeated blocks"


def test_siblings_that_save_next_to_nothing_are_left_alone():
    blocks = find_blocks(_model(["layers.0", "layers.1"], n_inside=1, inside_bytes=1))
    assert blocks == ()


def test_a_module_used_twice_in_a_step_is_two_runs_of_one_block():
    blocks = find_blocks(_model(["layers.0", "layers.1", "layers.0", "layers.1"]))
    assert [block.path for block in blocks] == ["layers.0", "layers.1"] * 2
    assert name_blocks(blocks).startswith("2 blocks")


def test_a_block_whose_input_is_overwritten_is_left_out():
    """It could not run again from it; a counter from before the step is another matter."""
    tape = Tape()
    counter = tape.alloc(1)
    tape.step()
    handles = []
    x = tape.alloc(10)
    for i in range(6):
        tape.enter(f"layers.{i}")
        if i == 2:
            tape.call([], [], 1.0, "aten.relu_.default", writes=x)
        tape.call([], [], 1.0, "aten.add_.Tensor", writes=counter)
        (inner,) = tape.call([x], [100])
        handles.append(tape.save(inner))
        (y,) = tape.call([inner], [10])
        tape.free(inner)
        tape.exit()
        if i == 4:
            tape.call([], [], 1.0, "aten.relu_.default", writes=x)  # after the block has read it
        x = y
    for handle in reversed(handles):
        tape.backward([handle])
    tape.step()
    blocks = find_blocks(tape.program()[0])
    assert [block.path for block in blocks] == ["layers.0", "layers.1", "layers.3", "layers.5"]
