"""What every test of this folder runs under: one thread, and a collector that looks only at what is new."""

from __future__ import annotations

import gc
import sys

import pytest


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums are added in another order when MKL's threads are busy elsewhere: not the same bits twice."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def quick_collector():
    """Tests collect garbage before they measure: that takes long if it looks at all of torch each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
