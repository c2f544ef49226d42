"""MindSpore's primitives at levels 2 and 3: classes, operations, bytes and tokens, by hand and against torch's twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.timing.fixed_costs import recording_of
from tests.timing.signatures import spec
from windtunnel.devices import find_device
from windtunnel.events.model import Alloc, Op, Phase, Role, Signature, TensorSpec
from windtunnel.timing.operators.flops import attention_of, flops_of
from windtunnel.timing.operators.op_cost import Basis
from windtunnel.timing.operators.operator_classes import OpClass, class_of, is_known
from windtunnel.timing.roofline.matmul import Product, products_of
from windtunnel.timing.roofline.model import roofline_of
from windtunnel.timing.roofline.moved_bytes import bytes_moved
from windtunnel.timing.row_costs import row_costs
from windtunnel.timing.step_profile import tokens_of

PRIMITIVES = (Path(__file__).parent / "data" / "mindspore_primitives.txt").read_text(encoding="utf-8").split()
ASCEND = find_device("ascend-910b-64gb")
# What recordings have as collectives.
COMMUNICATION = (
    "AllGather", "AllReduce", "AllTo", "Allto", "Barrier", "BatchISend", "Broadcast", "Collective", "DistComm", "Hcom", "Host",
    "InnerComm", "Receive", "Reduce", "Send",
)  # fmt: skip
# Fused with communication, the user's own, or of another field: bounded by their bytes and named in the report.
WITHOUT_A_CLASS = {
    "ComputeAccidentalHits", "CustomExt", "EditDistance", "FSEDecode", "MoeDistributeCombine", "MoeDistributeDispatch",
    "NoRepeatNGram", "SampleDistortedBoundingBoxV2",
}  # fmt: skip
NUMBER = TensorSpec((), (), "int64")
SWITCH = TensorSpec((), (), "bool")


def ms(name: str, inputs, outputs=()) -> Signature:
    return Signature(f"ms.{name}", tuple(inputs), tuple(outputs), "")


def aten(name: str, inputs, outputs=(), scalars: str = "") -> Signature:
    return Signature(f"aten.{name}.default", tuple(inputs), tuple(outputs), scalars)


# -- classes ------------------------------------------------------------------------------------------------


def test_all_primitives_of_the_wheel_have_a_class_but_for_those_named_here():
    unknown = {name for name in PRIMITIVES if not is_known(f"ms.{name}")}
    assert len(PRIMITIVES) > 1600
    assert {name for name in unknown if not name.startswith(COMMUNICATION)} == WITHOUT_A_CLASS
    assert len(unknown) < 0.05 * len(PRIMITIVES)


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (
            OpClass.MATMUL,
            "MatMul MatMulExt BatchMatMul BatchMatMulExt Dense Addmm GroupedMatmulV4 GmmBackward EinsumExt",
        ),
        (OpClass.CONVOLUTION, "Conv2D Conv2DExt ConvolutionGrad Conv2DBackpropInput Conv2DBackpropFilter"),
        (OpClass.ATTENTION, "FlashAttentionScore PromptFlashAttention PagedAttention"),
        (OpClass.ATTENTION_BACKWARD, "FlashAttentionScoreGrad SparseFlashAttentionGrad"),
        (OpClass.NORM, "RmsNorm LayerNorm LayerNormExt BatchNorm BNTrainingUpdate AddRmsNorm GroupNorm"),
        (
            OpClass.NORM_BACKWARD,
            "RmsNormGrad LayerNormGrad LayerNormGradExt BatchNormGrad BNTrainingReduceGrad",
        ),
        (OpClass.SOFTMAX, "Softmax SoftmaxBackward LogSoftmax LogSoftmaxExt LogSoftmaxGrad"),
        (OpClass.LOSS, "NLLLoss NLLLossGrad CrossEntropyLoss SparseSoftmaxCrossEntropyWithLogits MSELossExt"),
        (
            OpClass.ELEMENTWISE,
            "Add AddExt SubExt Mul Muls InplaceAddExt SiLU SiLUGrad Swiglu SwigluGrad GeLUGrad BiasAdd Select MaskedFill"
            " RotaryPositionEmbedding RotaryPositionEmbeddingGrad ApplyRotaryPosEmb AssignAdd ReluGrad DropoutDoMask",
        ),
        (OpClass.COPY, "Cast Copy Contiguous InplaceCopy Concat Transpose Split StridedSlice Tile Assign"),
        (OpClass.FILL, "Zeros OnesLike InplaceZero FillScalar OneHot Arange"),
        (OpClass.RANDOM, "DropoutGenMask DropoutExt InplaceNormal UniformExt RandExt"),
        (OpClass.REDUCTION, "ReduceSum SumExt MeanExt BiasAddGrad ArgMaxWithValue Norm AllFinite"),
        (OpClass.LOOKUP, "Embedding Gather GatherD GatherNd IndexSelect EmbeddingLookup MoeTokenPermute"),
        (
            OpClass.SCATTER,
            "EmbeddingDenseBackward ScatterAddExt GatherDGradV2 UnsortedSegmentSum InplaceIndexPut",
        ),
        (OpClass.SORT, "TopkExt TopK SortExt CumsumExt Unique2"),
        (
            OpClass.OPTIMIZER,
            "AdamW Adam ApplyMomentum Momentum SGD AdamWeightDecay FusedAdam AdamApplyOneWithDecayAssign",
        ),
        (OpClass.FREE, "Reshape View ExpandDims Squeeze SplitTensorView TransposeView SelectExtView Depend"),
        (OpClass.TRANSFER, "CopyToDevice CopyToHost MoveTo"),
        (OpClass.POOLING, "MaxPool AvgPoolGrad UpsampleNearest2D"),
    ],
)
def test_the_operators_programs_are_made_of(found, names):
    assert {name: class_of(f"ms.{name}") for name in names.split()} == dict.fromkeys(names.split(), found)


def test_what_makes_no_storage_is_free_under_the_name_of_a_copy():
    turned = ms("Transpose", [spec(64, 32)], [spec(32, 64)])
    assert bytes_moved(turned) == 2 * 64 * 32 * 2
    view = Signature("ms.Transpose.view", turned.inputs, turned.outputs, "")
    assert bytes_moved(view) == 0
    cost = roofline_of(ASCEND).cost(view)
    assert (cost.seconds, cost.basis) == (0.0, Basis.FREE)


# -- operations ---------------------------------------------------------------------------------------------

X, W, Y = spec(64, 32), spec(32, 16), spec(64, 16)


@pytest.mark.parametrize(
    "signature",
    [
        ms("MatMul", [X, W], [Y]),
        ms("MatMul", [X, spec(16, 32), SWITCH, SWITCH], [Y]),  # transpose_b
        ms("MatMul", [spec(32, 64), W, SWITCH, SWITCH], [Y]),  # transpose_a
        ms("MatMul", [spec(32, 64), spec(16, 32), SWITCH, SWITCH], [Y]),
        ms("MatMulExt", [X, W], [Y]),
        ms("Mm", [X, W], [Y]),
        ms("Addmm", [Y, X, W], [Y]),
        ms("InplaceAddmm", [Y, X, W]),
        ms("Dense", [X, spec(16, 32), spec(16)], [Y]),
        ms("InplaceMatmulAdd", [spec(32, 64), spec(32, 16), spec(64, 16, dtype="float32")]),
        ms("EinsumExt", [X, W], [Y]),
    ],
)
def test_a_product_counts_the_same_however_it_is_written(signature):
    torch = aten("mm", [X, W], [Y])
    assert flops_of(signature) == flops_of(torch) == 2 * 64 * 32 * 16
    assert products_of(signature) == products_of(torch) == [Product(1, 64, 16, 32)]


@pytest.mark.parametrize(
    ("signature", "twin"),
    [
        (
            ms("BatchMatMul", [spec(8, 64, 32), spec(8, 16, 32), SWITCH, SWITCH], [spec(8, 64, 16)]),
            aten("bmm", [spec(8, 64, 32), spec(8, 32, 16)], [spec(8, 64, 16)]),
        ),
        (
            ms("BatchMatMulExt", [spec(8, 64, 32), spec(8, 32, 16)], [spec(8, 64, 16)]),
            aten("bmm", [spec(8, 64, 32), spec(8, 32, 16)], [spec(8, 64, 16)]),
        ),
        (
            ms("MatMulExt", [spec(4, 64, 32), W], [spec(4, 64, 16)]),
            aten("matmul", [spec(4, 64, 32), W], [spec(4, 64, 16)]),
        ),
        (
            ms("Dense", [spec(4, 64, 32), spec(16, 32)], [spec(4, 64, 16)]),
            aten("linear", [spec(4, 64, 32), spec(16, 32)], [spec(4, 64, 16)]),
        ),
        (ms("Mv", [X, spec(32)], [spec(64)]), aten("mv", [X, spec(32)], [spec(64)])),
        (ms("Dot", [spec(32), spec(32)], [spec()]), aten("dot", [spec(32), spec(32)], [spec()])),
        (
            ms("Conv2DExt", [spec(2, 8, 16, 16), spec(12, 4, 3, 3), spec(12)], [spec(2, 12, 14, 14)]),
            aten(
                "convolution", [spec(2, 8, 16, 16), spec(12, 4, 3, 3), spec(12)], [spec(2, 12, 14, 14)],
                "_,_,_,[1,1],[0,0],[1,1],False,[0,0],2",
            ),
        ),
        (
            ms(
                "ConvolutionGrad",
                [spec(2, 12, 14, 14), spec(2, 8, 16, 16), spec(12, 4, 3, 3), spec(12)],
                [spec(2, 8, 16, 16), spec(12, 4, 3, 3), spec(12)],
            ),
            aten(
                "convolution_backward",
                [spec(2, 12, 14, 14), spec(2, 8, 16, 16), spec(12, 4, 3, 3)],
                [spec(2, 8, 16, 16), spec(12, 4, 3, 3), spec(12)],
                "_,_,_,[12],[1,1],[0,0],[1,1],False,[0,0],2,[True,True,True]",
            ),
        ),
        (
            ms("ConvTranspose2D", [spec(2, 12, 14, 14), spec(12, 8, 3, 3)], [spec(2, 8, 16, 16)]),
            aten(
                "convolution", [spec(2, 12, 14, 14), spec(12, 8, 3, 3)], [spec(2, 8, 16, 16)],
                "_,_,None,[1,1],[0,0],[1,1],True,[0,0],1",
            ),
        ),
    ],
)  # fmt: skip
def test_operations_and_products_are_those_of_torchs_twin(signature, twin):
    assert flops_of(signature) == flops_of(twin) > 0
    assert products_of(signature) == products_of(twin) != []
    assert flops_of(signature) == sum(product.flops for product in products_of(signature))


def test_a_convolutions_gradients_one_at_a_time():
    gradient, data, weight = spec(2, 12, 14, 14), spec(2, 8, 16, 16), spec(12, 8, 3, 3)
    sizes = spec(4, dtype="int64")
    one = 2 * 2 * 14 * 14 * 12 * 8 * 9
    assert flops_of(ms("Conv2D", [data, weight], [gradient])) == one
    assert flops_of(ms("Conv2DBackpropInput", [gradient, weight, sizes], [data])) == one
    assert flops_of(ms("Conv2DBackpropFilter", [gradient, data, sizes], [weight])) == one
    unwanted = ms("ConvolutionGrad", [gradient, data, weight], [spec(0), weight, spec(12)])
    assert flops_of(unwanted) == one


def test_groups_of_rows_meet_their_own_matrix():
    rows, experts, result = spec(100, 32), spec(8, 32, 16), spec(100, 16)
    lengths = spec(8, dtype="int64")
    once = 2 * 100 * 32 * 16
    assert flops_of(ms("GroupedMatmulV4", [rows, experts, lengths], [result])) == once
    assert flops_of(ms("Gmm", [rows, experts, lengths], [result])) == once
    assert flops_of(ms("Gmm", [spec(32, 100), spec(100, 16), lengths], [experts])) == once
    assert flops_of(ms("GmmBackward", [result, rows, experts, lengths], [rows, experts])) == 2 * once
    assert flops_of(ms("InplaceGroupedMatmulAdd", [rows, result, lengths, experts])) == once
    listed = ms("GroupedMatmul", [X, rows, W, spec(32, 16)], [Y, result])
    assert flops_of(listed) == 2 * 64 * 32 * 16 + once


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (spec(2, 256, 512), spec(2, 384, 128)),  # BSH: 8 heads of 64, 2 of keys
        (spec(256, 2, 512), spec(384, 2, 128)),  # SBH
        (spec(2, 8, 256, 64), spec(2, 2, 384, 64)),  # BNSD
        (spec(2, 256, 8, 64), spec(2, 384, 2, 64)),  # BSND
    ],
)
def test_attention_is_read_off_the_softmax_statistics(query, key):
    row = spec(2, 8, 256, 8, dtype="float32")
    forward = ms("FlashAttentionScore", [query, key, key, NUMBER], [row, row, spec(1), query])
    backward = ms(
        "FlashAttentionScoreGrad",
        [query, key, key, query, row, row, spec(1), query],
        [query, key, key, spec(0)],
    )
    found = attention_of(forward)
    assert (found.n_heads, found.n_queries, found.n_keys, found.width, found.value_width) == (
        16,
        256,
        384,
        64,
        64,
    )
    assert flops_of(forward) == 2 * 2 * 16 * 256 * 384 * 64
    assert flops_of(backward) == 5 * flops_of(forward) / 2
    torch = Signature(
        "npu.npu_fusion_attention.default", (spec(2, 8, 256, 64), spec(2, 2, 384, 64), spec(2, 2, 384, 64)),
        (spec(2, 8, 256, 64),), "_,_,_,8,'BNSD'",
    )  # fmt: skip
    assert flops_of(torch) == flops_of(forward)


def test_a_compressed_mask_leaves_out_half_and_values_may_be_wider():
    row = spec(1, 4, 4096, 8, dtype="float32")
    query, value = spec(1, 4096, 4 * 192), spec(1, 4096, 4 * 128)
    mask = spec(2048, 2048, dtype="uint8")
    whole = ms("FlashAttentionScore", [query, query, value], [row, row, spec(1), value])
    masked = ms("FlashAttentionScore", [query, query, value, mask], [row, row, spec(1), value])
    assert flops_of(whole) == 2 * 4 * 4096 * 4096 * (192 + 128)
    assert flops_of(masked) == flops_of(whole) // 2


def test_tokens_one_after_the_other_count_as_one_sequence():
    row, query = spec(300, 4, 8, dtype="float32"), spec(300, 4, 64)
    found = attention_of(ms("FlashAttentionScore", [query] * 3, [row, row, spec(1), query]))
    assert (found.n_heads, found.n_queries, found.n_keys, found.width) == (4, 300, 300, 64)


@pytest.mark.parametrize(
    "name", ["FlashAttentionScore", "MatMul", "Conv2D", "GmmBackward", "EinsumExt", "Dense"]
)
def test_calls_of_another_form_are_bounded_by_their_bytes(name):
    for inputs, outputs in (
        ([], []),
        ([spec(4)], []),
        ([spec(0, 4), spec(4, 0)], [spec(0, 0)]),
        ([spec()], [spec()]),
    ):
        signature = ms(name, inputs, outputs)
        assert flops_of(signature) == 0
        assert roofline_of(ASCEND).cost(signature).seconds >= 0


FORMS = [
    ((), ()),
    ((spec(),), (spec(),)),
    ((spec(8, 16), spec(16, 8), spec(8)), (spec(8, 8),)),
    ((spec(4, dtype="int64"), spec(10, 8)), (spec(4, 8),)),
    ((spec(2, 3, 8, 8), spec(4, 3, 3, 3), NUMBER, spec(0)), (spec(2, 4, 6, 6), spec(0))),
    ((spec(2, 8, 64),) * 8, ()),
]


def test_no_primitive_in_any_form_breaks_the_model():
    costs = roofline_of(ASCEND)
    for name in PRIMITIVES:
        for inputs, outputs in FORMS:
            cost = costs.cost(ms(name, inputs, outputs))
            assert 0 <= cost.seconds < 1
            assert cost.flops >= 0
            assert cost.n_bytes >= 0


# -- bytes --------------------------------------------------------------------------------------------------


def test_the_table_of_an_embedding_is_not_read_as_a_whole():
    table, indices, rows = spec(50_000, 64), spec(2, 128, dtype="int64"), spec(2, 128, 64)
    wanted = bytes_moved(aten("embedding", [table, indices], [rows]))
    assert bytes_moved(ms("Embedding", [indices, table], [rows])) == wanted
    assert bytes_moved(ms("Gather", [table, indices, NUMBER, NUMBER], [rows])) == wanted
    gradient = ms("EmbeddingDenseBackward", [rows, indices], [table])
    assert bytes_moved(gradient) == bytes_moved(aten("embedding_dense_backward", [rows, indices], [table]))
    summed = ms("UnsortedSegmentSum", [rows, indices, NUMBER], [table])
    assert bytes_moved(summed) == bytes_moved(gradient)


@pytest.mark.parametrize("is_listed", [True, False])
def test_in_place_counts_the_same_whether_the_result_is_named_or_not(is_listed):
    x, y = spec(64, 32), spec(64, 32, dtype="float32")

    def in_place(name, *inputs):
        return bytes_moved(ms(name, inputs, inputs[:1] if is_listed else ()))

    assert in_place("InplaceAddExt", x, x) == bytes_moved(aten("add_", [x, x])) == 3 * 4096
    assert in_place("InplaceCopy", x, y) == bytes_moved(aten("copy_", [x, y])) == 4096 + 8192
    assert in_place("InplaceZero", x) == bytes_moved(aten("zero_", [x])) == 4096
    assert in_place("AssignAdd", x, x) == 3 * 4096
    target, indices, values = spec(1000, 8), spec(16, 8, dtype="int64"), spec(16, 8)
    wanted = bytes_moved(aten("scatter_add_", [target, indices, values]))
    assert in_place("InplaceScatterAdd", target, indices, values) == wanted
    assert in_place("InplaceScatterAdd", target, NUMBER, indices, values) == wanted


def test_optimizers_write_the_weight_and_its_states():
    full, one = spec(1000, 10, dtype="float32"), spec(1, dtype="float32")
    size = 40_000
    adam = ms("AdamW", [full, full, full, full, full, one], [full, full, full])
    assert bytes_moved(adam) == 7 * size  # the fourth is the third again, for want of amsgrad
    assert (
        bytes_moved(ms("ApplyMomentum", [full, full, spec(dtype="float32"), full, one], [full])) == 5 * size
    )
    assert bytes_moved(ms("Adam", [full, full, full, one, one, one, full], [full] * 3)) == 7 * size
    torch = Signature("aten._fused_adamw_.default", (full,) * 4, (), "[_],[_],[_],[_]")
    assert bytes_moved(torch) == 7 * size


def test_a_number_of_the_graph_costs_nothing_and_a_gradients_shape_is_not_read():
    x = spec(64, 32)
    assert bytes_moved(ms("BiasAdd", [x, spec(32), NUMBER], [x])) == 2 * 4096 + 64
    indices, values = spec(64, 1, dtype="int32"), spec(64, 1)
    gathered = ms("GatherDGradV2", [x, NUMBER, indices, values], [x])
    assert bytes_moved(gathered) == 4096 + 256 + 128


# -- time and tokens ----------------------------------------------------------------------------------------


def test_the_same_work_takes_the_same_time_under_either_name():
    x, w, y = spec(4096, 4096), spec(4096, 11008), spec(4096, 11008)
    row, heads = spec(1, 32, 4096, 8, dtype="float32"), spec(1, 32, 4096, 128)
    pairs = [
        (ms("MatMul", [x, w], [y]), aten("mm", [x, w], [y])),
        (ms("Dense", [x, spec(11008, 4096)], [y]), aten("linear", [x, spec(11008, 4096)], [y])),
        (ms("AddExt", [y, y], [y]), aten("add", [y, y], [y])),
        (ms("SiLUGrad", [y, y], [y]), aten("silu_backward", [y, y], [y])),
        (ms("Softmax", [y], [y]), aten("_softmax", [y], [y])),
        (
            ms("FlashAttentionScore", [heads] * 3, [row, row, spec(1), heads]),
            Signature(
                "npu.npu_fusion_attention.default",
                (heads,) * 3,
                (row, row, spec(1), heads),
                "_,_,_,32,'BNSD'",
            ),
        ),
    ]
    costs = roofline_of(ASCEND)
    for mindspore, torch in pairs:
        a, b = costs.cost(mindspore), costs.cost(torch)
        assert (a.seconds, a.flops, a.op_class, a.basis) == (b.seconds, b.flops, b.op_class, b.basis)


def recorded(calls, roles):
    """A recording whose storages 0, 1, ... have these roles; each call of a signature names the storages it reads."""
    births = [Alloc(storage, 1024, role=role) for storage, role in enumerate(roles)]
    ops = [Op(i, i, inputs) for i, (_, inputs) in enumerate(calls)]
    return recording_of([*births, *ops], [signature for signature, _ in calls])


def tokens(recording) -> int:
    return tokens_of(recording, np.arange(len(recording)), np.zeros(len(recording), bool))


def test_tokens_are_looked_up_in_a_table_of_weights():
    table, indices = spec(1000, 64), spec(2, 128, dtype="int32")
    embedding = (ms("Embedding", [indices, table], [spec(2, 128, 64)]), (1, 0))
    gather = (ms("Gather", [table, indices, NUMBER], [spec(2, 128, 64)]), (0, 1))
    routed = (ms("Gather", [spec(4096, 64), spec(77, dtype="int32"), NUMBER], [spec(77, 64)]), (2, 1))
    across = (ms("Gather", [table, spec(7, dtype="int32"), NUMBER], [spec(1000, 7)]), (0, 1))
    roles = [Role.WEIGHT, Role.INPUT, Role.UNKNOWN]
    assert tokens(recorded([embedding], roles)) == 256
    assert tokens(recorded([gather, routed], roles)) == 256
    assert tokens(recorded([routed], roles)) == 77
    assert tokens(recorded([across], roles)) == 0


def test_a_compiled_graphs_backward_is_asked_for_like_its_forward():
    x, w, y = spec(64, 32), spec(32, 16), spec(64, 16)
    ops = [Op(0, 0), Op(1, 0, phase=Phase.BACKWARD)]
    eager = row_costs(recording_of(ops, [ms("MatMul", [x, w], [y])]), roofline_of(ASCEND))
    graph = row_costs(recording_of(ops, [ms("MatMul", [x, w], [y])], is_graph=True), roofline_of(ASCEND))
    assert eager.host_seconds[1] > eager.host_seconds[0] == graph.host_seconds[0] == graph.host_seconds[1]
    assert eager.seconds.tolist() == graph.seconds.tolist()
