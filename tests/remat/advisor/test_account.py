"""Time and peak of plain training, played from a recording."""

from __future__ import annotations

from tests.remat.handmade import Tape, chain
from windtunnel.remat.advisor.account import Account, last_step, play


def test_a_storage_lives_as_long_as_anyone_holds_it():
    account = Account()
    account.hold("a", 10)
    account.hold("a")
    account.hold("b", 5)
    account.release("a")
    assert (account.live, account.peak) == (15, 15)
    account.release("a")
    account.release("a")  # nobody holds it: nothing to release
    assert (account.live, account.peak) == (5, 15)


def test_plain_training_peaks_with_everything_saved_and_the_first_gradient():
    played = play(*chain([10, 20, 30, 40], [1, 2, 3, 4]).program())
    assert played.peak_bytes == 1 + (10 + 20 + 30 + 40) + 40
    assert played.seconds == (1 + 2 + 3 + 4) + 4
    assert played.recompute_seconds == 0


def test_what_the_program_holds_is_counted_once_though_it_is_saved_as_well():
    tape = Tape()
    x = tape.alloc(100)
    handle = tape.save(x)
    tape.backward([handle], 7)
    tape.free(x)
    assert play(*tape.program()).peak_bytes == 107


def test_what_was_loaded_lives_until_the_program_frees_its_copy():
    tape = Tape()
    x = tape.alloc(100)
    handle = tape.save(x)
    tape.free(x)
    copy = tape.load(handle)
    tape.unsave(handle)
    tape.alloc(9)
    tape.free(copy)
    tape.alloc(50)
    assert play(*tape.program()).peak_bytes == 109


def test_the_last_step_alone_is_timed_and_measured():
    tape = Tape()
    for n_bytes, seconds in ((1000, 50.0), (10, 2.0)):
        (made,) = tape.call([], [n_bytes], seconds)
        handle = tape.save(made)
        tape.free(made)
        tape.backward([handle], 1, 3.0)
        tape.step()
    program, seconds = tape.program()
    played = play(program, seconds)
    assert (played.seconds, played.peak_bytes) == (5.0, 11)
    assert last_step(program)[1] == len(program.actions)
