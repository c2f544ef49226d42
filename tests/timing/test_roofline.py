"""The roofline on hand-made signatures, devices and calibrations: exact where a hand can, else its properties."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timing.signatures import spec
from windtunnel.devices import find_device, known_devices
from windtunnel.events.model import Signature
from windtunnel.timing.operators.op_cost import Basis
from windtunnel.timing.operators.operator_classes import OpClass, class_of
from windtunnel.timing.roofline.calibration import (
    Calibration,
    calibration_of,
    generation_of,
    known_generations,
)
from windtunnel.timing.roofline.matmul import Product, Rates, product_seconds
from windtunnel.timing.roofline.model import Roofline, roofline_of

PLAIN = Calibration(
    matmul_share=0.5, tile_loss=1.0, tile_us=0.0, kernel_us=3.0, convolution_share=0.5, attention_share=0.5,
    attention_backward_share=0.25, narrow_head_share=0.5, efficient_attention_share=0.5, bandwidth_share=0.5, cache_gain=2.0,
    strided_share=0.5, reduction_share=0.8, norm_share=0.4, norm_backward_share=0.25, softmax_share=0.75, random_share=0.8,
    scatter_share=0.5, optimizer_share=0.8, sort_passes=4.0, transfer_gbs=10.0, host_forward_us=10.0, host_backward_us=20.0,
    host_fused_us=30.0, host_tensor_us=1.0, host_module_us=5.0, host_collective_us=40.0, host_sync_us=8.0,
)  # fmt: skip
# 1000 GB/s, 100 TFLOPS in half precision, 4 processors, no cache to speak of
CARD = replace(
    find_device("a100-80gb"), bandwidth_gbs=1000.0, bf16_tflops=100.0, fp16_tflops=0.0, tf32_tflops=50.0, fp32_tflops=10.0,
    fp64_tflops=5.0, fp8_tflops=0.0, multiprocessors=4, l2_mib=0.0, launch_us=2.0,
)  # fmt: skip
ROOFLINE = Roofline(CARD, PLAIN)
LEAST = 2e-6
MIB = 1 << 20


def _op(name: str, inputs, outputs=(), scalars="_") -> Signature:
    return Signature(f"aten.{name}", tuple(inputs), tuple(outputs), scalars)


def _add(n: int) -> Signature:
    return _op("add.Tensor", [spec(n), spec(n)], [spec(n)], "_,_")


def test_an_addition_takes_as_long_as_its_bytes():
    cost = ROOFLINE.cost(_add(MIB))
    assert (cost.n_bytes, cost.flops, cost.basis, cost.op_class) == (6 * MIB, 0, Basis.MODEL, "elementwise")
    assert cost.seconds == pytest.approx(6 * MIB / 500e9 + LEAST)
    assert cost.host_seconds == pytest.approx(10e-6)
    assert ROOFLINE.cost(_add(MIB), is_backward=True).host_seconds == pytest.approx(20e-6)


def test_what_fits_in_half_of_the_cache_is_faster():
    cached = Roofline(replace(CARD, l2_mib=12.0), PLAIN)
    assert cached.cost(_add(MIB)).seconds == pytest.approx(6 * MIB / 1000e9 + LEAST)
    assert cached.cost(_add(MIB + 1)).seconds == pytest.approx(6 * (MIB + 1) / 500e9 + LEAST)


def test_a_device_without_a_launch_time_takes_the_generations():
    unknown = Roofline(replace(CARD, launch_us=0.0), PLAIN)
    assert unknown.cost(_add(MIB)).seconds == pytest.approx(6 * MIB / 500e9 + 3e-6)


@pytest.mark.parametrize(
    ("name", "share"),
    [("sum.dim_IntList", 0.8), ("native_layer_norm.default", 0.4), ("native_layer_norm_backward.default", 0.25),
     ("_softmax.default", 0.75), ("native_dropout.default", 0.8), ("sort.default", 0.25), ("neg.default", 1.0)],
)  # fmt: skip
def test_each_class_has_its_share_of_the_bandwidth(name, share):
    signature = _op(name, [spec(MIB)], [spec(MIB)])
    assert ROOFLINE.cost(signature).seconds == pytest.approx(4 * MIB / (500e9 * share) + LEAST)


def test_a_causal_softmax_reads_half_of_the_scores():
    scores = spec(8, 64, 64)
    whole = Signature("scaled_softmax_cuda.forward.default", (scores,), (scores,), "_,1.0")
    causal = Signature(
        "scaled_upper_triang_masked_softmax_cuda.forward.default", (scores,), (scores,), "_,1.0"
    )
    seconds = ROOFLINE.cost(whole).seconds - LEAST, ROOFLINE.cost(causal).seconds - LEAST
    assert seconds[1] == pytest.approx(0.75 * seconds[0])


def test_a_turned_copy_is_slower():
    turned = _op("clone.default", [spec(1024, 1024, strides=(1, 1024))], [spec(1024, 1024)])
    assert ROOFLINE.cost(turned).seconds == pytest.approx(4 * MIB / (500e9 * 0.5) + LEAST)


def test_views_cost_the_host_only():
    for name in ("view.default", "t.default", "empty_like.default", "detach.default", "expand.default"):
        cost = ROOFLINE.cost(_op(name, [spec(1024, 1024)], [spec(1024, 1024)]))
        assert (cost.seconds, cost.basis) == (0.0, Basis.FREE)
        assert cost.host_seconds == pytest.approx(10e-6)


def test_an_unknown_operator_is_bounded_by_its_bytes_and_says_so():
    signature = Signature("mylib.frobnicate.default", (spec(MIB),), (spec(MIB),), "_")
    cost = ROOFLINE.cost(signature)
    assert (cost.basis, cost.op_class) == (Basis.BYTES, "other")
    assert cost.seconds == pytest.approx(4 * MIB / 500e9 + LEAST)


def test_data_crosses_the_bus_once():
    signature = Signature("memcpy.host_to_device", (spec(MIB), spec(MIB)), (), "")
    cost = ROOFLINE.cost(signature)
    assert cost.op_class == "transfer"
    assert cost.seconds == pytest.approx(2 * MIB / 10e9 + LEAST)


def test_a_fused_kernel_moves_what_enters_and_leaves():
    cost = ROOFLINE.fused_cost(10 * MIB)
    assert cost.seconds == pytest.approx(10 * MIB / 500e9 + LEAST)
    assert cost.op_class == "fused"
    assert cost.host_seconds == pytest.approx(30e-6)


def test_lists_cost_the_host_by_the_tensor():
    tensors = [spec(1024, dtype="float32")] * 12  # weights, gradients, two moments of three tensors
    text = "[_,_,_],[_,_,_],[_,_,_],[_,_,_]"
    cost = ROOFLINE.cost(_op("_fused_adamw_.default", tensors, scalars=text))
    assert cost.host_seconds == pytest.approx((10 + 12) * 1e-6)
    assert cost.n_bytes == (12 + 3 * 3) * 4096


# -- matrix products ----------------------------------------------------------------------------------------------

RATES = Rates(100e12, 500e9, 4)
ONE_TILE = 2 * 256 * 128 * 1024 / (25e12 * 0.5)


@pytest.mark.parametrize(
    ("rows", "columns", "waves"), [(256, 128, 1), (512, 256, 1), (512, 257, 2), (1024, 256, 2)]
)
def test_tiles_fall_into_waves(rows, columns, waves):
    large_only = replace(PLAIN, tile_loss=1e9)  # no other tile, no other way
    seconds = product_seconds(Product(1, rows, columns, 1024), RATES, large_only)
    partial = seconds - waves * ONE_TILE
    assert partial <= 0 or partial == pytest.approx(0)
    if (rows, columns) in ((512, 256), (1024, 256)):
        assert seconds == pytest.approx(waves * ONE_TILE)


def test_a_product_of_whole_waves_reaches_the_share():
    n = 4096
    signature = _op("mm.default", [spec(n, n), spec(n, n)], [spec(n, n)], "_,_")
    cost = ROOFLINE.cost(signature)
    assert cost.flops == 2 * n**3
    assert cost.seconds == pytest.approx(cost.flops / 50e12 + LEAST)


def test_each_type_has_its_rate():
    n, peaks = (
        4096,
        {"bfloat16": 100e12, "float16": 100e12, "float32": 10e12, "float64": 5e12, "float8_e4m3fn": 200e12},
    )
    for dtype, peak in peaks.items():
        operands = [spec(n, n, dtype=dtype), spec(n, n, dtype=dtype)]
        cost = ROOFLINE.cost(_op("mm.default", operands, [spec(n, n, dtype=dtype)], "_,_"))
        assert cost.seconds == pytest.approx(cost.flops / (peak * 0.5) + LEAST), dtype


def test_float32_convolutions_use_tf32_from_ampere_on():
    inputs = [spec(64, 256, 64, 64, dtype="float32"), spec(256, 256, 3, 3, dtype="float32")]
    outputs = [spec(64, 256, 64, 64, dtype="float32")]
    signature = _op("convolution.default", inputs, outputs, "_,_,None,[1,1],[1,1],[1,1],False,[0,0],1")
    flops = 2 * 64 * 64 * 64 * 256 * 256 * 9
    assert ROOFLINE.cost(signature).seconds == pytest.approx(flops / (50e12 * 0.5 * 0.5) + LEAST)
    turing = Roofline(replace(CARD, capability=(7, 5)), PLAIN)
    assert turing.cost(signature).seconds == pytest.approx(flops / (10e12 * 0.5 * 0.5) + LEAST)


def test_a_depthwise_convolution_does_not_waste_tiles():
    inputs, outputs = [spec(8, 64, 32, 32), spec(64, 1, 3, 3)], [spec(8, 64, 32, 32)]
    signature = _op("convolution.default", inputs, outputs, "_,_,None,[1,1],[1,1],[1,1],False,[0,0],64")
    cost = ROOFLINE.cost(signature)
    assert cost.seconds - LEAST <= max(cost.flops / (10e12 * 0.3), cost.n_bytes / 500e9) * 1.0001


_SIZES = st.integers(1, 5000)


@settings(max_examples=200, deadline=None)
@given(_SIZES, _SIZES, _SIZES, st.integers(0, 2))
def test_a_larger_product_never_ends_sooner_and_none_beats_the_peak(rows, columns, inner, which):
    sizes = [rows, columns, inner]
    product = Product(1, *sizes)
    sizes[which] += 64
    larger = Product(1, *sizes)
    calibration = replace(PLAIN, tile_us=1.0, tile_loss=0.3)
    seconds = product_seconds(product, RATES, calibration)
    assert 0 < seconds <= product_seconds(larger, RATES, calibration)
    assert seconds >= product.flops / (100e12 * 0.5) * 0.9999


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1 << 26), st.integers(0, 1 << 20))
def test_more_elements_never_take_less(n, more):
    card = Roofline(CARD, replace(PLAIN, cache_gain=1.0))
    assert card.cost(_add(n)).seconds <= card.cost(_add(n + more)).seconds


# -- attention ----------------------------------------------------------------------------------------------------

_FLASH = "_scaled_dot_product_flash_attention"


def _attend(name: str, width: int, length: int, causal: str = "False") -> Signature:
    qkv = [spec(1, 8, length, width)] * 3
    return _op(f"{name}.default", qkv, [spec(1, 8, length, width)], f"_,_,_,0.0,{causal},False")


def test_attention_reaches_its_share_and_narrow_heads_less():
    wide, narrow = (ROOFLINE.cost(_attend(_FLASH, width, 4096)) for width in (128, 64))
    assert wide.seconds == pytest.approx(wide.flops / 50e12 + LEAST)
    assert narrow.seconds == pytest.approx(narrow.flops / 25e12 + LEAST)


def test_a_causal_mask_leaves_out_half():
    whole, causal = (ROOFLINE.cost(_attend(_FLASH, 128, 4096, is_causal)) for is_causal in ("False", "True"))
    assert causal.seconds - LEAST == pytest.approx((whole.seconds - LEAST) / 2)


def test_few_blocks_leave_processors_idle():
    card = Roofline(replace(CARD, multiprocessors=128), PLAIN)
    cost = card.cost(_attend(_FLASH, 128, 1024))  # 8 heads of 8 blocks
    assert cost.seconds == pytest.approx(2 * cost.flops / 50e12 + LEAST)


def test_kernels_that_save_memory_otherwise_are_slower():
    cost = ROOFLINE.cost(_attend("_scaled_dot_product_efficient_attention", 128, 4096))
    assert cost.seconds == pytest.approx(cost.flops / 25e12 + LEAST)


# -- every device, every class ------------------------------------------------------------------------------------

_EXAMPLES = {
    OpClass.FREE: "view", OpClass.MATMUL: "mm", OpClass.CONVOLUTION: "convolution", OpClass.ATTENTION: _FLASH,
    OpClass.ATTENTION_BACKWARD: _FLASH + "_backward", OpClass.RECURRENT: "_cudnn_rnn", OpClass.ELEMENTWISE: "mul",
    OpClass.COPY: "copy_", OpClass.FILL: "zero_", OpClass.RANDOM: "uniform_", OpClass.REDUCTION: "sum",
    OpClass.NORM: "native_layer_norm", OpClass.NORM_BACKWARD: "native_layer_norm_backward", OpClass.SOFTMAX: "_log_softmax",
    OpClass.POOLING: "max_pool2d_with_indices", OpClass.LOOKUP: "embedding", OpClass.SCATTER: "index_put_",
    OpClass.SORT: "topk", OpClass.LOSS: "nll_loss_forward", OpClass.OPTIMIZER: "_foreach_add_", OpClass.TRANSFER: "_to_cpu",
    OpClass.SPECTRAL: "_fft_c2c", OpClass.SOLVER: "linalg_qr", OpClass.OTHER: "no_such_operator",
}  # fmt: skip


def test_every_class_can_be_reached():
    assert {*_EXAMPLES, OpClass.FUSED} == set(OpClass)
    assert class_of("inductor.triton_poi_fused_add_0") is OpClass.FUSED
    assert {class_of(f"aten.{name}.default"): name for name in _EXAMPLES.values()} == _EXAMPLES


@pytest.mark.parametrize("device", known_devices())
def test_every_device_gives_finite_times_for_every_class(device):
    roofline = roofline_of(find_device(device))
    for dtype in ("float16", "bfloat16", "float32", "float64", "int64", "float8_e4m3fn", "bool", "complex64"):
        for found, name in _EXAMPLES.items():
            shapes = [spec(4, 8, 64, 64, dtype=dtype)] * 3
            cost = roofline.cost(_op(f"{name}.default", shapes, shapes[:1], "_,_,_"))
            assert (0 < cost.seconds < 1) or found is OpClass.FREE, (name, dtype, cost)
            assert 0 <= cost.host_seconds < 1


def test_every_chapter_of_the_calibration_is_complete_and_says_where_it_is_from():
    names = {field.name for field in fields(Calibration)}
    chapters = known_generations()
    for chapter, entries in chapters.items():
        for name, entry in entries.items():
            assert name == "inherits" or (name in names and entry["source"] and entry["unit"]), (
                chapter,
                name,
            )
            assert name == "inherits" or entry["value"] > 0
    assert set(chapters["ampere"]) == names
    assert {generation_of(device) for device in known_devices().values()} <= set(chapters)
    shares = [name for name in names if name.endswith("_share")]
    for device in known_devices().values():
        calibration = calibration_of(device)
        assert all(0 < getattr(calibration, name) <= 1 for name in shares), device.id


def test_the_generation_follows_family_and_capability():
    found = {name: generation_of(find_device(name)) for name in known_devices()}
    expected = {"v100-32gb": "volta", "a100-80gb": "ampere", "rtx3090-24gb": "ampere", "l40s-48gb": "ada", "cpu": "cpu",
                "h200-141gb": "hopper", "b200-180gb": "blackwell", "mi300x-192gb": "cdna3", "ascend-910b-64gb": "ascend",
                "2080ti-11gb": "volta"}  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_the_description_says_whose_runs_it_was_calibrated_on():
    for device, generation in (("a100-80gb", "ampere"), ("2080ti-11gb", "ampere"), ("b200-180gb", "hopper")):
        assert (
            f"{device}, calibrated on published runs of {generation} devices"
            in roofline_of(find_device(device)).description
        )


def test_operators_known_to_torch_are_known_here():
    """What training uses; the rest of torch's thousand is bounded by bytes."""
    names = "mm addmm bmm add mul native_layer_norm _softmax embedding native_dropout cat clone _to_copy gelu silu sum mean"
    assert all(class_of(f"aten.{name}.default") is not OpClass.OTHER for name in names.split())
