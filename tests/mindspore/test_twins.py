"""A MindSpore transformer, run here, beside what its PyTorch twin left: equal if it is equal, and where it is not.

The reverse, PyTorch run here beside what MindSpore left, is in tests/probe/compare/test_cross_framework_twins.py.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.probe.twins.golden import GOLDEN
from tests.probe.twins.judged import judged
from tests.probe.twins.mindspore_twin import CompiledBlock, dump
from tests.probe.twins.weights import PLANTS

MODULES = 0.95  # at least so many have a partner


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """From the name of a mistake to a dump, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("twins")
    return cache(lambda plant: dump(folder / (plant or "honest"), plant))


def test_equal_twins_are_equal(dumps):
    findings, share = judged(GOLDEN / "torch", dumps(""))
    assert findings.is_equal
    assert findings.n_compared >= 148  # every value of every module
    assert findings.max_rounding < 1e-5
    assert share >= MODULES


@pytest.mark.parametrize(
    "plant",
    ["eps", "gelu", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("residual", "transposed"))],
)
def test_a_mistake_in_mindspore_is_found(dumps, plant):
    findings, share = judged(GOLDEN / "torch", dumps(plant))
    assert findings.first.item == PLANTS[plant][0]
    assert share >= MODULES


def test_two_dumps_of_mindspore_are_compared(dumps, tmp_path):
    findings, share = judged(dumps(""), dump(tmp_path / "again"))
    assert findings.is_equal
    assert findings.n_equal == findings.n_compared
    assert share == 1
    findings, _ = judged(dumps(""), dumps("gelu"))
    assert findings.first.item.startswith("Functional.gelu.1.forward.")


def test_a_compiled_block_is_compared_with_an_eager_one(tmp_path):
    findings, share = judged(
        GOLDEN / "torch", dump(tmp_path / "dump", "eps", level="L0", block=CompiledBlock)
    )
    assert findings.first.item == PLANTS["eps"][1]
    assert findings.first.area == "graph"
    assert share >= MODULES
    assert "graph and pynative of B were merged" in findings.notes
