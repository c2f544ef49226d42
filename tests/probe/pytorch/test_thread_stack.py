"""Modes on torch's stacks, wherever they stand."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.probe.pytorch.eager.mode_stack import hidden, is_on, put_on, take_off


class Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _stack(kind: type) -> list:
    if kind is Function:
        return [
            torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())
        ]
    return [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]


@pytest.mark.parametrize("kind", [Function, Dispatch])
def test_a_mode_is_taken_from_below_others_and_hidden_where_it_stands(kind):
    bottom, middle, top = kind(), kind(), kind()
    with bottom:
        put_on(middle)
        put_on(middle)  # it is on already
        with top:
            assert _stack(kind) == [bottom, middle, top]
            with hidden(middle):
                assert _stack(kind) == [bottom, top]
                assert not is_on(middle)
            assert _stack(kind) == [bottom, middle, top]
            with hidden(middle, bottom), kind():
                assert len(_stack(kind)) == 2
            assert _stack(kind) == [bottom, middle, top]
            assert take_off(middle) == [top]
            assert _stack(kind) == [bottom, top]
        assert take_off(middle) is None
        with hidden(middle):  # it is not there: nothing to hide
            assert _stack(kind) == [bottom]
    assert _stack(kind) == []


def test_a_hidden_mode_comes_back_after_an_error():
    mode = Function()
    with mode:
        with pytest.raises(ValueError, match="mine"), hidden(mode):
            raise ValueError("mine")
        assert is_on(mode)
