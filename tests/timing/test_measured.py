"""Measured costs: what is answered for an operator, and the file that keeps it."""

from __future__ import annotations

import json
import math

import pytest

from tests.timing.signatures import spec
from windtunnel.caches import cache_folder
from windtunnel.errors import CorruptFile
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Free, Mark, Op, Phase, Role, Signature, Step
from windtunnel.timing.measured import on_this_machine as measured_here
from windtunnel.timing.measured.costs import Fingerprint, HostSeconds, Measured, MeasuredCosts
from windtunnel.timing.measured.on_this_machine import cache_path, fingerprint_of, measure_here
from windtunnel.timing.measured.scalars import MORE, TENSOR, Word, read_scalars
from windtunnel.timing.measured.steps import ActKind, Request, request_of, steady_rows
from windtunnel.timing.operators.op_cost import Basis

RUN, MAKE, DROP, DROP_ALL = (int(kind) for kind in ActKind)
HERE = Fingerprint("cpu", "A CPU @ 2.0 GHz", 8, 4, "2.13.0")
HOST = HostSeconds(forward=2e-6, backward=3e-6, module=5e-6, bytes_per_s=1e9)
MM = Signature(
    "aten.mm.default",
    (spec(4, 8, dtype="float32"), spec(8, 2, dtype="float32")),
    (spec(4, 2, dtype="float32"),),
    "_,_",
)
RELU_ = Signature("aten.relu_.default", (spec(4, 2, dtype="float32"),), (), "_")
STRANGE = Signature("mine.strange.default", (spec(250, dtype="float32"),), (spec(250, dtype="float32"),), "_")


# -- costs ----------------------------------------------------------------------------------------------------


def test_a_measured_operator_costs_what_was_measured():
    costs = MeasuredCosts(HERE, {MM: Measured(1e-3, 0.25, 6, 512)}, HOST)
    found = costs.cost(MM)
    assert (found.seconds, found.host_seconds, found.spread) == (1e-3, 2e-6, 0.25)
    assert (found.basis, found.flops, found.n_bytes) == (Basis.MEASURED, 2 * 4 * 8 * 2, 4 * (32 + 16 + 8))
    assert found.op_class == "matmul"
    assert costs.cost(MM, is_backward=True).host_seconds == 3e-6
    assert costs.host.module_seconds == 5e-6


def test_an_operator_that_could_not_be_run_is_bounded_by_its_bytes():
    costs = MeasuredCosts(HERE, {STRANGE: Measured(reason="it is not an operator of this torch")}, HOST)
    found = costs.cost(STRANGE)
    assert (found.seconds, found.basis) == (2000 / 1e9, Basis.BYTES)
    assert costs.unmeasured() == {"mine.strange.default": (1, "it is not an operator of this torch")}
    assert (
        costs.description == "measured on this machine: A CPU @ 2.0 GHz, 4 threads, torch 2.13.0, 0 operators"
    )


# -- the file -------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path):
    entries = {MM: Measured(1e-3, 0.25, 6, 512), STRANGE: Measured(reason="no")}
    path = tmp_path / "new" / "costs.json"
    MeasuredCosts(HERE, entries, HOST).save(path)
    loaded = MeasuredCosts.load(path)
    assert (loaded.fingerprint, loaded.entries, loaded.host_seconds) == (HERE, entries, HOST)
    assert [each.name for each in path.parent.iterdir()] == ["costs.json"]  # nothing unfinished is left


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"format":1', '"format":99'),
        lambda text: text.replace("0.001", "-1"),
        lambda text: text.replace("0.001", "NaN"),
        lambda text: text.replace("0.001", "true"),
        lambda text: text.replace('"cores":8', '"cores":"8"'),
        lambda text: text.replace("[[4,8],", "[[4,-8],"),
        lambda text: text.replace('"threads":4,', ""),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path, damage):
    path = tmp_path / "costs.json"
    MeasuredCosts(HERE, {MM: Measured(1e-3, 0.25, 6, 512)}, HOST).save(path)
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(CorruptFile, match=r"is not a file of measured operators: .* \(delete it\)"):
        MeasuredCosts.load(path)


def test_every_device_has_a_file_of_its_own(tmp_path, monkeypatch):
    assert cache_path(tmp_path, HERE).name == "cpu-a-cpu-2.0-ghz-8-cores-4-threads-torch-2.13.0.json"
    other = Fingerprint("cpu", "../../etc/passwd\n", 8, 0, "2.13.0+cpu")
    assert cache_path(tmp_path, other).parent == tmp_path
    assert cache_path(tmp_path, other) != cache_path(tmp_path, HERE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "windtunnel"
    here = fingerprint_of("cpu", 3, "2.13.0")
    assert (here.device, here.threads, here.torch) == ("cpu", 3, "2.13.0")
    assert here.cores >= 1
    assert here.model


# -- what is run ----------------------------------------------------------------------------------------------

STEP = [
    Alloc(10, 32, op=1),
    Op(1, 0, (1, 2), (10,)),
    Alloc(11, 64),  # the program's own
    Op(2, 1, (11,)),
    Alloc(12, 4, op=3, role=Role.WORKSPACE),
    Op(3, 1, (10,)),
    Free(12),
    Free(10),
    Free(11),
]


def recording_of(path, events, signatures=(MM, RELU_)):
    record_events(path, events, signatures=signatures)
    return read_recording(path)


def test_the_last_step_is_run_in_its_own_order(tmp_path):
    first = [Alloc(1, 128, phase=Phase.BUILD), Mark(1, Role.WEIGHT), Alloc(2, 64), Op(0, 1, (1,))]
    recording = recording_of(tmp_path / "r", [*first, Step(1), *STEP, Step(2)])
    assert steady_rows(recording) == (5, 15)
    request = request_of([recording])
    assert request.signatures == [MM, RELU_]
    assert request.counts == [1, 2]
    assert request.acts == [
        [RUN, 0, [1, 2], [10], []],
        [MAKE, 11],
        [RUN, 1, [11], [], []],
        [RUN, 1, [10], [], []],
        [DROP, 10],
        [DROP, 11],
    ]
    assert request.sizes == {1: 128, 2: 64, 10: 32, 11: 64}
    assert request.weights == [1]
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_what_is_known_or_repeats_is_not_run_again(tmp_path):
    many = [Op(i, 1, (1,)) for i in range(50)]
    recording = recording_of(tmp_path / "r", [Step(1), Op(0, 0, (1, 2), (3,)), *many, Step(2)])
    request = request_of([recording], known={MM})
    assert (request.signatures, request.counts) == ([RELU_], [50])
    assert request.acts == [[RUN, 0, [1], [], []]] * 8


def test_an_operator_of_the_first_step_alone_is_run_too(tmp_path):
    recording = recording_of(
        tmp_path / "r", [Op(0, 0, (1, 2), (3,)), Step(1), Op(1, 1, (3,)), Step(2), Op(2, 1, (3,)), Step(3)]
    )
    request = request_of([recording])
    assert dict(zip(request.signatures, request.counts, strict=True)) == {MM: 0, RELU_: 1}
    assert [act[1] for act in request.acts] == [request.signatures.index(RELU_), request.signatures.index(MM)]


def test_two_ranks_share_signatures_and_not_storages(tmp_path):
    one = recording_of(tmp_path / "a", [Step(1), Op(0, 1, (1,)), Step(2)])
    two = recording_of(tmp_path / "b", [Step(1), Op(0, 1, (1,)), Op(1, 0, (1, 2), (3,)), Step(2)])
    request = request_of([one, two])
    assert request.signatures == [RELU_, MM]
    assert [act[0] for act in request.acts] == [RUN, DROP_ALL, RUN, RUN]
    assert request.acts[0][2] != request.acts[2][2]


# -- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("", [], {}),
        ("_,[256],None,True,1e-05", [TENSOR, [256], None, True, 1e-05], {}),
        ("[_,[_,_]],-1", [[TENSOR, [TENSOR, TENSOR]], -1], {}),
        ("[_,_…]", [[TENSOR, TENSOR, MORE]], {}),
        ("_,-inf,value=inf", [TENSOR, -math.inf], {"value": math.inf}),
        ("_,approximate='a,]b'", [TENSOR], {"approximate": "a,]b"}),
        ("dtype=torch.float32", [], {"dtype": Word("torch.float32")}),
        ("device=device(type='cpu', index=0),_", [TENSOR], {"device": Word("device(type='cpu', index=0)")}),
        ("_,<torch._C.Generator object at 0x7f>", [TENSOR, Word("<torch._C.Generator object at 0x7f>")], {}),
        ("__import__('os').system('true')", [Word("__import__('os').system('true')")], {}),
    ],
)
def test_arguments_are_read_and_never_run(text, args, kwargs):
    assert read_scalars(text) == (args, kwargs)


@pytest.mark.parametrize("text", ["[_", "_,,_", "[" * 50 + "]" * 50, "_ ]", "[_[_]]"])
def test_arguments_no_signature_has_are_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read_scalars(text)


# -- the whole way, with a measurement that is given ----------------------------------------------------------


def _answer(entries, disturbed_share=0.0):
    """What the measuring process writes."""
    host = {"forward": 1e-6, "backward": 2e-6, "module": 3e-6, "bytes_per_s": 1e9}
    times = {"seconds": 0.5, "host_measuring_seconds": 0.1, "disturbed_share": disturbed_share}
    return json.dumps({"entries": entries, "host": host, **times})


def test_a_second_run_measures_nothing_and_a_damaged_file_is_written_anew(tmp_path, monkeypatch):
    asked = []

    def run(source, target, tell):
        rows = json.loads(source.read_text())["signatures"]
        asked.append([row[0] for row in rows])
        entries = [
            [1e-3, 0.0, 2, 0, ""] if row[0] == MM.name else [0.0, 0.0, 0, 0, "it failed: no"] for row in rows
        ]
        target.write_text(_answer(entries))
        return 0, ""

    monkeypatch.setattr(measured_here, "_run", run)
    recording = recording_of(tmp_path / "r", [Step(1), *STEP, Step(2)])
    costs = measure_here([recording], cache=tmp_path / "cache")
    assert costs.cost(MM).seconds == 1e-3
    assert costs.notes == (
        "1 operators could not be measured and are bounded by the bytes they move (aten.relu_.default): it failed: no",
    )
    again = measure_here([recording], cache=tmp_path / "cache")
    assert (again.entries, again.measuring_seconds) == (costs.entries, 0.0)
    assert asked == [[MM.name, RELU_.name]]
    (file,) = (tmp_path / "cache").iterdir()
    file.write_text(file.read_text()[:100])
    anew = measure_here([recording], cache=tmp_path / "cache")
    assert "is not a file of measured operators" in anew.notes[0]
    assert anew.notes[0].endswith("it is ignored and will be rewritten")
    assert len(asked) == 2
    assert MeasuredCosts.load(file).entries == costs.entries


def test_what_other_programs_disturbed_is_used_said_and_not_kept(tmp_path, monkeypatch):
    def run(source, target, tell):
        entries = [[1e-3, 0.0, 0, 0, ""], [2e-3, 0.0, 3, 0, ""]]
        target.write_text(_answer(entries, disturbed_share=0.4))
        return 0, ""

    monkeypatch.setattr(measured_here, "_run", run)
    recording = recording_of(tmp_path / "r", [Step(1), *STEP, Step(2)])
    costs = measure_here([recording], cache=tmp_path)
    assert (costs.cost(MM).seconds, costs.cost(RELU_).seconds) == (1e-3, 2e-3)
    assert "this machine was busy: other programs used the processor during 40% of the" in costs.notes[0]
    assert list(MeasuredCosts.load(cache_path(tmp_path, costs.fingerprint)).entries) == [RELU_]


def test_an_operator_that_ends_the_process_is_left_out_and_named(tmp_path, monkeypatch):
    def run(source, target, tell):
        request = json.loads(source.read_text())
        wanted = {act[1] for act in request["acts"] if act[0] == RUN}
        if 1 in wanted:
            target.with_suffix(".trying").write_bytes(b"%-12d" % 1)
            return -11, ""
        entries = [[1e-3, 0.0, 2, 0, ""]] * len(request["signatures"])
        target.write_text(_answer(entries))
        return 0, ""

    monkeypatch.setattr(measured_here, "_run", run)
    recording = recording_of(tmp_path / "r", [Step(1), *STEP, Step(2)])
    costs = measure_here([recording], cache=tmp_path / "cache")
    assert costs.cost(MM).basis is Basis.MEASURED
    assert costs.entries[RELU_].reason == "it ended its process with signal 11"
