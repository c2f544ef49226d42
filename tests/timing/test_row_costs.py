"""What every row of a recording costs."""

from __future__ import annotations

import pytest

from tests.timing.fixed_costs import FixedCosts, recording_of
from tests.timing.signatures import spec
from windtunnel.events.model import (
    Alloc,
    Collective,
    Group,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Signature,
    Step,
    Sync,
)
from windtunnel.timing.operators.op_cost import Basis, HostCosts, OpCost
from windtunnel.timing.row_costs import operator_rows, row_costs

X = spec(1024, dtype="float32")
RELU = Signature("aten.relu.default", (X,), (X,), "")
MM = Signature("aten.mm.default", (spec(8, 8), spec(8, 8)), (spec(8, 8),), "")
VIEW = Signature("aten.view.default", (X,), (X,), "")
SUM = Signature("c10d.all_reduce", (X,), (), "")
COSTS = {
    RELU.name: OpCost(1.0, 0.1),
    MM.name: OpCost(5.0, 0.2, flops=1024),
    VIEW.name: OpCost(0.0, 0.05, Basis.FREE),
}


def test_each_row_has_the_cost_of_its_operator():
    recording = recording_of([Op(0, 0), Alloc(1, 8, op=1), Op(1, 1), Op(2, 0), Step(1)], [RELU, MM])
    costs = row_costs(recording, FixedCosts(COSTS))
    assert costs.seconds.tolist() == [1, 0, 5, 1, 0]
    assert costs.host_seconds.tolist() == [0.1, 0, 0.2, 0.1, 0]
    assert costs.costs == (COSTS[RELU.name], COSTS[MM.name])
    assert not costs.is_fused.any()


def test_backward_asks_for_the_cost_in_backward():
    recording = recording_of(
        [Op(0, 0), Op(1, 0, phase=Phase.BACKWARD), Op(2, 0, phase=Phase.OPTIMIZER)], [RELU]
    )
    assert row_costs(recording, FixedCosts(COSTS, backward_factor=3)).host_seconds.tolist() == pytest.approx(
        [0.1, 0.3, 0.1]
    )


def test_a_tensor_of_the_host_costs_the_device_nothing():
    source = FixedCosts(COSTS)
    recording = recording_of([Op(0, 0, device=-1), Op(1, 1)], [RELU, MM])
    assert operator_rows(recording).tolist() == [1]
    assert row_costs(recording, source).seconds.tolist() == [0, 5]
    assert {name for name, _ in source.asked} == {MM.name}  # nobody need know what the other costs


def test_a_view_is_work_of_the_host_alone():
    costs = row_costs(recording_of([Op(0, 0)], [VIEW]), FixedCosts(COSTS))
    assert (costs.seconds.tolist(), costs.host_seconds.tolist()) == ([0], [0.05])


def test_calls_of_modules_and_collectives_and_reads_take_the_program_time():
    events = [
        Group(0, (0, 1)), ModuleEnter(0), Op(0, 0), ModuleExit(0), Collective(0, 1, 0), Sync(is_read=True), Sync(),
    ]  # fmt: skip
    host = HostCosts(module_seconds=7, collective_seconds=11, sync_seconds=13)
    costs = row_costs(recording_of(events, [RELU, SUM], ["net"]), FixedCosts(COSTS, host))
    assert costs.host_seconds.tolist() == [0, 7, 0.1, 0, 11, 13, 13]
    assert costs.seconds.tolist() == [0, 0, 1, 0, 0, 0, 0]


def test_what_a_compiler_fuses_costs_one_kernel_at_its_first_row():
    events = [Op(i, s, (i,), (i + 1,), module=0) for i, s in enumerate([0, 0, 1, 0, 0, 0])]
    recording = recording_of(events, [RELU, MM], ["net"], compiled={"functions": [], "modules": ["net"]})
    costs = row_costs(recording, FixedCosts(COSTS, fused=OpCost(0.25, 0.02)))
    assert costs.seconds.tolist() == [0.25, 0, 5, 0.25, 0, 0]
    assert costs.host_seconds.tolist() == [0.02, 0, 0.2, 0.02, 0, 0]
    assert costs.is_fused.tolist() == [True, True, False, True, True, True]


def test_where_kernels_of_a_compiler_are_not_known_operators_stay_as_they_are():
    events = [Op(i, 0, (i,), (i + 1,), module=0) for i in range(2)]
    recording = recording_of(events, [RELU], ["net"], compiled={"functions": [], "modules": ["net"]})
    costs = row_costs(recording, FixedCosts(COSTS))
    assert costs.seconds.tolist() == [1, 1]
    assert not costs.is_fused.any()


def test_a_recording_without_rows_costs_nothing():
    costs = row_costs(recording_of([], []), FixedCosts({}))
    assert (len(costs.seconds), costs.costs) == (0, ())
