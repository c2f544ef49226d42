"""Operations of operators: by hand where a hand can, against torch's own counter where it has one."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.capture.pytorch.simulated import run_plainly
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.operators.flops import attention_of, flops_of


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


def _flash(name: str, shapes: list[tuple[int, ...]], scalars: str) -> Signature:
    return Signature(f"flash_attn.{name}.default", tuple(_spec(*s) for s in shapes), (), scalars)


def test_flash_attn_keeps_heads_behind_the_sequence():
    qkv, rows = (2, 16, 4, 8), (2, 4, 16)
    forward = _flash("_flash_attn_forward", [qkv] * 3, "_,_,_,0.0,0.3,True,-1,-1,0.0,None")
    backward = _flash(
        "_flash_attn_backward", [qkv] * 5 + [rows, (2,)], "_,_,_,_,_,_,_,0.0,0.3,True,-1,-1,0.0,None"
    )
    whole = 2 * 2 * 2 * 4 * 16 * 16 * 8
    assert flops_of(forward) == whole // 2
    assert flops_of(backward) == 5 * whole // 4
    assert attention_of(forward).n_heads == 8


def test_sequences_one_after_the_other_attend_to_themselves_only():
    qkv = (64, 4, 8)  # four sequences of 16
    scalars = "_,_,_,_,_,16,16,0.0,0.3,False,-1,-1,0.0,None"
    forward = _flash("_flash_attn_varlen_forward", [qkv] * 3 + [(5,), (5,)], scalars)
    assert flops_of(forward) == 2 * 2 * (4 * 4) * 16 * 16 * 8
    scalars = "_,_,_,_,_,_,_,_,_,16,16,0.0,0.3,True,-1,-1,0.0,None"
    backward = _flash("_flash_attn_varlen_backward", [qkv] * 5 + [(4, 64), (2,), (5,), (5,)], scalars)
    assert flops_of(backward) == 5 * (4 * 4) * 16 * 16 * 8


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("SBH", (16, 2, 32)), ("BSH", (2, 16, 32)), ("BNSD", (2, 4, 16, 8)), ("BSND", (2, 16, 4, 8))],
)
def test_the_layout_of_an_ascend_kernel_does_not_change_its_work(layout, shape):
    text = f"_,_,_,4,'{layout}',atten_mask=_,scale=0.3,keep_prob=1.0,sparse_mode="
    qkv = (_spec(*shape),) * 3
    whole = 2 * 2 * (2 * 4) * 16 * 16 * 8
    for mode, expected in (("0", whole), ("2", whole // 2)):
        signature = Signature("npu.npu_fusion_attention.default", qkv, (), text + mode)
        assert flops_of(signature) == expected


def test_each_row_of_a_grouped_product_meets_one_matrix():
    inputs = (_spec(32, 8), _spec(4, 8, 16), _spec(4, dtype="int32"))
    signature = Signature("aten._grouped_mm.default", inputs, (_spec(32, 16),), "_,_,_")
    assert flops_of(signature) == 2 * 32 * 8 * 16
