"""Run the acts of a request for real, and note how long each operator took.

    acts ──> tensors on storages with the lifetimes of the program ──> operator, between two clock readings ──> samples

A sample during which the processor was taken away counts only if there is no other of that operator. What an
operator allocates is given back where the program gives it back; the time of that counts for the operator
that made it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from windtunnel.events.model import TensorSpec
from windtunnel.timing.measured.steps import ActKind, Request
from windtunnel.timing.pytorch.calls import Call, CannotRebuild, call_of, dtype_of
from windtunnel.timing.pytorch.storages import Shape, Storages, span_bytes

__all__ = ["Clock", "Replay", "below_autograd"]

Tensor = torch.Tensor
# Runs an operator: its result, and the seconds it took on the device.
Timer = Callable[[Any, list[Any], dict[str, Any]], tuple[Any, float]]
Clock = Callable[[], float]
_Samples = dict[int, dict[int, list[float]]]  # signature -> act -> seconds
_AWAY_S = 3e-3  # for how long the processor goes to another program, once it does
_NOTICEABLE = 0.1
_RUN, _MAKE, _DROP = int(ActKind.RUN), int(ActKind.MAKE), int(ActKind.DROP)


class Replay:
    def __init__(
        self,
        request: Request,
        storages: Storages,
        device: torch.device,
        clock: Clock,
        on_try: Callable[[int], None] = lambda signature: None,
    ) -> None:
        self._quiet: _Samples = defaultdict(dict)
        self._disturbed: _Samples = defaultdict(dict)  # other programs ran meanwhile
        self.beside: dict[int, float] = defaultdict(float)  # making and giving back memory, over all passes
        self.reasons: dict[int, str] = {}
        self._request = request
        self._storages = storages
        self._clock = clock
        self._timer = _timer_for(device, clock)
        self._on_try = on_try
        self._calls = self._rebuild(device)
        self._inputs, self._outputs = self._shapes()
        self._maker: dict[int, int] = {}  # storage -> signature
        self._made_s: dict[int, float] = {}  # storage -> time to allocate it
        self.n_runs: dict[int, int] = defaultdict(int)  # signature -> timed runs

    @property
    def n_rebuilt(self) -> int:
        return sum(call is not None for call in self._calls)

    def samples_of(self, signature: int) -> tuple[dict[int, list[float]], bool]:
        """Seconds by act, and whether they are undisturbed; disturbed ones only where there are no others."""
        quiet = self._quiet.get(signature)
        return (quiet, True) if quiet else (self._disturbed.get(signature, {}), False)

    @property
    def disturbed_share(self) -> float:
        """Of all timed runs."""
        n_disturbed = sum(len(each) for acts in self._disturbed.values() for each in acts.values())
        return n_disturbed / max(1, sum(self.n_runs.values()))

    def warm_up(self, deadline: float, run: Callable[..., Any]) -> None:
        """All acts once, the first of each operator by `run(signature, operator, args, kwargs)`.

        What an operator does only the first time (compile, tune, start threads) is not timed, and the allocator
        has by then been asked for all that a step asks for.
        """
        seen: set[int] = set()
        for at, act in enumerate(self._request.acts):
            if act[0] != _RUN:
                self._housekeep(act)
            elif self._calls[act[1]] is not None:
                is_first = act[1] not in seen
                if is_first:
                    seen.add(act[1])
                    self._on_try(act[1])
                self._run(at, act, partial(_untimed, run, act[1]) if is_first else _unwatched)
            if self._clock() > deadline:
                return

    def timed_pass(self, deadline: float) -> bool:
        """All acts in order; False if the time was up before the end."""
        for at, act in enumerate(self._request.acts):
            if act[0] == _RUN:
                if self._calls[act[1]] is not None:
                    self._run(at, act, self._timer)
            else:
                self._housekeep(act)
            if self._clock() > deadline:
                self._storages.clear()
                return False
        return True

    def _rebuild(self, device: torch.device) -> list[Call | None]:
        calls: list[Call | None] = []
        for i, signature in enumerate(self._request.signatures):
            try:
                calls.append(call_of(signature, device))
            except CannotRebuild as error:
                self.reasons[i] = str(error)
                calls.append(None)
        return calls

    def _shapes(self) -> tuple[list[tuple[Shape, ...]], list[tuple[Shape, ...]]]:
        """Of the inputs and results of every signature; none for those that cannot be run."""
        known: dict[TensorSpec, Shape] = {}

        def shape(spec: TensorSpec) -> Shape:
            if spec not in known:
                dtype = dtype_of(spec.dtype)
                known[spec] = Shape(len(known), spec, dtype, span_bytes(spec, dtype))
            return known[spec]

        inputs: list[tuple[Shape, ...]] = []
        outputs: list[tuple[Shape, ...]] = []
        for signature, call in zip(self._request.signatures, self._calls, strict=True):
            inputs.append(tuple(map(shape, signature.inputs)) if call is not None else ())
            outputs.append(tuple(map(shape, signature.outputs)) if call is not None else ())
        return inputs, outputs

    def _run(self, at: int, act: list[Any], timer: Timer) -> None:
        _, number, inputs, outputs, resized = act
        call = self._calls[number]
        assert call is not None
        try:
            tensors = self._tensors(number, inputs)
            args, kwargs = call.fill(tensors)
            before = _switches()
            result, seconds = timer(call.operator, args, kwargs)
        except Exception as error:  # whatever a kernel raises for arguments it cannot use
            self.reasons[number] = f"it failed: {str(error).splitlines()[0][:160] if str(error) else error!r}"
            self._calls[number] = None
            return
        if timer is self._timer:
            n_switches = _switches() - before
            is_disturbed = n_switches * _AWAY_S > _NOTICEABLE * seconds
            samples = self._disturbed if is_disturbed else self._quiet
            samples[number].setdefault(at, []).append(seconds)
            self.n_runs[number] += 1
        if outputs or resized:
            self._keep(call, number, result, tensors, kwargs, outputs, resized)

    def _tensors(self, number: int, inputs: list[int]) -> list[Tensor]:
        shapes = self._inputs[number]
        if len(inputs) != len(shapes):  # some live on the host: their numbers are not in the recording
            inputs = [-1 - shape.number for shape in shapes]
        if self._made_s:
            for storage in inputs:
                if storage in self._made_s:  # allocated by the program for this operator
                    self.beside[number] += self._made_s.pop(storage)
                    self._maker[storage] = number
        return list(map(self._storages.tensor, inputs, shapes))

    def _keep(
        self,
        call: Call,
        number: int,
        result: Any,
        tensors: list[Tensor],
        kwargs: Any,
        outputs: Any,
        resized: Any,
    ) -> None:
        results = [
            r for r in (result if isinstance(result, (list, tuple)) else (result,)) if isinstance(r, Tensor)
        ]
        if len(results) != len(outputs):  # some are its arguments
            known = {t.untyped_storage()._cdata for t in tensors}
            results = [r for r in results if r.untyped_storage()._cdata not in known]
        self._storages.put(outputs, results, self._outputs[number])
        if resized and call.writes_out:
            self._storages.put(resized, [t for t in kwargs.values() if isinstance(t, Tensor)])
        for storage in (*outputs, *resized):
            self._maker[storage] = number

    def _housekeep(self, act: list[Any]) -> None:
        if act[0] == _DROP:
            storage = act[1]
            if self._storages.is_large(storage) and storage in self._maker:
                start = self._clock()
                self._storages.drop(storage)
                self.beside[self._maker.pop(storage)] += self._clock() - start
            else:
                self._storages.drop(storage)
        elif act[0] == _MAKE:
            start = self._clock()
            self._storages.make(act[1])
            if self._storages.is_large(act[1]):
                self._made_s[act[1]] = self._clock() - start
        elif act[0] != _RUN:
            self._storages.clear()
            self._maker.clear()
            self._made_s.clear()


def _switches() -> int:
    """How often a thread of this process had to make room for another program."""
    return getrusage(RUSAGE_SELF).ru_nivcsw


def _untimed(run: Any, signature: int, operator: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    return run(signature, operator, args, kwargs), 0.0


def _unwatched(operator: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    return operator(*args, **kwargs), 0.0


def _timer_for(device: torch.device, clock: Clock) -> Timer:
    return partial(_time_on_cpu, clock) if device.type == "cpu" else _time_on_stream


def _time_on_cpu(clock: Clock, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, float]:
    start = clock()
    result = operator(*args, **kwargs)
    return result, clock() - start


def _time_on_stream(operator: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = operator(*args, **kwargs)
    end.record()
    end.synchronize()
    return result, begin.elapsed_time(end) / 1e3


@contextmanager
def below_autograd() -> Iterator[None]:
    """Where kernels are called: nothing is recorded for backward."""
    guard = torch._C._AutoDispatchBelowAutograd()
    try:
        yield
    finally:
        del guard
