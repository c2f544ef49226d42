"""The table of workspaces: sizes of libraries to the byte, and entries of users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.devices import find_device, known_devices
from windtunnel.errors import UsageError
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.memory.workspace.dimensions import Dimensions, settings_of
from windtunnel.memory.workspace.table import ACCURACIES, WorkspaceTable, family_of

TABLE = WorkspaceTable.built_in()
A100, H100, B200 = (find_device(name) for name in ("a100-80gb", "h100-80gb", "b200-180gb"))
MI300 = replace(H100, name="AMD Instinct MI300X", capability=(9, 4))
MI250 = replace(MI300, name="AMD Instinct MI250X", capability=(9, 0))
NPU = find_device("ascend-910b-64gb")
MIB = 1 << 20


def spec(*shape, dtype="bfloat16"):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(shape, tuple(reversed(strides)), dtype)


def op(name, inputs, outputs=(), scalars=""):
    return Signature(name, tuple(inputs), tuple(outputs), scalars)


MM = op("aten.mm.default", [spec(64, 32), spec(32, 16)], [spec(64, 16)], "_,_")
BIASED = op("aten.addmm.default", [spec(16), spec(64, 32), spec(32, 16)], [spec(64, 16)], "_,_,_")


def kept(signature, device, env=None, **more):
    demand = TABLE.demand_of(signature, device, settings_of(env or {}, False))
    return {k.handle: sum(k.sizes) for k in demand.kept}


def call(signature, device, deterministic=False):
    demand = TABLE.demand_of(signature, device, settings_of({}, deterministic))
    assert demand.failed == ()
    return list(demand.call)


# -- cuBLAS -------------------------------------------------------------------------------------------------


def test_cublas_handles_have_the_sizes_of_torch():
    assert kept(MM, A100) == {"cublas": 8_519_680}
    assert kept(MM, H100) == {"cublas": 33_554_432}
    assert kept(MM, B200) == {"cublas": 8_519_680}  # sm_90 exactly
    assert kept(MM, MI300) == {"hipblas": 128 * MIB}
    assert kept(MM, MI250) == {"hipblas": 32 * MIB}


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [(":4096:8", 32 * MIB), (":4096:2:16:8", 8_519_680), (":16:8", 128 << 10), ("nonsense", 33_554_432), ("", 33_554_432)],
)  # fmt: skip
def test_cublas_workspace_config_is_the_sum_of_its_pairs(text, n_bytes):
    assert kept(MM, H100, {"CUBLAS_WORKSPACE_CONFIG": text}) == {"cublas": n_bytes}


def test_a_bias_goes_through_cublaslt():
    assert kept(BIASED, A100) == {"cublas": 8_519_680, "cublaslt": MIB}
    assert kept(BIASED, A100, {"CUBLASLT_WORKSPACE_SIZE": "4096"})["cublaslt"] == 4 * MIB
    assert kept(BIASED, A100, {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}) == {"cublas": 8_519_680}
    assert kept(BIASED, A100, {"DISABLE_ADDMM_CUDA_LT": "1"}) == {"cublas": 8_519_680}
    assert kept(BIASED, MI300) == {"hipblas": 128 * MIB, "hipblaslt": 76 * MIB}
    added = op("aten.addmm.default", [spec(64, 16), spec(64, 32), spec(32, 16)], [spec(64, 16)], "_,_,_")
    assert kept(added, A100) == {"cublas": 8_519_680}  # a matrix is added, no bias
    scaled = op("aten._scaled_mm.default", [spec(64, 32), spec(32, 16), spec(1), spec(1)], [spec(64, 16)])
    assert kept(scaled, H100) == {"cublas": 33_554_432, "cublaslt": MIB}


def test_transformer_engine_keeps_one_for_the_device():
    gemm = op("transformer_engine.generic_gemm.default", [spec(64, 32), spec(32, 16)], [spec(64, 16)])
    assert kept(gemm, A100) == {"transformer-engine": 4_194_304}
    assert kept(gemm, H100) == {"transformer-engine": 33_555_456}
    grouped = op("transformer_engine.te_general_grouped_gemm", [spec(64, 32)], [spec(64, 16)])
    assert kept(grouped, H100) == {"transformer-engine-grouped": 4 * 33_555_456}


# -- attention ----------------------------------------------------------------------------------------------


def sdpa_backward(b, h, hk, sq, sk, d, kernel="flash", dtype="bfloat16", dropout=0.0, causal=True):
    q, k = spec(b, h, sq, d, dtype=dtype), spec(b, hk, sk, d, dtype=dtype)
    scalars = {
        "flash": f"_,_,_,_,_,_,None,None,{sq},{sk},{dropout},{causal},_,_,scale=0.125",
        "efficient": f"_,_,_,_,None,_,_,_,_,{dropout},[True,True,True,False],{causal}",
        "cudnn": f"_,_,_,_,_,_,_,_,None,None,None,{sq},{sk},{dropout},{causal}",
    }[kernel]
    return op(
        f"aten._scaled_dot_product_{kernel}_attention_backward.default", [q, q, k, k, q], [q, k, k], scalars
    )


def test_flash_attention_backward_to_the_byte():
    plain = sdpa_backward(2, 16, 16, 1000, 1000, 64)
    assert call(plain, A100) == [2 * 16 * 1024 * 4, 2 * 1024 * 16 * 64 * 4]
    grouped = sdpa_backward(1, 28, 4, 4096, 4096, 80)  # heads of 80 are rounded to 96
    expanded = 4096 * 28 * 80 * 2
    assert call(grouped, A100) == [28 * 4096 * 4, 4096 * 28 * 96 * 4, expanded, expanded]
    wide = sdpa_backward(1, 2, 2, 128, 128, 160)  # above 128 to a multiple of 64
    assert call(wide, A100) == [2 * 128 * 4, 128 * 2 * 192 * 4]


def test_deterministic_flash_attention_keeps_a_sum_per_split():
    assert call(sdpa_backward(2, 16, 16, 1024, 1024, 64), A100, deterministic=True) == [
        2 * 16 * 1024 * 4,
        4 * 2 * 1024 * 16 * 64 * 4,  # 108 multiprocessors by 32 heads
    ]


def test_packed_flash_attention_pads_every_sequence():
    q, k, lengths = spec(5000, 8, 64), spec(5000, 8, 64), spec(4, dtype="int32")
    scalars = "_,_,_,_,_,_,_,_,2000,2000,0.0,True,_,_"
    packed = op(
        "aten._flash_attention_backward.default",
        [q, q, k, k, q, spec(8, 5000), lengths, lengths],
        [q, k, k],
        scalars,
    )
    rows = 5000 + 128 * 3
    assert call(packed, A100) == [8 * rows * 4, rows * 8 * 64 * 4]


def sdpa(b, h, hk, sq, sk, d, dropout=0.0):
    q, k = spec(b, h, sq, d), spec(b, hk, sk, d)
    return op(
        "aten._scaled_dot_product_flash_attention.default",
        [q, k, k],
        [q],
        f"_,_,_,{dropout},True,scale=0.125",
    )


def test_flash_attention_forward_takes_scratch_only_to_split_keys():
    assert call(sdpa(8, 32, 32, 4096, 4096, 128), A100) == []  # queries fill the card
    # 8 heads x 8 blocks of queries on 216 places: 2 blocks of 256 keys are taken apart
    assert call(sdpa(2, 4, 4, 512, 512, 64), A100) == [2 * 8 * 512 * 4, 2 * 8 * 512 * 64 * 4]
    assert call(sdpa(2, 4, 4, 512, 512, 64, dropout=0.1), A100) == []
    # One token after 8192: 8 heads of keys, 4 queries each; 64 blocks of keys, 216 places.
    # 22 splits are 3 blocks each and fill 176 / 216; 16 are 4 each and fill less than 85 % of that.
    splits = 22
    assert call(sdpa(1, 32, 8, 1, 8192, 128), A100) == [splits * 32 * 4, splits * 32 * 128 * 4]


def test_flash_attention_3_backward_to_the_byte():
    def backward(b, sq, h, hk, d, causal):
        q, k = spec(b, sq, h, d), spec(b, sq, hk, d)
        return op("flash_attn_3.bwd.default", [q, q, k, k, q], [q, k, k], f"_,_,_,_,_,is_causal={causal}")

    assert call(backward(2, 1000, 16, 16, 128, True), H100) == [
        2 * 16 * 1024 * 4, 2 * 16 * 1024 * 4, 2 * 16 * 1024 * 128 * 4, 16 * 2 * 16 * 4,
    ]  # fmt: skip
    rows, keys = 1040, 1024  # blocks of 80 queries and of 128 keys
    assert call(backward(1, 1000, 8, 2, 128, False), H100) == [
        8 * rows * 4, 8 * rows * 4, 8 * rows * 128 * 4, 2 * keys * 128 * 4, 2 * keys * 128 * 4, 13 * 8 * 4,
    ]  # fmt: skip


def test_efficient_attention_backward():
    half = sdpa_backward(2, 4, 4, 512, 512, 64, kernel="efficient")
    assert call(half, A100) == [4 * 8 * (8 * 1 * (64 * 64 + 4))]
    single = sdpa_backward(2, 4, 4, 512, 512, 64, kernel="efficient", dtype="float32")
    assert call(single, A100) == [4 * 8 * (8 * 1 * (64 * 64 + 4)), 4 * 8 * 512]
    # heads of 256 do not stay in registers: every split of the keys keeps dK and dV
    wide = sdpa_backward(1, 1, 1, 128, 128, 256, kernel="efficient")
    assert call(wide, A100) == [4 * (2 * 64 * (256 + 256) + 1 * 4 * (128 * 64 + 4))]
    one = sdpa_backward(1, 1, 1, 64, 64, 64, kernel="efficient")
    assert call(one, A100) == []  # one block of keys: dQ needs no accumulator


# -- other kernels ------------------------------------------------------------------------------------------


def test_reductions_over_lists_of_tensors():
    norm = op(
        "aten._foreach_norm.Scalar",
        [spec(1000, 256), spec(768), spec(5)],
        [spec(), spec(), spec()],
        "[_,_,_],2.0",
    )
    assert call(norm, A100) == [3 * 4 * 4]  # 256,000 elements are 4 chunks of 65,536


def test_sorting_up_to_4096_happens_in_place():
    assert call(op("aten.sort.stable", [spec(8, 4096)], [spec(8, 4096)], "_,stable=False"), A100) == []
    long = call(op("aten.sort.stable", [spec(100_000)], [spec(100_000)], "_,stable=False"), A100)
    assert long[0] == 800_000
    assert long[1] >= 100_000 * (2 + 8)


def test_only_accumulating_index_put_sorts():
    inputs = [spec(1000, 256), spec(4096, dtype="int64"), spec(4096, 256)]
    assert call(op("aten.index_put_.default", inputs, [], "_,[_],_"), A100) == []
    assert call(op("aten.index_put_.default", inputs, [], "_,[_],_,False"), A100) == []
    assert sum(call(op("aten.index_put_.default", inputs, [], "_,[_],_,True"), A100)) >= 4096 * 48


def test_kernels_without_scratch_have_none():
    for name in (
        "_log_softmax",
        "nll_loss_forward",
        "_foreach_add_",
        "_fused_adamw_",
        "add",
        "native_layer_norm",
    ):
        demand = TABLE.demand_of(op(f"aten.{name}.default", [spec(4096, 4096)], [spec(4096, 4096)]), H100)
        assert (demand.call, demand.kept, demand.failed) == ((), (), ()), name


def test_ascend_kernels_take_what_was_measured():
    square = [spec(4096, 4096), spec(4096, 4096)]
    assert call(op("aten.mm.default", square, square[:1]), NPU) == [20 * MIB]
    assert call(op("npu.npu_rms_norm.default", square, square[:1]), NPU) == [16 * MIB]
    assert call(op("aten.topk.default", square[:1], square), NPU) == [8 * MIB]
    heads = [spec(1, 64, 4096, 128)] * 3
    attention = op("npu.npu_fusion_attention.default", heads, heads[:1], "_,_,_,64,'BNSD'")
    assert call(attention, NPU) == [76 * MIB]
    indices = [spec(100, 8), spec(8192, dtype="int64"), spec(8192, 8)]
    assert call(op("aten.scatter_add_.default", indices), NPU) == [16 * MIB + 4 * 8192]
    assert call(op("memcpy.host_to_device", square), NPU) == []


def test_every_entry_has_a_source_and_every_device_a_family():
    for entry in TABLE.entries:
        assert entry.source
        assert "\n" not in entry.source
        assert entry.accuracy in ACCURACIES
    assert len({entry.name for entry in TABLE.entries}) == len(TABLE.entries)
    assert {family_of(device) for device in known_devices().values()} <= {"cuda", "rocm", "npu", "cpu"}


def test_dimensions_of_families():
    def read(signature, names):
        dimensions = Dimensions(signature, A100)
        return [dimensions[name] for name in names.split()]

    assert read(MM, "m k n batch") == [64, 32, 16, 1]
    assert read(BIASED, "m k n in0_ndim in_bytes out_bytes n_inputs") == [64, 32, 16, 1, 5152, 2048, 3]
    bmm = op("aten.bmm.default", [spec(7, 5, 3), spec(7, 3, 2)], [spec(7, 5, 2)])
    assert read(bmm, "batch m k n") == [7, 5, 3, 2]
    linear = op("aten.linear.default", [spec(7, 5, 3), spec(2, 3)], [spec(7, 5, 2)])
    assert read(linear, "batch m k n") == [7, 5, 3, 2]
    images, filters, result = spec(2, 6, 32, 30), spec(16, 3, 5, 3), spec(2, 16, 28, 28)
    conv = op(
        "aten.convolution.default", [images, filters], [result], "_,_,None,[1,1],[0,0],[1,1],False,[0,0],2"
    )
    assert read(conv, "n c h w k r s p q groups is_channels_last") == [
        2,
        6,
        32,
        30,
        16,
        5,
        3,
        28,
        28,
        2,
        False,
    ]
    sbh = [spec(10240, 1, 1792), spec(10240, 1, 256), spec(10240, 1, 256)]
    fused = op("npu.npu_fusion_attention.default", sbh, sbh[:1], "_,_,_,14,'SBH',atten_mask=_,scale=0.08")
    assert read(fused, "b h hk sq sk d dv") == [1, 14, 2, 10240, 10240, 128, 128]
    with pytest.raises(KeyError):
        read(MM, "sq")
    with pytest.raises(KeyError):
        read(MM, "in5_numel")


# -- entries of users ---------------------------------------------------------------------------------------

ENTRY = """
[mine]
devices = ["cuda"]
operators = ["my.kernel"]
bytes = "in0_numel * 4"
source = "measured here"
"""


def test_a_user_adds_an_entry_and_wins(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ENTRY + '[sort]\ndevices = ["cuda"]\noperators = ["sort"]\nbytes = 7\nsource = "x"\n')
    table = TABLE.with_file(path)
    assert table.demand_of(op("my.kernel.default", [spec(10)]), A100).call == (40,)
    assert table.demand_of(op("aten.sort.default", [spec(100_000)]), A100).call == (7,)
    assert len(table.entries) == len(TABLE.entries) + 1  # the built-in `sort` is gone
    assert table.demand_of(MM, A100).kept == TABLE.demand_of(MM, A100).kept


def test_an_entry_for_one_call_replaces_ours_on_its_operators(tmp_path):
    (tmp_path / "mine.toml").write_text(ENTRY.replace("my.kernel", "aten.topk"))
    table = TABLE.with_file(tmp_path / "mine.toml")
    assert table.demand_of(op("aten.topk.default", [spec(10)]), A100).used == ("mine",)


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('["cuda"]', '["tpu"]', "'tpu' is none of cuda, rocm, npu, cpu"),
        ('"in0_numel * 4"', '"in0_numel ** 4"', "'in0_numel \\*\\* 4' is not allowed"),
        ('"in0_numel * 4"', '"rows * 4"', "'rows' is not a dimension of any operator"),
        ('"in0_numel * 4"', "[]", "bytes is an empty list"),
        ('"in0_numel * 4"', "true", "True is not an expression"),
        ('source = "measured here"', "", "it lacks source"),
        (
            'source = "measured here"',
            'source = "x"\nlifetime = "ever"',
            "'ever' is none of call, handle, process",
        ),
        (
            'source = "measured here"',
            'source = "x"\naccuracy = "good"',
            "'good' is none of exact, fitted, bound",
        ),
        ('source = "measured here"', 'source = "x"\ncapability = "9"', "capability is '9'"),
        ('source = "measured here"', 'source = "x"\nbyte = 3', "'byte' is not a field"),
        ('source = "measured here"', 'source = "x"\nlet = 3', "let is 3"),
        ('["my.kernel"]', '"my.kernel"', "'my.kernel' is not a list of names"),
    ],
)
def test_a_wrong_entry_is_named_with_what_is_wrong(tmp_path, old, new, fact):
    (tmp_path / "mine.toml").write_text(ENTRY.replace(old, new))
    with pytest.raises(UsageError, match=f"workspace 'mine' in mine.toml: {fact}"):
        TABLE.with_file(tmp_path / "mine.toml")


def test_a_file_that_is_none_is_reported(tmp_path):
    with pytest.raises(UsageError, match="cannot read the workspace file"):
        TABLE.with_file(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[mine")
    with pytest.raises(UsageError, match="is not TOML"):
        TABLE.with_file(tmp_path / "bad.toml")
    (tmp_path / "flat.toml").write_text("devices = 3")
    with pytest.raises(UsageError, match=r"workspace .devices. in flat.toml: it is 3, not a table"):
        TABLE.with_file(tmp_path / "flat.toml")


def test_capability_is_a_range(tmp_path):
    (tmp_path / "mine.toml").write_text(ENTRY + 'capability = "8.0-8.9"')
    table = TABLE.with_file(tmp_path / "mine.toml")
    kernel = op("my.kernel", [spec(10)])
    assert table.demand_of(kernel, A100).call == (40,)
    assert table.demand_of(kernel, H100).call == ()
