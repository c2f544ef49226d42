"""Costs for planning: the roofline's where nothing was measured."""

from __future__ import annotations

import pytest

from tests.timing.signatures import spec
from windtunnel.devices import find_device
from windtunnel.errors import CorruptFile
from windtunnel.events.model import Signature
from windtunnel.timing.cost import CostTable, cost_key, op_seconds, seconds_of
from windtunnel.timing.roofline.model import Roofline

A100 = find_device("a100-80gb")


def _square(name: str = "aten.mm.default") -> Signature:
    n = 8192
    return Signature(name, (spec(n, n), spec(n, n)), (spec(n, n),), "_,_")


def test_the_roofline_answers_where_nothing_was_measured():
    assert op_seconds(_square(), A100) == Roofline(A100).cost(_square()).seconds > 0


def test_a_measured_time_is_used_where_there_is_one():
    known, other = _square(), _square("aten.bmm.default")
    table = CostTable({cost_key("aten.mm.default", [(8192, 8192), (8192, 8192)]): 0.25})
    assert seconds_of([known, other], A100, table) == [0.25, op_seconds(other, A100)]


def test_a_table_survives_its_file():
    table = CostTable(
        {cost_key("aten.mm.default", [(2, 3), (3, 4)]): 1.5e-5, cost_key("aten.sum.default", [()]): 0.0}
    )
    again = CostTable.from_json(table.to_json())
    assert len(again) == 2
    assert again.find("aten.mm 2x3 3x4") == 1.5e-5


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 9, "seconds": {}}', '{"version": 1, "seconds": {"a": -1}}',
             '{"version": 1, "seconds": {"a": "b"}}', '{"version": 1, "seconds": {"a": NaN}}']
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(text):
    with pytest.raises(CorruptFile, match="not a table of operator costs"):
        CostTable.from_json(text)
