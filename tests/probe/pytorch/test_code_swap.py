"""Functions keep their identity while a recorder stands in for their code."""

from __future__ import annotations

import functools
import inspect

from windtunnel.probe.collect.code_swap import CodeSwaps


def _make(offset: int):
    def add(x, /, y=2, *, z=3):
        return x + y + z + offset

    return add


def test_every_reference_is_covered_and_restored():
    add, other = _make(10), _make(20)
    held = {"partial": functools.partial(add, 1), "list": [add]}
    code, signature = add.__code__, inspect.signature(add)
    seen = []

    def recorder(original, args, kwargs):
        seen.append((args, kwargs))
        return original(*args, **kwargs) * 100

    swaps = CodeSwaps()
    assert swaps.swap(add, recorder)
    assert held["partial"](z=0) == 1300  # 1 + 2 + 0 + 10, from the closure and the defaults
    assert held["list"][0](1, 1, z=1) == 1300
    assert inspect.signature(add) == signature
    assert other(1) == 26  # made by the same code, not exchanged
    assert swaps.swap(other, lambda original, args, kwargs: original(*args, **kwargs) + 1)
    assert (other(1), add(1)) == (27, 1600)
    assert seen == [((1,), {"z": 0}), ((1, 1), {"z": 1}), ((1,), {})]
    swaps.restore()
    assert add.__code__ is code
    assert "__signature__" not in vars(add)
    assert held["partial"]() == 16


def test_the_innermost_of_a_decorated_function_is_exchanged():
    add = _make(0)

    @functools.wraps(add)
    def decorated(*args, **kwargs):
        return add(*args, **kwargs) + 1000

    swaps = CodeSwaps()
    assert swaps.swap(decorated, lambda original, args, kwargs: -original(*args, **kwargs))
    assert decorated(1) == 994
    swaps.restore()
    assert decorated(1) == 1006


def test_what_is_not_of_python_or_exchanged_already_is_left_alone():
    add = _make(0)
    first, second = CodeSwaps(), CodeSwaps()
    assert not first.swap(len, lambda *_: None)
    assert first.swap(add, lambda original, args, kwargs: original(*args, **kwargs) + 1)
    assert not second.swap(add, lambda *_: None)
    second.restore()
    assert add(1) == 7
    first.restore()
    assert add(1) == 6


def test_an_error_of_the_function_is_its_own():
    def broken():
        raise KeyError("mine")

    swaps = CodeSwaps()
    swaps.swap(broken, lambda original, args, kwargs: original(*args, **kwargs))
    try:
        broken()
    except KeyError as error:
        assert error.args == ("mine",)
    else:
        raise AssertionError("the error was lost")
    finally:
        swaps.restore()
