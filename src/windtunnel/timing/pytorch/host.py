"""The cost of the host thread besides the kernels, from small trainings with almost no kernel time.

    a chain of tiny operators, with and without modules around them ──> time of forward and backward
                                                  ──> less its kernels' own ──> seconds for each operator and module

Also here: what calling an operator from Python adds to its time, and how fast memory is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from windtunnel.timing.measured.costs import HostSeconds
from windtunnel.timing.pytorch.rerun import Clock, below_autograd

__all__ = ["call_overhead", "copy_bytes_per_s", "measure_host"]

Tensor = torch.Tensor
_LENGTH = 24  # operators in a chain
_REPEATS = 15
_COPIED = 1 << 26  # bytes: more than a core's own caches


class _Negate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(8).neg()


def measure_host(device: torch.device, clock: Clock = time.perf_counter) -> HostSeconds:
    """Seconds of the host for one operator in forward and in backward, and for the call of a module.

    There is a view beside every operator, which no recording shows.
    """
    modules = nn.Sequential(*(_Negate() for _ in range(_LENGTH)))
    x = torch.ones(8, device=device, requires_grad=True)

    def plain(x: Tensor) -> Tensor:
        for _ in range(_LENGTH):
            x = x.view(8).neg()
        return x

    kernel = _kernel_seconds(x, clock) if device.type == "cpu" else 0.0  # elsewhere the host does not wait
    forward, backward = _phases(plain, x, clock)
    with_modules, _ = _phases(modules, x, clock)
    return HostSeconds(
        forward=max(0.0, forward / _LENGTH - kernel),
        backward=max(0.0, backward / _LENGTH - kernel),
        module=max(0.0, (with_modules - forward) / _LENGTH),
    )


def call_overhead(device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Of calling an operator from Python and looking at the clock, without any work in it."""
    if device.type != "cpu":
        return 0.0
    operator, x = torch.ops.aten.is_same_size.default._op, torch.ones(8)
    found = []
    with below_autograd():
        for _ in range(10 * _REPEATS):
            start = clock()
            operator(x, x)
            found.append(clock() - start)
    return _typical(found)


def copy_bytes_per_s(device: torch.device) -> float:
    """Read and written, by a copy of a large tensor."""
    source = torch.ones(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = []
    for _ in range(5):
        _wait(device)
        start = time.perf_counter()
        target.copy_(source)
        _wait(device)
        found.append(time.perf_counter() - start)
    return 2 * _COPIED / median(found)


def _phases(chain: Callable[[Tensor], Tensor], x: Tensor, clock: Clock) -> tuple[float, float]:
    forward, backward = [], []
    gradient = torch.ones_like(x)
    for _ in range(_REPEATS):
        start = clock()
        y = chain(x)
        middle = clock()
        y.backward(gradient)
        end = clock()
        forward.append(middle - start)
        backward.append(end - middle)
        x.grad = None
    return _typical(forward), _typical(backward)


def _kernel_seconds(x: Tensor, clock: Clock) -> float:
    """Of the operator in the chain, as the operators of a program are timed."""
    operator, found = torch.ops.aten.neg.default._op, []
    with below_autograd():
        for _ in range(10 * _REPEATS):
            start = clock()
            operator(x)
            found.append(clock() - start)
    return max(0.0, _typical(found) - call_overhead(x.device, clock))


def _typical(values: list[float]) -> float:
    """The first quartile: an interruption only adds."""
    return sorted(values)[len(values) // 4]


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
