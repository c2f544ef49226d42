"""Observe a MindSpore program from Python: cells, backward, optimizer steps, weights and gradients.

    Cell.__call__ ──> enter, exit        the PyNative executor's grad ──> backward      Cell.compile ──> build times
    Optimizer, TrainOneStepCell ──> step        parameters, gradients ──> tensor (by the address of their memory)

Only methods of MindSpore's own classes are wrapped, once, before the script's first line; their results do not change.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import FunctionType
from typing import Any

import mindspore
from mindspore import Parameter, Tensor, _c_expression, nn
from mindspore.common import initializer
from mindspore.graph import api

from windtunnel.capture.mindspore.compile_phases import marked_compile
from windtunnel.capture.mindspore.paths import CellPaths, live_objects
from windtunnel.capture.mindspore.paths import is_optimizer as is_optimizer_cell
from windtunnel.capture.mindspore.tracker.marks import MarkWriter

__all__ = ["Instruments"]

_LEAST_BUILD_US = 1000  # less: it was compiled before


class Instruments:
    """Writes marks while the script runs."""

    def __init__(
        self, marks: MarkWriter, on_step: Callable[[int], None], *, shows_phases: bool = False
    ) -> None:
        self._marks, self._on_step = marks, on_step
        self._shows_phases = shows_phases  # the compiler prints them: say what it compiles
        self.paths = CellPaths()
        self.parameter_names: dict[str, str] = {}  # MindSpore's name -> its path in the model
        self.optimizer_states: dict[str, str] = {}  # made by an optimizer -> the weight it is of, or ""
        self._depth = 0
        self._n_backward = 0
        self._n_optimizer = 0
        self._n_steps = 0
        self._named: set[tuple[int, str]] = set()

    def install(self) -> None:
        self.paths.watch()
        nn.Cell.__call__ = self._watched_call(nn.Cell.__call__)
        nn.Cell.compile = self._timed_compile(nn.Cell.compile, lambda cell: type(cell).__name__)
        jit = api._JitExecutor
        jit.compile = self._timed_compile(jit.compile, lambda executor: executor.fn.__qualname__)
        api._JitExecutor.__call__ = self._watched_jit(api._JitExecutor.__call__)
        executor = api._PyNativeExecutor
        executor.grad = self._watched_backward(executor.grad)
        for owner, name in ((Tensor, "backward"), (_c_expression, "run_backward")):
            if hasattr(owner, name):
                setattr(owner, name, self._watched_backward(getattr(owner, name)))
        # Values on a simulated device are never read: drawing random numbers for them takes minutes and gigabytes.
        initializer.Initializer.__call__ = lambda self, array: None

    # -- cells ---------------------------------------------------------------------------------------------

    def _watched_call(self, original: Callable) -> Callable:
        @wraps(original)
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
                result = original(cell, *args, **kwargs)
                self.paths.path_of(cell)
                if self._depth == 0 and _trains(cell):
                    self._end_step(is_marked=False)
                return result
            is_optimizer = is_optimizer_cell(cell)
            path = "" if is_optimizer else self.paths.path_of(cell)
            self._depth += 1
            self._marks.add("enter", path, int(self._n_backward > 0))
            if is_optimizer:
                self._n_optimizer += 1
                if self._n_optimizer == 1:
                    self._marks.add("optimizer", 1)
            try:
                return original(cell, *args, **kwargs)
            finally:
                self._depth -= 1
                if is_optimizer or self._depth == 0:
                    mindspore.runtime.synchronize()  # a compiled part may still be running
                if is_optimizer:
                    self._n_optimizer -= 1
                    if self._n_optimizer == 0:
                        self._marks.add("optimizer", 0)
                self._marks.add("exit")
                if is_optimizer and self._n_optimizer == 0:
                    self._end_step(is_marked=True)

        return __call__

    def _timed_compile(self, original: Callable, name_of: Callable[[Any], str]) -> Callable:
        @wraps(original)
        def compile(owner: Any, *args: Any, **kwargs: Any) -> Any:
            name, started = name_of(owner), time.process_time()
            try:
                with marked_compile(name) if self._shows_phases else nullcontext():
                    return original(owner, *args, **kwargs)
            finally:
                time_us = round((time.process_time() - started) * 1e6)
                if time_us >= _LEAST_BUILD_US:
                    self._marks.add("build", name, time_us)

        return compile

    def _watched_jit(self, original: Callable) -> Callable:
        """A compiled function that holds an optimizer takes a step."""

        @wraps(original)
        def __call__(executor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(executor, *args, **kwargs)
            if self._depth == 0 and self._n_optimizer == 0 and _names_an_optimizer(executor.fn):
                self._end_step(is_marked=False)
            return result

        return __call__

    # -- backward and steps --------------------------------------------------------------------------------

    def _watched_backward(self, original: Callable) -> Callable:
        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._n_backward += 1
            if self._n_backward == 1:
                self._marks.add("backward", 1)
            try:
                result = original(*args, **kwargs)
            finally:
                mindspore.runtime.synchronize()
                self._n_backward -= 1
                if self._n_backward == 0:
                    self._marks.add("backward", 0)
            self._name_gradients(args, result)
            return result

        return backward

    def _end_step(self, is_marked: bool) -> None:
        """The mark of a compiled step comes when the graph was started; its operators show where it ends."""
        self._n_steps += 1
        if self._n_steps <= 2:
            self.name_tensors()  # weights and optimizer state exist after the first step
            self._marks.add("names", self.names())
        self._marks.add("step" if is_marked else "graph_step")
        self._marks.flush()
        self._on_step(self._n_steps)

    # -- names ---------------------------------------------------------------------------------------------

    def name_tensors(self) -> None:
        """Mark which memory belongs to which parameter."""
        self._learn_names()
        states, names = self.optimizer_states, self.parameter_names
        for parameter in live_objects(Parameter):
            state_of = states.get(parameter.name)
            role = "weight" if state_of is None else "optimizer"
            self._name(parameter, role, names.get(state_of or parameter.name, parameter.name))

    def names(self) -> dict[str, Any]:
        """The fields of ModelNames, as JSON."""
        return {
            "optimizer_states": self.optimizer_states,
            "parameter_names": self.parameter_names,
            "prefixes": sorted(self.paths.prefixes, key=len, reverse=True),
        }

    def _learn_names(self) -> None:
        """Keep the names: when the script has ended, its optimizer is gone, but the optimizer's state may not be."""
        self.parameter_names |= self.paths.parameter_names()
        found = self.optimizer_states
        for optimizer in filter(is_optimizer_cell, self.paths.cells()):
            trained = [parameter.name for parameter in optimizer.parameters]
            found |= {
                parameter.name: ""
                for parameter in optimizer.get_parameters()
                if parameter.name not in trained
            }
            for states in vars(optimizer).values():  # one for each weight, in the weights' order
                if isinstance(states, (list, tuple)) and len(states) == len(trained):
                    pairs = zip(states, trained, strict=True)
                    found |= {
                        s.name: name
                        for s, name in pairs
                        if isinstance(s, Parameter) and s.name not in trained
                    }

    def _name_gradients(self, args: tuple[Any, ...], result: Any) -> None:
        weights = next((arg for arg in args if isinstance(arg, (list, tuple)) and arg and
                        all(isinstance(item, Parameter) for item in arg)), ())  # fmt: skip
        gradients = _tensors_of(result)
        if len(gradients) < len(weights):
            return
        if not weights or any(weight.name not in self.parameter_names for weight in weights):
            self._learn_names()
        names = self.parameter_names
        for weight, gradient in zip(weights, gradients[len(gradients) - len(weights) :], strict=True):
            self._name(gradient, "gradient", names.get(weight.name, weight.name))

    def _name(self, tensor: Any, role: str, name: str) -> None:
        try:
            address = tensor.data_ptr() if tensor.device.startswith("Ascend") else 0
        except Exception:  # a tensor without memory, whatever its kind: there is nothing to mark
            return
        if address and (address, name) not in self._named:
            if role != "gradient":
                self._named.add((address, name))
            self._marks.add("tensor", address, role, name)


def _trains(cell: Any) -> bool:
    """Whether one call of a compiled cell is a step of training.

    A cell may also wrap a function that trains, as `AutoParallel(train_step)` does.
    """
    if isinstance(cell, nn.TrainOneStepCell):
        return True
    if any(is_optimizer_cell(part) for _, part in cell.cells_and_names()):
        return True
    functions = (value for value in vars(cell).values() if isinstance(value, FunctionType))
    return any(_names_an_optimizer(function) for function in functions)


def _names_an_optimizer(function: Any) -> bool:
    """Whether a function's own code, or that of the cell it is a method of, calls an optimizer."""
    holder = getattr(function, "__self__", None)
    if isinstance(holder, nn.Cell):
        return _trains(holder)
    code = getattr(function, "__code__", None)
    if code is None or str(getattr(function, "__module__", "")).startswith("mindspore."):
        return False
    known = inspect.getclosurevars(function)
    found = [*known.nonlocals.values(), *known.globals.values()]
    return any(isinstance(thing, nn.Cell) and _trains(thing) for thing in found)


def _tensors_of(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return []
