"""Which loops wait for a value that nothing computes, and which end by themselves."""

from __future__ import annotations

import itertools
import sys
import time
import weakref

import pytest

from windtunnel.capture.waiting_loops import WaitingLoops

ROUNDS = 40


class Stopped(Exception):
    """The loop was found to wait."""


def _reader(rounds=ROUNDS):
    """A function that reads an unknown value, and ends the test after a while."""
    watch, n = WaitingLoops(lambda file: "test_waiting_loops" not in file), itertools.count()

    def read():
        if watch.look("line", sys._getframe(1)) is not None:
            raise Stopped
        if next(n) > rounds:
            raise TimeoutError
        return 1.0

    return read


def while_on_the_value(read):
    loss = 1.0
    while loss > 0.5:
        loss = read()


def while_with_two_names_in_one_assignment(read):
    loss, n = read(), 0
    while loss > 0.5:
        loss, n = read(), n + 1


def while_with_a_counter_that_decides_nothing(read):
    loss, n = read(), 0
    while loss > 0.5:
        n += 1
        loss = read()


def break_on_the_value(read):
    while True:
        if read() < 0.5:
            break


def endless_for(read):
    for _ in itertools.count():
        loss = read()
        if loss < 0.5:
            return


def in_a_helper(read):
    def converged():
        return read() < 0.5

    while not converged():
        pass


def data_that_changes(read):
    batches = itertools.cycle([[1.0], [2.0]])
    loss = 1.0
    while loss > 0.5:
        next(batches)
        loss = read()


def method_of_an_object(read):
    class Trainer:
        loss = 1.0

    trainer = Trainer()
    trainer.loss = 1.0
    while trainer.loss > 0.5:
        trainer.loss = read()


WAITS = [
    while_on_the_value,
    while_with_a_counter_that_decides_nothing,
    while_with_two_names_in_one_assignment,
    break_on_the_value,
    endless_for,
    in_a_helper,
    data_that_changes,
    method_of_an_object,
]


def logging_in_a_for(read):
    for _ in range(1000):
        read()


def logging_in_a_while(read):
    step = 0
    while step < 1000:
        read()
        step += 1


def limit_beside_it(read):
    step = 0
    while read() > 0.5 and step < 1000:
        step += 1


def limit_with_a_break(read):
    step = 0
    while True:
        step += 1
        if read() < 0.5:
            break
        if step >= 1000:
            return


def limit_through_a_flag(read):
    step, done = 0, False
    while not done:
        step += 1
        if step > 1000:
            done = True
        done = done or read() < 0.5


def patience(read):
    best, bad = 0.0, 0
    while bad < 1000:
        loss = read()
        if loss > best:
            bad += 1


def several_in_one_round(read):
    step = 0
    while step < 1000:
        total = sum([read() for _ in range(20)])
        step += 1 if total else 0


def limit_in_an_object(read):
    class Run:
        n = 0

        def goes_on(self):
            self.n += 1
            return self.n < 1000

    run = Run()
    while run.goes_on():
        read()


def limit_in_a_nested_object(read):
    class Progress:
        n = 0

    class Run:
        def __init__(self):
            self.progress = Progress()

        @property
        def is_done(self):
            return self.progress.n > 1000

        def advance(self):
            self.progress.n += 1
            return read()

    run = Run()
    while not run.is_done:
        run.advance()


def time_limit(read):
    start = time.monotonic()
    while time.monotonic() - start < 1000:
        read()


def end_of_data(read):
    batches = iter(range(1000))
    while True:
        try:
            next(batches)
        except StopIteration:
            break
        read()


def growing_list(read):
    found = []
    while len(found) < 1000:
        found.append(read())


def sum_that_grows(read):
    total = 0.0
    while total < 1000:
        total += read()


ENDS = [
    logging_in_a_for,
    logging_in_a_while,
    limit_beside_it,
    limit_with_a_break,
    limit_through_a_flag,
    patience,
    several_in_one_round,
    limit_in_an_object,
    limit_in_a_nested_object,
    time_limit,
    end_of_data,
    growing_list,
    sum_that_grows,
]


@pytest.mark.parametrize("program", WAITS, ids=lambda p: p.__name__)
def test_a_loop_that_ends_by_nothing_else_waits(program):
    with pytest.raises(Stopped):
        program(_reader())


@pytest.mark.parametrize("program", ENDS, ids=lambda p: p.__name__)
def test_a_loop_that_ends_by_something_else_does_not_wait(program):
    with pytest.raises(TimeoutError):
        program(_reader(200))


def test_names_of_a_frame_are_not_kept_alive():
    class Big:
        pass

    freed = []
    watch = WaitingLoops(lambda file: "test_waiting_loops" not in file)

    def read(n):
        watch.look("line", sys._getframe(1))
        return 1.0 if n < 4 else 0.0

    loss, n = 1.0, 0
    while loss > 0.5:
        big = Big()
        weakref.finalize(big, freed.append, n)
        n += 1
        loss = read(n)
    assert freed == [0, 1, 2]  # each when the next one took its name


def test_a_loop_that_0_does_not_end_waits_again():
    watch = WaitingLoops(lambda file: "test_waiting_loops" not in file)
    found = []

    def read():
        waiting = watch.look("line", sys._getframe(1))
        if waiting is not None:
            found.append(waiting.is_again)
            return 0.0
        return 1.0

    def program(rounds):
        for _ in range(rounds):
            while read() > 0.5:
                pass

    program(3)
    assert found == [False, False, False]  # each ended it, and another round of the outer loop began

    def stubborn():
        while read() < 2:
            if len(found) == 5:
                raise TimeoutError

    with pytest.raises(TimeoutError):
        stubborn()
    assert found[3:] == [False, True]
