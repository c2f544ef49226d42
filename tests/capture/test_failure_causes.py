"""Which failures rest on a value that a simulated device cannot know, and which are the script's own."""

from __future__ import annotations

import fractions
import math
import sys
from enum import Enum

import pytest

from windtunnel.capture.failure_causes import Place, cause_of

READS: list[tuple[Place, ...]] = []


def read(value=1):
    """As the recorder notes a read: the stack, from the line that reads outwards."""
    stack, frame = [], sys._getframe(1)
    while frame is not None and len(stack) < 10:
        stack.append(Place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    READS.append(tuple(stack))
    return value


class Mode(Enum):
    TRAIN = 5


def an_enum():
    number = read()
    return Mode(number)


def in_one_line():
    return {"a": 1}[read()]


def through_other_names():
    n = read()
    half = n // 2
    sizes = [half, half]
    return 3 // sizes[0] if half == 0 else None


def a_check():
    loss = read()
    if loss > 0.5:
        raise RuntimeError("the loss is too large")


def an_assertion():
    assert read() == 0


def from_a_function():
    def count():
        return read()

    n = count()
    return [10, 20][n + 1]


def in_a_called_function():
    def pick(index):
        return ["only"][index]

    n = read()
    return pick(n)


class Trainer:
    def measure(self):
        self.n = read()

    def use(self):
        return [0][self.n]


def in_another_method():
    trainer = Trainer()
    trainer.measure()
    trainer.use()


def in_a_list():
    found = []
    found.append(read())
    return ["only"][found[0]]


RESTS = [
    an_enum,
    in_one_line,
    through_other_names,
    a_check,
    an_assertion,
    from_a_function,
    in_a_called_function,
    in_another_method,
    in_a_list,
]


def only_logged():
    loss = read()
    print(loss)
    return {}["key"]


def logged_by_an_object():
    class Log:
        def write(self, value):
            self.value = value

    log = Log()
    log.write(read())
    return {}["key"]


def after_a_condition_that_does_not_decide_it():
    if read() > 0.5:
        print("high")
    return [][0]


def inside_a_function_that_read_something_else():
    def step():
        return read()

    loss = step()
    print(loss)
    return int("x")


def a_missing_package():
    name = f"missing_{read()}"
    __import__(name)


def a_name_that_a_module_lacks():
    n = read()
    return math.no_such_function(n)


def an_attribute_of_another_object_in_another_file():
    trainer = Trainer()
    trainer.measure()
    return fractions.Fraction("one half")  # fails in a line that reads other attributes


OWN = [
    a_name_that_a_module_lacks,
    an_attribute_of_another_object_in_another_file,
    only_logged,
    logged_by_an_object,
    after_a_condition_that_does_not_decide_it,
    inside_a_function_that_read_something_else,
    a_missing_package,
]


def _cause(program):
    READS.clear()
    with pytest.raises(Exception) as caught:  # noqa: PT011  each fails in its own way
        program()
    return cause_of(caught.value, READS[::-1])


@pytest.mark.parametrize("program", RESTS, ids=lambda p: p.__name__)
def test_a_failure_that_follows_from_the_value(program):
    assert _cause(program) == 0


@pytest.mark.parametrize("program", OWN, ids=lambda p: p.__name__)
def test_a_failure_that_does_not(program):
    assert _cause(program) is None
