"""A PyTorch transformer, run here, beside what its MindSpore twin left: equal if it is equal, and where it is not.

The reverse, MindSpore run here beside what PyTorch left, is in tests/mindspore/test_twins.py.
"""

from __future__ import annotations

import pytest

from tests.probe.twins.golden import GOLDEN
from tests.probe.twins.judged import judged
from tests.probe.twins.torch_twin import dump
from tests.probe.twins.weights import PLANTS

MODULES = 0.95  # at least so many have a partner


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins")
    return {plant: dump(folder / (plant or "honest"), plant) for plant in ("", *PLANTS)}


@pytest.mark.parametrize("golden", ["mindspore", "msprobe"])
def test_equal_twins_are_equal(dumps, golden):
    findings, share = judged(dumps[""], GOLDEN / golden)
    assert findings.is_equal
    assert findings.n_compared >= 148  # every value of every module
    assert findings.max_rounding < 1e-5
    assert share >= MODULES


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_mistake_in_pytorch_is_found(dumps, plant):
    for golden, expected in zip(("mindspore", "msprobe"), PLANTS[plant], strict=True):
        findings, share = judged(dumps[plant], GOLDEN / golden)
        assert findings.first.item == expected
        assert share >= MODULES
