"""What the program's own thread costs beside the kernels: small trainings whose kernels do next to nothing.

    a chain of tiny operators, with and without modules around them ──> time of forward and backward
                                                  ──> less its kernels' own ──> seconds for each operator and module

Also here: what calling an operator from Python adds to its time, and how fast memory is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from windtunnel.timing.measured import HostSeconds
from windtunnel.timing.torch_measure_replay import Clock, below_autograd

__all__ = ["call_overhead", "copy_bytes_per_s", "measure_host"]

Tensor = torch.Tensor
_LENGTH = 24  # operators in a chain
_REPEATS = 15
_COPIED = 1 << 26  # bytes: more than a core's own caches


class _Scale(nn.Module):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x.view(8) * self.weight


def measure_host(device: torch.device, clock: Clock = time.perf_counter) -> HostSeconds:
    """Seconds of the host for one operator in forward and in backward, and for the call of a module."""
    modules = nn.Sequential(*(_Scale(device) for _ in range(_LENGTH)))
    weights = [each.weight for each in modules]
    x = torch.ones(8, device=device)

    def plain(x: Tensor) -> Tensor:
        for weight in weights:
            x = x.view(8) * weight
        return x

    kernel = (
        _kernel_seconds(x, clock) if device.type == "cpu" else 0.0
    )  # elsewhere the host does not wait for it
    forward, backward = _phases(plain, x, weights, clock)
    with_modules, _ = _phases(modules, x, weights, clock)
    n_backward = 2 * _LENGTH - 1  # a product has two factors; the first one of all needs no gradient
    return HostSeconds(
        forward=max(0.0, forward / _LENGTH - kernel),
        backward=max(0.0, backward / n_backward - kernel),
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
    return median(found)


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


def _phases(
    chain: Callable[[Tensor], Tensor], x: Tensor, weights: list[Any], clock: Clock
) -> tuple[float, float]:
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
        for weight in weights:
            weight.grad = None
    return median(forward), median(backward)


def _kernel_seconds(x: Tensor, clock: Clock) -> float:
    """Of the product in the chain, as the operators of a program are timed."""
    operator, found = torch.ops.aten.mul.Tensor._op, []
    with below_autograd():
        for _ in range(10 * _REPEATS):
            start = clock()
            operator(x, x)
            found.append(clock() - start)
    return max(0.0, median(found) - call_overhead(x.device, clock))


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
