"""Operators of real recordings are made again from their signatures, and run."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from tests.capture.pytorch.simulated import simulate
from tests.timing.signatures import spec
from windtunnel.events.model import Recording, Signature
from windtunnel.timing.measured.steps import ActKind, Request, request_of
from windtunnel.timing.pytorch import measure as torch_measure
from windtunnel.timing.pytorch import rerun as torch_measure_replay
from windtunnel.timing.pytorch.calls import CannotRebuild, call_of
from windtunnel.timing.pytorch.measure import main, measure, measure_request
from windtunnel.timing.pytorch.memory import peak_bytes
from windtunnel.timing.pytorch.storages import Shape, Storages, index_bound, span_bytes

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "cpu_programs"
CPU = torch.device("cpu")
TIME_S = 600.0  # to measure in: more than a busy machine needs, and what is not needed is not used


def f32(*shape, strides=None):
    return spec(*shape, dtype="float32", strides=strides)


@pytest.fixture(scope="module")
def request_of_programs() -> Request:
    """All that three programs do: attention, convolutions, recurrence; three kinds of optimizers."""
    return request_of([_recording(name) for name in ("attention", "convolutions", "gru")])


def _recording(name: str) -> Recording:
    def program() -> None:
        runpy.run_path(str(PROGRAMS / f"{name}.py"))

    return simulate(program, "cpu", steps=2).recording


@pytest.fixture(autouse=True)
def _one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)  # other tests run beside this one
    yield
    torch.set_num_threads(n)


def test_every_operator_of_three_real_programs_is_run(request_of_programs):
    seen = []
    outcome = measure_request(
        request_of_programs, TIME_S, lambda n_done, n_total: seen.append((n_done, n_total))
    )
    n = len(request_of_programs.signatures)
    assert n > 250
    reasons = {
        signature.name: entry.reason
        for signature, entry in zip(request_of_programs.signatures, outcome.entries, strict=True)
        if entry.reason
    }
    assert reasons == {}
    assert sum(entry.n_samples > 0 for entry in outcome.entries) > 0.8 * n or outcome.disturbed_share > 0.1
    assert seen[-1] == (n, n)
    assert outcome.host.forward >= 0


def test_results_have_the_shapes_the_recording_says(request_of_programs):
    """A call that was put together wrongly but runs would be timed as something else."""
    storages = Storages({}, index_bound(request_of_programs.signatures), CPU)
    n_compared = 0
    for number, signature in enumerate(request_of_programs.signatures):
        call = call_of(signature, CPU)
        tensors = []
        for i, (each, dtype) in enumerate(zip(signature.inputs, call.dtypes, strict=True)):
            shape = Shape(0, each, dtype, span_bytes(each, dtype))
            tensors.append(storages.tensor(number * 1000 + i, shape))
        args, kwargs = call.fill(tensors)
        with torch.no_grad():
            result = call.operator(*args, **kwargs)
        results = [
            r for r in (result if isinstance(result, (list, tuple)) else [result]) if torch.is_tensor(r)
        ]
        new = [r for r in results if all(r is not t for t in tensors)]
        if signature.outputs:
            assert [tuple(r.shape) for r in new] == [each.shape for each in signature.outputs], signature
            n_compared += 1
    assert n_compared > 100


def test_the_process_of_its_own_writes_what_the_function_returns(tmp_path, capsys, monkeypatch):
    mm = Signature("aten.mm.default", (f32(4, 8), f32(8, 2)), (f32(4, 2),), "_,_")
    run = [int(ActKind.RUN), 0, [1, 2], [3], []]
    request = Request([mm], [1], [run], {1: 128, 2: 64, 3: 32}, [7])
    content = {"device": "cpu", "threads": 1, "budget_s": TIME_S, "host": None, "clock": "wall"}
    (tmp_path / "request.json").write_text(json.dumps(request.to_json() | content))
    monkeypatch.setattr(torch_measure, "settle_allocator", lambda request: None)  # this process does more
    assert main([str(tmp_path / "request.json"), str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    ((seconds, _, n_samples, scratch, reason),) = result["entries"]
    assert seconds >= 0
    assert (scratch, reason) == (7, "")  # the recording said how much
    assert n_samples <= result["n_passes"]
    assert capsys.readouterr().out == "measured 1 of 1\n"


def test_scratch_is_what_a_kernel_holds_beyond_its_results():
    n = 1 << 16
    sorting = Signature("aten.sort.default", (f32(n),), (f32(n), spec(n, dtype="int64")), "_")
    relu = Signature("aten.relu.default", (f32(n),), (f32(n),), "_")
    relu_ = Signature("aten.relu_.default", (f32(n),), (), "_")
    sort, out_of_place, in_place = measure([sorting, relu, relu_], [1, 1, 1], TIME_S)
    assert (sort.reason, out_of_place.reason, in_place.reason) == ("", "", "")
    assert sort.scratch_bytes > 0
    assert (out_of_place.scratch_bytes, in_place.scratch_bytes) == (0, 0)


def test_what_cannot_be_run_says_why_and_the_rest_is_measured():
    custom = Signature("mine.op.default", (f32(4),), (f32(4),), "_")
    file = Signature("aten.from_file.default", (), (f32(4),), "'/etc/hostname',True,4")
    no_type = Signature("aten.relu.default", (spec(4, dtype="qint8"),), (), "_")
    wrong = Signature("aten.mm.default", (f32(4, 8), f32(3, 2)), (f32(4, 2),), "_,_")
    cut = Signature("aten.view.default", (f32(1,),), (), "_,[1,1,1,1,1,1,1,1…]")  # fmt: skip
    good = Signature("aten.relu.default", (f32(4),), (f32(4),), "_")
    found = measure([custom, file, no_type, wrong, cut, good], [1] * 6, TIME_S)
    assert [each.reason.partition(":")[0] for each in found] == [
        "it is not an operator of this torch",
        "it is not an operator of this torch",
        "tensors of type qint8 cannot be made from a shape",
        "it failed",
        "its signature does not list all its arguments",
        "",
    ]


def test_without_time_nothing_is_measured_and_that_is_reported():
    relu = Signature("aten.relu.default", (f32(4),), (f32(4),), "_")
    late = [relu, Signature("aten.neg.default", (f32(4),), (f32(4),), "_")]
    found = measure(late, [1, 1], 0.0)
    assert "the time budget for measuring ran out before it was run" in [each.reason for each in found]


def test_lists_that_a_signature_cuts_short_get_their_length_back():
    weights = tuple(f32(3) for _ in range(20))
    adds = Signature("aten._foreach_add_.List", weights, (), "[_,_,_,_,_,_,_,_…],[_,_,_,_,_,_,_,_…]")
    args, _ = call_of(adds, CPU).fill([torch.ones(3) for _ in weights])
    assert [len(each) for each in args] == [10, 10]
    with pytest.raises(CannotRebuild, match="3 tensors for 2 places"):
        call_of(Signature("aten.mm.default", (f32(2, 2),) * 3, (), "_,_"), CPU)


def test_memory_nobody_made_has_values_every_operator_can_use():
    storages = Storages({1: 64, 4: 64}, 5, CPU, weights=[4])
    numbers = storages.tensor(1, Shape(0, f32(4, 4), torch.float32, 64))
    assert bool((numbers > 0).all())
    assert bool((numbers < 0.1).all())
    weight = storages.tensor(4, Shape(0, f32(4, 4), torch.float32, 64))
    assert float(weight.min()) < 0 < float(weight.max())
    indices = storages.tensor(2, Shape(1, spec(100, dtype="int64"), torch.int64, 800))
    assert (int(indices.min()), int(indices.max())) == (0, 4)
    assert storages.tensor(1, Shape(0, f32(4, 4), torch.float32, 64)) is numbers
    spread = storages.tensor(3, Shape(2, f32(2, 3, strides=(10, 2)), torch.float32, 60))
    assert (tuple(spread.shape), spread.stride()) == ((2, 3), (10, 2))


def test_indices_are_valid_in_the_smallest_table():
    lookup = Signature(
        "aten.index_select.default", (f32(50, 3), spec(9, dtype="int64")), (f32(9, 3),), "_,0,_"
    )
    loss = Signature(
        "aten.nll_loss_forward.default",
        (f32(4, 10), spec(4, dtype="int64")),
        (f32(), f32()),
        "_,_,None,1,-100",
    )
    assert index_bound([lookup]) == 50
    assert index_bound([lookup, loss]) == 10
    assert index_bound([]) == 2


def test_the_most_that_is_alive_at_once():
    run, make, drop, drop_all = (int(kind) for kind in ActKind)
    acts = [
        [run, 0, [1], [2], []],
        [drop, 2],
        [make, 3],
        [run, 0, [3], [4], []],
        [drop_all],
        [run, 0, [5], [], []],
    ]
    assert peak_bytes(Request(acts=acts, sizes={1: 10, 2: 50, 3: 30, 4: 25, 5: 60})) == 65


def test_times_taken_while_other_programs_ran_count_only_if_there_are_no_others(monkeypatch):
    relu = Signature("aten.relu.default", (f32(4),), (f32(4),), "_")
    switches = iter(range(1000))
    monkeypatch.setattr(torch_measure_replay, "_switches", lambda: next(switches))
    (found,) = measure([relu], [1], TIME_S)
    assert (found.reason, found.n_samples) == ("", 0)
    monkeypatch.setattr(torch_measure_replay, "_switches", lambda: 0)
    (found,) = measure([relu], [1], TIME_S)
    assert found.n_samples >= 1
