"""Every rank ends in another way, after one step of training."""

import ctypes
import os
import signal
import sys

import torch

weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()


def die_of_nothing() -> None:
    ctypes.string_at(0)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def need_a_package() -> None:
    import no_such_package  # noqa: F401


ENDINGS = [
    lambda: None,
    lambda: sys.exit(0),
    lambda: sys.exit(3),
    lambda: sys.exit("no more data"),
    lambda: os._exit(5),
    raise_interrupt,
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    die_of_nothing,
    need_a_package,
    lambda: os._exit(0),
]
print("rank", os.environ["RANK"], "begins to end", flush=True)
ENDINGS[int(os.environ["RANK"])]()
