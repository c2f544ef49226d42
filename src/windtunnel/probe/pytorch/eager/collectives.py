"""Collectives and point-to-point calls of torch.distributed: their inputs, and their outputs once these have arrived.

    dist.all_reduce(t)                ──> inputs ──> the call ──> "Distributed.all_reduce.0.forward"
    dist.all_reduce(t, async_op=True) ──> inputs ──> the call ──> Work ──> Work.wait() by the program ──> the entry
                                        nobody waits ──> stop: done? ──> the entry     step: not done ──> without output

Buffers that are only received into are null among the inputs; the output is the list of arguments afterwards. What a
recorded call calls to do its work is not recorded.
"""

from __future__ import annotations

import inspect
import json
import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.probe.collect.code_swap import CodeSwaps, Recorder
from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.elements import Pieces

__all__ = ["Collectives", "WorkWatch"]

# The arguments a call only receives into, by position.
_RECEIVED: dict[str, tuple[int, ...]] = {
    "send": (),
    "recv": (0,),
    "isend": (),
    "irecv": (0,),
    "batch_isend_irecv": (),
    "broadcast": (),
    "all_reduce": (),
    "all_reduce_coalesced": (),
    "reduce": (),
    "all_gather": (0,),
    "all_gather_coalesced": (0,),
    "all_gather_into_tensor": (0,),
    "all_gather_single": (0,),
    "_all_gather_base": (0,),
    "gather": (1,),
    "scatter": (0,),
    "reduce_scatter": (0,),
    "reduce_scatter_tensor": (0,),
    "reduce_scatter_single": (0,),
    "_reduce_scatter_base": (0,),
    "all_to_all": (0,),
    "all_to_all_single": (0,),
}


def _all(*arguments: Any) -> tuple:
    return arguments


def _all_but_first(_: Any, *arguments: Any) -> tuple:
    return (None, *arguments)


# What was sent is no output, and the program may write into it once it has waited.
_SENT_ONLY: dict[str, Callable[..., tuple]] = {"isend": _all_but_first}


class Collectives:
    """Records the functions of torch.distributed while collecting; the function objects are not replaced."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self._swaps = CodeSwaps()
        self._recorders: list[tuple[Callable, Recorder]] | None = None
        self._waits = WorkWatch(self._safely)

    def install(self, model: Any = None) -> None:
        if self._recorders is None:
            self._recorders = self._make_recorders()
        for function, recorder in self._recorders:
            self._swaps.swap(function, recorder)

    def remove(self) -> None:
        self._swaps.restore()
        self._waits.finish_completed()

    def end_step(self) -> None:
        """Write calls that were not waited for, as far as they are known."""
        self._waits.finish_all()

    def _make_recorders(self) -> list[tuple[Callable, Recorder]]:
        made: list[tuple[Callable, Recorder]] = []
        for api, received in _RECEIVED.items() if dist.is_available() else ():
            function = getattr(dist, api, None) or getattr(dist.distributed_c10d, api, None)
            if function is not None and self.collector.selection.wants_api("Distributed", api):
                names = list(inspect.signature(function).parameters)
                recorder = self._recorder(api, received, {names[index] for index in received})
                made.append((inspect.unwrap(function), recorder))
        return made

    def _recorder(self, api: str, received: tuple[int, ...], names: set[str]) -> Recorder:
        def record(original: Callable, args: tuple, kwargs: dict) -> Any:
            step = self.collector.step
            if step is None or self.scopes.is_quiet:
                return original(*args, **kwargs)
            sent = (
                tuple(None if index in received else value for index, value in enumerate(args)),
                {key: None if key in names else value for key, value in kwargs.items()},
            )
            call = self._safely(lambda: self._open(step, api, *sent))
            self.scopes.is_quiet = True  # what it calls to do its work is not a call of the program
            try:
                result = original(*args, **kwargs)
            finally:
                self.scopes.is_quiet = False
                self.writer.elements.meter.forget()  # it writes into tensors without raising their version
            if call is not None:
                call.arguments = _SENT_ONLY.get(api, _all)(*args, *kwargs.values())
                works = [
                    work for work in (result if isinstance(result, list) else [result]) if work is not None
                ]
                if works and all(hasattr(work, "wait") for work in works):
                    self._safely(lambda: self._waits.add(works, call))
                else:
                    self._safely(lambda: call.write(True))
            return result

        return record

    def _open(self, step: StepOutput, api: str, args: tuple, kwargs: dict) -> _Collective | None:
        key = f"Distributed.{api}"
        name = f"{key}.{step.number(key)}.forward"
        parents = tuple(self.scopes.names())
        if not self.writer.has_forward or not self.collector.selection.wants(name, parents):
            return None
        call = _Collective(self.collector, self.writer, step, name, parents)
        call.take_inputs(args, kwargs)
        return call

    def _safely(self, work: Callable[[], Any]) -> Any:
        with torch._C.DisableTorchFunction():
            return self.collector.safely("a call of torch.distributed", work)


class _Collective:
    """One call, from its inputs to its entry."""

    def __init__(
        self, collector: Collector, writer: CallWriter, step: StepOutput, name: str, parents: tuple[str, ...]
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.step = step
        self.name = name
        self.parent = parents[-1] if parents else None
        self.store = step.store if collector.selection.wants_tensor(name) else None
        self.frames = collector.stacks.here() if writer.has_stacks else None
        self.arguments: tuple = ()
        self.inputs: Pieces = []

    def take_inputs(self, args: tuple, kwargs: dict) -> None:
        if not self.writer.has_input or self.writer.has_structure_only:
            return
        out = self.inputs
        out.append('"input_args": ')
        self._listed(out, args, f"{self.name}.input")
        out.append(', "input_kwargs": {')
        for index, (key, value) in enumerate(kwargs.items()):
            out.append(f"{', ' if index else ''}{json.dumps(key)}: ")
            self._element(out, value, f"{self.name}.kwargs.{key}")
        out.append("}")

    def write(self, has_arrived: bool) -> None:
        """Write the entry; without an output if what was sent has not arrived yet."""
        pieces: Pieces = ["{", *self.inputs]
        if has_arrived and self.writer.has_output and not self.writer.has_structure_only:
            pieces.append(', "output": ' if self.inputs else '"output": ')
            self.writer.elements.meter.forget()
            self._listed(pieces, self.arguments, f"{self.name}.output")
        pieces.append("}")
        self.arguments = ()
        self.collector.put(self.step, self.name, pieces, self.frames, self.parent, self.writer.has_parents)

    def _listed(self, out: Pieces, values: Any, stem: str) -> None:
        out.append("[")
        for index, value in enumerate(values):
            if index:
                out.append(", ")
            self._element(out, value, f"{stem}.{index}")
        out.append("]")

    def _element(self, out: Pieces, value: Any, stem: str) -> None:
        if isinstance(value, dist.P2POp):
            self._operation(out, value, stem)
        elif isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            out.append(json.dumps({"type": "torch.distributed.ReduceOp", "value": str(value)}))
        elif isinstance(value, list) and value and isinstance(value[0], dist.P2POp):
            self._listed(out, value, stem)
        else:
            self.writer.elements.encode(out, value, stem, self.store)

    def _operation(self, out: Pieces, value: Any, stem: str) -> None:
        """One of a batch of sends and receives."""
        is_unknown = value.op.__name__ == "irecv" and out is self.inputs
        text = {
            "op": value.op.__name__,
            "peer": value.peer,
            "tag": value.tag,
            "group_id": _group_id(value.group),
        }
        out.append('{"class_type": "torch.distributed.P2POp", "tensor": ')
        self.writer.elements.encode(out, None if is_unknown else value.tensor, stem, self.store)
        out.append(f", {json.dumps(text)[1:]}")


def _group_id(group: Any) -> str:
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    return f"{zlib.crc32(str(ranks).encode()):08x}"


class WorkWatch:
    """The asynchronous calls in flight; `Work.wait` is patched only while there are any."""

    def __init__(self, safely: Callable[[Callable[[], Any]], Any]) -> None:
        self._safely = safely
        self._lock = threading.RLock()
        self._pending: list[tuple[list[Any], _Collective]] = []  # works not waited for yet, call
        self._original: Any = None

    def add(self, works: list[Any], call: _Collective) -> None:
        with self._lock:
            self._pending.append((list(works), call))
            self._watch()

    def waited(self, work: Any) -> None:
        """Somebody has waited for this work."""
        with self._lock:
            for entry in self._pending:
                open_works, call = entry
                found = [index for index, other in enumerate(open_works) if other is work]
                if found:
                    del open_works[found[0]]
                    if not open_works:
                        self._pending.remove(entry)
                        self._safely(partial(call.write, True))
                    break
            self._unwatch_if_idle()

    def finish_completed(self) -> None:
        """Write the calls whose works are done, though nobody has waited for them."""
        with self._lock:
            for entry in list(self._pending):
                if all(_is_done(work) for work in entry[0]):
                    self._pending.remove(entry)
                    self._safely(partial(entry[1].write, True))
            self._unwatch_if_idle()

    def finish_all(self) -> None:
        self.finish_completed()
        with self._lock:
            pending, self._pending = self._pending, []
            for _, call in pending:
                self._safely(partial(call.write, False))
            self._unwatch_if_idle()

    def _watch(self) -> None:
        if self._original is not None:
            return
        original = self._original = vars(dist.Work)["wait"]
        waits = self

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            waits.waited(work)
            return result

        self._set_wait(wait)

    def _unwatch_if_idle(self) -> None:
        if not self._pending and self._original is not None:
            self._set_wait(self._original)
            self._original = None

    @staticmethod
    def _set_wait(wait: Callable) -> None:
        work: Any = dist.Work
        work.wait = wait


def _is_done(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except (AttributeError, RuntimeError):
        return False
