"""Level L1: every API that the program calls, recorded by thin functions that replace MindSpore's own while collecting.

    ops.relu(x) ──> stand-in ──> name, selection ──> inputs ──> ops.relu itself ──> outputs, stack, nodes hooked

MindSpore has no mode that sees its Python functions, so they are replaced, in their modules and wherever the program
has imported them by name, and restored at `stop`. What an API calls inside is not recorded: one entry per call of the
user. Code that MindSpore compiles must not see stand-ins, so they are removed while it compiles.

    distributed.all_gather_into_tensor(output, input) ──> inputs (null, input) ──> the call, waited for ──> (output, input)
    comm_func.all_reduce(x) ──> inputs (x) ──> the call, waited for ──> what it returns
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.mindspore.pynative.api_names import api_places
from windtunnel.probe.mindspore.pynative.call_writer import CallWriter, OpenCall
from windtunnel.probe.mindspore.pynative.elements import tensors_in
from windtunnel.probe.mindspore.pynative.reentry import Quiet

__all__ = ["ApiStandIns", "recorded"]

_MISSING = object()


class ApiStandIns:
    """Records the APIs called while it is installed."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        quiet: Quiet,
        registered: Callable[[], Set[tuple[int, str]]] = frozenset,
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.quiet = quiet
        self.is_on = False
        self._registered = registered  # places with a name that the user has given, which is used instead
        self._left_out: Set[tuple[int, str]] = frozenset()
        self._places: list[tuple[Any, str, Any, Callable]] | None = (
            None  # where, name, what stood there, stand-in
        )
        self._borrowed: list[
            tuple[dict, str, Any, Callable]
        ] = []  # the same for names in the program's modules

    def install(self, model: Any = None) -> None:
        if self.is_on:
            return
        if self._places is None or self._left_out != self._registered():
            self._left_out = frozenset(self._registered())
            self._places = self._find()
        for owner, name, _, stand_in in self._places:
            setattr(owner, name, stand_in)
        self._borrow()
        self.is_on = True

    def remove(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        for owner, name, original, stand_in in self._places or ():
            if vars(owner).get(name) is not stand_in:
                continue  # somebody else has put something there since
            if original is _MISSING:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        for space, name, original, stand_in in self._borrowed:
            if space.get(name) is stand_in:
                space[name] = original
        self._borrowed = []

    def end_step(self) -> None:
        """Nothing is left after stop."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within it MindSpore's own functions stand where they belong: for what reads the program's code."""
        was_on = self.is_on
        self.remove()
        try:
            yield
        finally:
            if was_on:
                self.install()

    def _find(self) -> list[tuple[Any, str, Any, Callable]]:
        found = []
        for owner, name, prefix in api_places():
            if not self.collector.selection.wants_api(prefix, name) or (id(owner), name) in self._left_out:
                continue
            own = vars(owner).get(name, _MISSING)
            if isinstance(own, (staticmethod, classmethod)):
                continue  # they make tensors of files and buffers
            original = getattr(owner, name)
            found.append((owner, name, own, recorded(self, original, f"{prefix}.{name}")))
        return found

    def _borrow(self) -> None:
        """`from mindspore.ops import relu` in the program's own modules: they have the function, not its place."""
        stand_ins: dict[int, Callable] = {}
        for _, _, original, made in self._places or ():
            if _is_function(original):
                stand_ins.setdefault(id(original), made)  # of two names of one function the first
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in _NOT_THE_PROGRAM or not isinstance(module, ModuleType):
                continue
            space = vars(module)
            for key, value in list(space.items()):
                stand_in = stand_ins.get(id(value))
                if stand_in is not None and _is_function(value):
                    self._borrowed.append((space, key, value, stand_in))
                    space[key] = stand_in

    def open(self, key: str, args: tuple, kwargs: dict) -> OpenCall | None:
        """Begin to record a call; None if it is not wanted."""
        step = self.collector.step
        if step is None:
            return None
        call = f"{key}.{step.number(key)}."
        return self.writer.open(step, f"{call}forward", f"{call}backward", self.scopes.names(), args, kwargs)

    def record(
        self,
        key: str,
        run: Callable[[], Any],
        args: tuple,
        kwargs: dict,
        communication: Communication | None = None,
    ) -> Any:
        """Run a call and record it as `key`; what it calls inside is not recorded."""
        self.quiet.depth += 1
        try:
            call = None
            try:
                given = communication.given(args, kwargs) if communication else (args, kwargs)
                call = self.open(key, *given)
            except Exception as error:
                self.collector.guard(f"the inputs of {key}", error)
            result = run()
            if call is not None:
                try:
                    found = communication.arrived(args, kwargs, result) if communication else result
                    self.writer.close(call, found)
                except Exception as error:
                    self.collector.guard(f"the outputs of {key}", error)
            return result
        finally:
            self.quiet.depth -= 1


def recorded(owner: ApiStandIns, original: Callable, key: str) -> Callable:
    """A function that does what `original` does and has `owner` record it as `key`."""
    quiet, scopes = owner.quiet, owner.scopes
    communication = Communication.of(original, key)

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if quiet.depth or scopes.is_quiet:
            return original(*args, **kwargs)
        run = functools.partial(original, *args, **kwargs)
        return owner.record(key, run, args, kwargs, communication)

    return stand_in


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


_NOT_THE_PROGRAM = frozenset(("mindspore", "windtunnel", "numpy", *sys.stdlib_module_names)) - {"__main__"}


_PREFIXES = ("Distributed.", "MintDistributed.")
# The argument that is only received into: its position and what it is called then.
_RECEIVED = {
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
    "scatter": (0, "tensor"),
    "scatter_tensor": (0, "output_tensor"),
    "gather": (1, "gather_list"),
    "gather_into_tensor": (0, "output_tensor"),
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_into_tensor_uneven": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_to_all_single": (0, "output"),
    "all_to_all_v_c": (0, "output"),
    "reduce_scatter": (0, "output"),
    "reduce_scatter_tensor": (0, "output"),
    "reduce_scatter_tensor_uneven": (0, "output"),
}


class Communication:
    """One function that communicates."""

    def __init__(self, function: Callable, name: str) -> None:
        position, parameter = _RECEIVED.get(name, (0, ""))
        names = list(inspect.signature(function).parameters)
        # Of two functions of one name one returns what has arrived, the other one is given the memory for it.
        has_memory = names[position : position + 1] == [parameter]
        self._position, self._parameter = (position, parameter) if has_memory else (len(names), "")

    @classmethod
    def of(cls, function: Callable, key: str) -> Communication | None:
        """By the name in a dump, "Prefix.name"; None of a function that does not communicate."""
        return cls(function, key.rpartition(".")[2]) if key.startswith(_PREFIXES) else None

    def given(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """What is sent. Memory that is only received into holds what was there by chance: null."""
        if self._position < len(args):
            args = (*args[: self._position], None, *args[self._position + 1 :])
        elif self._parameter in kwargs:
            kwargs = {**kwargs, self._parameter: None}
        return args, kwargs

    def arrived(self, args: tuple, kwargs: dict, result: Any) -> Any:
        """What has arrived, once it has: a call that goes on in the background is waited for."""
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if hasattr(item, "wait"):
                item.wait()
        has_tensors = any(True for _ in tensors_in((result,)))
        return result if has_tensors else (*args, *kwargs.values())
