"""However low the threshold, the peak is not above plain training's, and who set it learns which one can be held."""

from __future__ import annotations

import re
import warnings
from functools import cache

import pytest
import torch

from benchmarks.dtr.floor import Trained, threshold_for, train
from benchmarks.dtr.small_models import SMALL_MODELS
from tests.remat.pytorch.training import CPU, CostByBytes, live_bytes
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.runtime import Runtime

STEPS = 3
THRESHOLDS = (0.5, 0.1, None)  # of the activations; None: one byte

pytestmark = pytest.mark.filterwarnings("ignore:windtunnel.dtr. the threshold")  # low ones are what is tested


@cache
def _plain(name: str) -> Trained:
    train(name, n_steps=1)  # what torch makes once is there from here on
    return train(name, n_steps=STEPS)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_no_threshold_makes_the_peak_higher_than_plain_training_s(name):
    plain = _plain(name)
    for share in THRESHOLDS:
        found = train(name, threshold_for(plain, share), STEPS, CostByBytes())
        assert found.bits == plain.bits, share
        assert found.seen_bytes <= found.peak <= plain.peak, share
        assert found.n_computed > 0, share


# -- messages ----------------------------------------------------------------------------------------------------


def _told(model) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model().backward()
            model.zero_grad()
    return [str(each.message) for each in caught if "below what cannot be evicted" in str(each.message)]


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_threshold_that_is_named_can_be_held(name):
    torch.manual_seed(0)
    model = SMALL_MODELS[name]()
    start = live_bytes()
    live = Runtime(Settings(threshold=1, minimum_size=4096), CPU, CostByBytes())
    live.start()
    try:
        for threshold in (1, start // 2):
            live.settings.threshold = threshold
            (sentence,) = _told(model)  # once for each threshold
            needed = int(re.search(r"set dtr.eviction_threshold to (\d+) or more", sentence).group(1))
            assert needed > start
        live.settings.threshold = needed
        assert _told(model) == []
        live.settings.threshold = 1
        assert _told(model) == []  # that one was told before
    finally:
        live.stop()
