"""Costs of operators: by hand where a hand can, against torch's own counter where it has one."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.capture.simulated import run_plainly
from windtunnel.devices import find_device
from windtunnel.errors import CorruptFile
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.cost import CostTable, bytes_moved, cost_key, op_seconds, seconds_of
from windtunnel.timing.flops import flops_of

A100 = find_device("a100-80gb")
EFFICIENCY, BANDWIDTH = 0.55, 0.75


def _spec(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    if strides is None:
        strides, step = (), 1
        for size in reversed(shape):
            strides, step = (step, *strides), step * size
    return TensorSpec(shape, strides, dtype)


def _text(a) -> str:
    if isinstance(a, torch.Tensor):
        return "_"
    if isinstance(a, (list, tuple)):
        return "[" + ",".join(map(_text, a)) + "]"
    return repr(a)


class _Watch(TorchDispatchMode):
    """Signatures of everything that runs, as the simulated device records them, and torch's own count."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outs = [out] if isinstance(out, torch.Tensor) else [o for o in out if isinstance(o, torch.Tensor)]
        inputs = [a for a in args if isinstance(a, torch.Tensor)]

        def specs(tensors):
            return tuple(TensorSpec(tuple(t.shape), t.stride(), str(t.dtype)[6:]) for t in tensors)

        texts = [*map(_text, args), *(f"{k}={_text(a)}" for k, a in (kwargs or {}).items())]
        signature = Signature(str(func), specs(inputs), specs(outs), ",".join(texts))
        count = flop_registry.get(func.overloadpacket)
        self.seen.append((signature, None if count is None else count(*args, **(kwargs or {}), out_val=out)))
        return out


def _watch(program) -> dict[str, tuple[int, int]]:
    """Operator -> (our operations, torch's), for those torch counts."""
    with _Watch() as watch:
        program()
    found = {}
    for signature, expected in watch.seen:
        if expected is not None:
            name = signature.name.split(".")[1]
            mine, theirs = found.get(name, (0, 0))
            found[name] = (mine + flops_of(signature), theirs + expected)
    return found


def test_matrix_products_count_as_torch_counts_them():
    a, b, c = torch.randn(3, 5), torch.randn(5, 7), torch.randn(7)
    batch_a, batch_b = torch.randn(4, 3, 5), torch.randn(4, 5, 7)

    def program():
        a @ b
        torch.addmm(c, a, b)
        torch.bmm(batch_a, batch_b)
        torch.baddbmm(torch.zeros(4, 3, 7), batch_a, batch_b)

    found = _watch(program)
    assert found["mm"] == (210, 210)
    assert set(found) == {"mm", "addmm", "bmm", "baddbmm"}
    assert all(mine == theirs > 0 for mine, theirs in found.values())


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("needs_input", [True, False])
def test_convolutions_count_as_torch_counts_them(is_transposed, groups, needs_input):
    kind = torch.nn.ConvTranspose2d if is_transposed else torch.nn.Conv2d
    layer = kind(4, 6, 3, stride=2, padding=1, groups=groups, bias=False)
    data = torch.randn(2, 4, 9, 9, requires_grad=needs_input)
    # in a child: a process that has run a backward cannot fork one that simulates a device, as other tests do
    found = run_plainly(lambda: _watch(lambda: layer(data).sum().backward()))
    assert set(found) == {"convolution", "convolution_backward"}
    mine, theirs = found["convolution"]
    assert mine == theirs > 0
    if groups == 1:  # torch's counter forgets the groups of a gradient
        mine, theirs = found["convolution_backward"]
        assert mine == theirs
    assert found["convolution_backward"][0] == found["convolution"][0] * (2 if needs_input else 1)


def _attention(name: str, n_before: int, causal_at: int, is_causal: bool) -> int:
    shapes = [_spec(2, 4, 16, 8)] * (n_before + 1) + [_spec(2, 4, 32, 8), _spec(2, 4, 32, 8)]
    scalars = ["_"] * causal_at + [str(is_causal)]
    return flops_of(Signature(f"aten.{name}.default", tuple(shapes), (), ",".join(scalars)))


@pytest.mark.parametrize(
    ("name", "n_before", "causal_at"),
    [
        ("_scaled_dot_product_flash_attention", 0, 4),
        ("_scaled_dot_product_efficient_attention", 0, 6),
        ("_scaled_dot_product_flash_attention_backward", 1, 11),
        ("_scaled_dot_product_efficient_attention_backward", 1, 11),
        ("_scaled_dot_product_cudnn_attention", 0, 6),
    ],
)
def test_attention_counts_as_torch_counts_it_and_half_of_that_when_causal(name, n_before, causal_at):
    query, key = (2, 4, 16, 8), (2, 4, 32, 8)
    count = flop_registry[getattr(torch.ops.aten, name)]
    tensors = [torch.empty(query)] * (n_before + 1) + [torch.empty(key)] * 2
    expected = count(*tensors, out_val=(torch.empty(query),))
    assert _attention(name, n_before, causal_at, False) == expected
    assert _attention(name, n_before, causal_at, True) == expected // 2
    names = [a.name for a in getattr(torch.ops.aten, name).default._schema.arguments]
    assert names[causal_at] == "is_causal"


def test_every_attention_formula_looks_for_the_causal_flag_where_it_is():
    for name, at in [
        ("_scaled_dot_product_flash_attention_for_cpu", 4),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", 7),
        ("_scaled_dot_product_cudnn_attention_backward", 14),
        ("_scaled_dot_product_fused_attention_overrideable", 5),
        ("_scaled_dot_product_fused_attention_overrideable_backward", 13),
    ]:
        arguments = getattr(torch.ops.aten, name).default._schema.arguments
        assert arguments[at].name == "is_causal", (name, [a.name for a in arguments])
        n_before = 1 if name.endswith("backward") else 0
        assert _attention(name, n_before, at, True) * 2 == _attention(name, n_before, at, False) > 0


def test_an_addition_is_bound_by_its_bytes():
    signature = Signature("aten.add.Tensor", (_spec(1 << 20), _spec(1 << 20)), (_spec(1 << 20),), "_,_")
    assert bytes_moved(signature) == 3 << 22
    assert op_seconds(signature, A100) == pytest.approx((3 << 22) / (2039e9 * BANDWIDTH) + 5e-6)


def test_in_place_writes_what_it_read():
    signature = Signature("aten.add_.Tensor", (_spec(1 << 20), _spec(1 << 20)), (), "_,_")
    assert bytes_moved(signature) == 3 << 22


def test_what_is_expanded_is_read_once():
    signature = Signature("aten.neg.default", (_spec(1024, 1024, strides=(0, 1)),), (_spec(1024, 1024),), "_")
    assert bytes_moved(signature) == 4 * (1024 + 1024 * 1024)


def test_a_lookup_reads_rows_not_the_table():
    signature = Signature(
        "aten.embedding.default", (_spec(50_000, 64), _spec(8, dtype="int64")), (_spec(8, 64),), "_,_"
    )
    assert bytes_moved(signature) == 2 * 8 * 64 * 4 + 8 * 8


@pytest.mark.parametrize(
    "name", ["aten.view.default", "aten.t.default", "aten.empty_like.default", "aten.detach.default"]
)
def test_views_and_blank_memory_cost_nothing(name):
    assert op_seconds(Signature(name, (_spec(1024, 1024),), (_spec(1024, 1024),), "_"), A100) == 0.0


def _square(dtype: str, name: str = "aten.mm.default") -> Signature:
    n = 8192
    return Signature(
        name, (_spec(n, n, dtype=dtype), _spec(n, n, dtype=dtype)), (_spec(n, n, dtype=dtype),), "_,_"
    )


def test_a_large_product_is_bound_by_the_peak_of_its_type():
    flops = 2 * 8192**3
    assert op_seconds(_square("bfloat16"), A100) == pytest.approx(flops / (312e12 * EFFICIENCY) + 5e-6)
    assert op_seconds(_square("float32"), A100) == pytest.approx(flops / (19.5e12 * EFFICIENCY) + 5e-6)
    assert op_seconds(_square("float64"), A100) == pytest.approx(flops / (9.75e12 * EFFICIENCY) + 5e-6)
    assert op_seconds(_square("float8_e4m3fn"), A100) == pytest.approx(flops / (624e12 * EFFICIENCY) + 5e-6)


def test_float32_convolutions_use_tf32_from_ampere_on():
    signature = Signature(
        "aten.convolution.default",
        (_spec(64, 256, 56, 56), _spec(256, 256, 3, 3)),
        (_spec(64, 256, 56, 56),),
        "_,_,None,[1,1],[1,1],[1,1],False,[0,0],1",
    )
    flops = 2 * 64 * 56 * 56 * 256 * 256 * 9
    assert op_seconds(signature, A100) == pytest.approx(flops / (156e12 * EFFICIENCY) + 5e-6)
    turing = find_device("2080ti-11gb")
    assert op_seconds(signature, turing) == pytest.approx(flops / (13.4e12 * EFFICIENCY) + 5e-6)


def test_a_measured_time_is_used_where_there_is_one():
    known, other = _square("bfloat16"), _square("bfloat16", "aten.bmm.default")
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
