"""torch.utils.checkpoint around blocks, played."""

from __future__ import annotations

from tests.remat.handmade import Tape, chain
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.blocks import find_blocks
from windtunnel.remat.advisor.checkpointing import CheckpointPlan


def _checkpointed(tape, n_blocks=None):
    program, seconds = tape.program()
    blocks = find_blocks(program)[:n_blocks]
    return play(program, seconds, CheckpointPlan(program, seconds, blocks))


def test_a_block_keeps_its_input_and_runs_again_as_a_whole():
    played = _checkpointed(chain([10, 20, 30, 40], [1, 2, 3, 4], [[0, 1], [2, 3]]))
    assert played.recompute_seconds == 1 + 2 + 3 + 4
    # backward of the second block: its input 20, what it saves, the gradient
    assert played.peak_bytes == 1 + 20 + (30 + 40) + 40
    assert played.live_bytes[-1] == 1  # all is let go of in the end


def test_no_blocks_is_plain_training():
    plain = play(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    played = _checkpointed(chain([10, 20, 30, 40], [1, 2, 3, 4]), 0)
    assert played.live_bytes.tolist() == plain.live_bytes.tolist()


def _two_blocks(tail_seconds):
    """Each block: saves a of 100 bytes, and then makes its output from it, which is not saved inside."""
    tape = Tape()
    x = tape.alloc(1)
    handles = []
    for i in range(2):
        tape.enter(f"layers.{i}")
        (a,) = tape.call([x], [100], 2.0)
        handles.append(tape.save(a))
        (y,) = tape.call([a], [10], tail_seconds)
        tape.free(a)
        tape.exit()
        x = y
    tape.free(x)
    for handle in reversed(handles):
        tape.backward([handle], 5)
    tape.step()
    return tape


def test_running_again_stops_at_the_last_save():
    assert _checkpointed(_two_blocks(50.0)).recompute_seconds == 2.0 + 2.0


def test_only_some_blocks_can_be_checkpointed():
    assert _checkpointed(_two_blocks(1.0), 1).recompute_seconds == 2.0


def test_what_the_block_returns_is_kept_only_as_the_next_ones_input():
    played = _checkpointed(_two_blocks(1.0))
    forward_peak = 1 + 10 + 100 + 10  # input of each block, then the inside of the second, and its result
    assert played.peak_bytes == forward_peak


def test_what_a_custom_function_saves_unseen_is_dropped_too():
    """The recording sees such storages only end in backward."""
    tape = Tape()
    x = tape.alloc(1)
    kept = []
    for i in range(2):
        tape.enter(f"layers.{i}")
        (seen,) = tape.call([x], [40], 1.0)
        handle = tape.save(seen)
        (unseen,) = tape.call([x], [100], 2.0)
        (y,) = tape.call([seen, unseen], [10], 1.0)
        tape.free(seen)
        tape.exit()
        kept.append((handle, unseen))
        x = y
    tape.free(x)
    for handle, unseen in reversed(kept):
        tape.backward([handle])
        tape.free(unseen)
    tape.step()
    played = _checkpointed(tape)
    assert played.recompute_seconds == 2 * (1.0 + 2.0 + 1.0)
    assert played.peak_bytes == 1 + 10 + 40 + 100 + 10
    assert played.live_bytes[-1] == 11  # the weights-like input, and the first block's result nobody freed
