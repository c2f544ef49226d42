"""What kind of work an operator is: the classes that share a way of being slow.

    "aten.native_layer_norm.default", "ms.LayerNorm" ──> class_of ──> OpClass.NORM ──> roofline's efficiency of it

An operator in none of the lists is OTHER: it is bounded by the bytes it moves, and the caller reports it by name.
"""

from __future__ import annotations

from enum import Enum

from windtunnel.timing.operators.mindspore_names import NAMES as _MINDSPORE

__all__ = ["FUSIBLE", "OpClass", "base_name", "class_of", "is_causal_kernel", "is_known"]


class OpClass(Enum):
    """Values are the words of reports."""

    FREE = "free"  # another view of the same bytes, or none at all
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    RECURRENT = "recurrent"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    FILL = "fill"  # writes only
    RANDOM = "random"  # dropout and what draws numbers
    REDUCTION = "reduction"
    NORM = "norm"
    NORM_BACKWARD = "norm backward"
    SOFTMAX = "softmax"
    POOLING = "pooling"  # and resampling: each output reads a window
    LOOKUP = "lookup"
    SCATTER = "scatter"
    SORT = "sort"  # and scans, whose passes depend on each other
    LOSS = "loss"
    OPTIMIZER = "optimizer"  # many tensors in one kernel
    TRANSFER = "transfer"  # between host and device
    SPECTRAL = "spectral"  # Fourier transforms
    SOLVER = "solver"  # dense linear algebra
    FUSED = "fused"  # a kernel that a compiler made of several operators
    OTHER = "other"


# What a compiler puts into one kernel with its neighbours.
FUSIBLE = frozenset(
    {
        OpClass.ELEMENTWISE, OpClass.COPY, OpClass.FILL, OpClass.RANDOM, OpClass.REDUCTION, OpClass.NORM,
        OpClass.NORM_BACKWARD, OpClass.SOFTMAX, OpClass.LOSS, OpClass.LOOKUP,
    }
)  # fmt: skip

_NAMES: dict[OpClass, str] = {
    OpClass.FREE: """
        _conj _reshape_alias _unsafe_view _neg_view alias as_strided chunk data detach diagonal empty empty_like
        empty_strided empty_permuted expand expand_as flatten imag is_pinned lift lift_fresh narrow new_empty
        new_empty_strided numpy_T permute real record_stream reshape resize resize_as select set set_data size slice
        split split_with_sizes squeeze stride sym_numel sym_size sym_storage_offset sym_stride t transpose unbind
        unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_complex
        view_as_real movedim moveaxis swapaxes swapdims mT mH adjoint ravel broadcast_to broadcast_tensors
        _local_scalar_dense item _assert_async _assert_tensor_metadata _functional_assert_async
    """,
    OpClass.MATMUL: """
        mm bmm matmul mv dot vdot addmm addmv addbmm addr baddbmm ger outer inner linear mkldnn_linear _int_mm
        _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _addmm_activation einsum
        tensordot bilinear _trilinear linear_backward matmul_backward _weight_int4pack_mm _weight_int8pack_mm
        _mixed_dtypes_linear chain_matmul _sparse_semi_structured_mm _sparse_semi_structured_linear
        _cslt_sparse_mm npu_linear npu_bmmV2 npu_grouped_matmul
    """,
    OpClass.CONVOLUTION: """
        convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_transpose
        cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution mkldnn_convolution _slow_conv2d_forward
        _slow_conv2d_backward slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
        slow_conv_transpose2d slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d conv1d conv2d conv3d
        conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc conv_tbc_backward thnn_conv2d convolution_backward
        convolution_backward_overrideable im2col col2im
    """,
    OpClass.ATTENTION: """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward
        _flash_attn_forward _flash_attn_varlen_forward scaled_dot_product_attention _native_multi_head_attention
        npu_fusion_attention
    """,
    OpClass.ATTENTION_BACKWARD: """
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_fused_attention_overrideable_backward _flash_attention_backward
        _efficient_attention_backward _flash_attn_backward _flash_attn_varlen_backward npu_fusion_attention_grad
    """,
    OpClass.RECURRENT: """
        _cudnn_rnn _cudnn_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward miopen_rnn miopen_rnn_backward
        _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
        _thnn_fused_gru_cell_backward lstm gru rnn_tanh rnn_relu lstm_cell gru_cell
    """,
    OpClass.ELEMENTWISE: """
        __and __iand __ior __or __xor __ixor __lshift __ilshift __rshift __irshift _add_relu _conj_physical
        _masked_scale _prelu_kernel _prelu_kernel_backward abs absolute acos acosh add addcdiv addcmul angle arccos
        arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift
        bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip complex
        conj_physical copysign cos cosh cross deg2rad digamma div divide elu elu_backward eq erf erfc erfinv exp exp2
        expm1 fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge gelu gelu_backward glu glu_backward
        greater greater_equal gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
        hardswish_backward hardtanh hardtanh_backward heaviside hypot i0 igamma igammac isclose isfinite isin isinf
        isnan isneginf isposinf isreal lcm ldexp le leaky_relu leaky_relu_backward lerp less less_equal lgamma log
        log10 log1p log2 log_sigmoid log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and
        logical_not logical_or logical_xor logit logit_backward lt masked_fill maximum minimum mish mish_backward mul
        multiply mvlgamma nan_to_num native_dropout_backward ne neg negative nextafter not_equal polar polygamma
        positive pow prelu rad2deg reciprocal relu relu6 remainder round rrelu rrelu_with_noise
        rrelu_with_noise_backward rsqrt rsub selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin
        sinc sinh softplus softplus_backward softshrink softshrink_backward sqrt square sub subtract tan tanh
        tanh_backward threshold threshold_backward tril triu true_divide trunc where xlogy
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale fill_diagonal diagonal_backward
        quantize_per_tensor quantize_per_channel dequantize grid_sampler grid_sampler_2d grid_sampler_2d_backward
        npu_swiglu npu_swiglu_backward npu_gelu npu_gelu_backward fast_gelu npu_fast_gelu npu_fast_gelu_backward
        npu_rotary_mul npu_rotary_mul_backward npu_rotary_position_embedding npu_rotary_position_embedding_grad
        fused_dropout _fused_rope npu_geglu npu_geglu_grad
    """,
    OpClass.COPY: """
        _to_copy copy clone contiguous to type_as cat concat concatenate stack _stack hstack vstack dstack
        column_stack _chunk_cat chunk_cat split_with_sizes_copy split_copy unbind_copy select_copy slice_copy
        permute_copy transpose_copy t_copy view_copy expand_copy as_strided_copy narrow_copy unfold_copy repeat tile
        repeat_interleave roll flip fliplr flipud rot90 constant_pad_nd pad reflection_pad1d reflection_pad1d_backward
        reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d
        replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward _pad_circular _pad_enum slice_backward select_backward slice_scatter select_scatter
        as_strided_scatter diagonal_scatter unfold_backward channel_shuffle native_channel_shuffle pixel_shuffle
        pixel_unshuffle block_diag meshgrid _transform_bias_rescale_qkv resolve_conj resolve_neg diag diag_embed
        diagonal_copy all_gather_copy_in
    """,
    OpClass.FILL: """
        fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full scalar_tensor arange
        linspace logspace eye range tril_indices triu_indices one_hot bartlett_window blackman_window hamming_window
        hann_window kaiser_window _efficientzerotensor
    """,
    OpClass.RANDOM: """
        native_dropout dropout feature_dropout alpha_dropout _fused_dropout bernoulli uniform normal normal_functional
        random rand rand_like randn randn_like randint randint_like randperm exponential geometric cauchy log_normal
        poisson binomial multinomial _standard_gamma _sample_dirichlet _fill_mem_eff_dropout_mask
    """,
    OpClass.REDUCTION: """
        sum nansum mean nanmean prod all any max min amax amin aminmax _aminmax argmax argmin norm native_norm var
        var_mean std std_mean logsumexp count_nonzero equal linalg_vector_norm dist frobenius_norm trace
        cosine_similarity pairwise_distance _is_all_true _is_any_true histc bincount sum_to_size is_nonzero
        value_selecting_reduction_backward segment_reduce renorm embedding_renorm hash_tensor
    """,
    OpClass.NORM: """
        native_layer_norm layer_norm native_group_norm group_norm native_batch_norm batch_norm cudnn_batch_norm
        miopen_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update
        _native_batch_norm_legit_no_training _batch_norm_no_update batch_norm_stats batch_norm_elemt
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats instance_norm rms_norm
        _fused_rms_norm _weight_norm_interface _weight_norm npu_rms_norm npu_add_rms_norm npu_layer_norm_eval
        fused_layer_norm_affine
    """,
    OpClass.NORM_BACKWARD: """
        native_layer_norm_backward native_group_norm_backward native_batch_norm_backward batch_norm_backward
        cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward_reduce batch_norm_backward_elemt
        _fused_rms_norm_backward _weight_norm_interface_backward npu_rms_norm_backward
    """,
    OpClass.SOFTMAX: """
        _softmax softmax _safe_softmax _log_softmax log_softmax _softmax_backward_data _log_softmax_backward_data
        _masked_softmax _masked_softmax_backward npu_scaled_masked_softmax npu_scaled_masked_softmax_backward
    """,
    OpClass.POOLING: """
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
        max_pool3d_with_indices_backward max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool2d_backward
        avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
        adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward fractional_max_pool2d
        fractional_max_pool2d_backward max_unpool2d max_unpool3d upsample_nearest1d upsample_nearest1d_backward
        upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
        upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d_backward
        upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d upsample_trilinear3d_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact2d
    """,
    OpClass.LOOKUP: """
        embedding gather index index_select _unsafe_index take take_along_dim masked_select nonzero nonzero_static
        argwhere _embedding_bag _embedding_bag_forward_only embedding_bag bucketize searchsorted _unsafe_masked_index
    """,
    OpClass.SCATTER: """
        embedding_dense_backward _embedding_bag_dense_backward _embedding_bag_backward index_put _index_put_impl
        _unsafe_index_put index_add index_copy index_fill index_reduce scatter scatter_add scatter_reduce
        masked_scatter masked_scatter_backward put gather_backward index_select_backward
        _unsafe_masked_index_put_accumulate embedding_backward
    """,
    OpClass.SORT: """
        sort topk argsort msort kthvalue median nanmedian mode quantile nanquantile unique_dim unique_consecutive
        unique_dim_consecutive _unique _unique2 cumsum cumprod cummax cummin _cummax_helper _cummin_helper
        logcumsumexp _logcumsumexp cumprod_backward cummaxmin_backward
    """,
    OpClass.LOSS: """
        nll_loss nll_loss_forward nll_loss_backward nll_loss2d nll_loss2d_forward nll_loss2d_backward nll_loss_nd
        cross_entropy_loss binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits mse_loss
        mse_loss_backward l1_loss smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward kl_div
        soft_margin_loss soft_margin_loss_backward multi_margin_loss multilabel_margin_loss_forward _ctc_loss
        _ctc_loss_backward ctc_loss _cudnn_ctc_loss poisson_nll_loss
    """,
    OpClass.TRANSFER: "host_to_device device_to_host device_to_device _to_cpu pin_memory _pin_memory",
    OpClass.SPECTRAL: "_fft_c2c _fft_r2c _fft_c2r stft istft",
    OpClass.SOLVER: """
        linalg_cholesky_ex linalg_eigh _linalg_eigh _linalg_svd linalg_svd linalg_qr linalg_inv_ex linalg_lu_factor_ex
        linalg_solve_ex _linalg_solve_ex _linalg_det linalg_solve_triangular triangular_solve cholesky
        cholesky_inverse cholesky_solve lu_solve lu_unpack geqrf orgqr ormqr linalg_matrix_exp matrix_exp
        linalg_householder_product linalg_ldl_factor_ex linalg_lu linalg_eig linalg_pinv _cdist_forward
        _cdist_backward _pdist_forward _pdist_backward
    """,
}
_CLASSES = {name: found for found, names in _NAMES.items() for name in names.split()}
# One table: torch's names begin with small letters or underscores, MindSpore's with capitals.
_CLASSES |= {name: OpClass(word) for word, names in _MINDSPORE.items() for name in names.split()}
# Operators recognised by their package, because their own name is not enough.
_PACKAGES = {
    "scaled_upper_triang_masked_softmax_cuda": OpClass.SOFTMAX,
    "scaled_masked_softmax_cuda": OpClass.SOFTMAX,
    "scaled_softmax_cuda": OpClass.SOFTMAX,
    "flex_attention": OpClass.ATTENTION,
    "memcpy": OpClass.TRANSFER,
    "inductor": OpClass.FUSED,
    "triton": OpClass.OTHER,  # whatever its author called it
    "nvrtc": OpClass.OTHER,
}
_COMPILED_ATTENTION = "triton_tem_fused_flex_attention"  # Inductor's own template of it
_OPTIMIZERS = ("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_", "multi_tensor", "npu_apply_adam")


def base_name(name: str) -> str:
    """`addmm` of "aten.addmm_.default": the in-place form is the same work."""
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).rstrip("_")


def class_of(name: str) -> OpClass:
    """The class of an operator as a recording names it."""
    base = base_name(name)
    if name.endswith(".view"):  # MindSpore's Transpose or Split where it makes no storage
        return OpClass.FREE
    if base.startswith(_COMPILED_ATTENTION):
        return OpClass.ATTENTION_BACKWARD if "backward" in base else OpClass.ATTENTION
    if (found := _PACKAGES.get(name.partition(".")[0])) is not None:
        is_backward = found is OpClass.ATTENTION and base.startswith("backward")
        return OpClass.ATTENTION_BACKWARD if is_backward else found
    if (found := _CLASSES.get(base)) is not None:
        return found
    if base.startswith(_OPTIMIZERS):
        return OpClass.OPTIMIZER
    if base.startswith("special_"):
        return OpClass.ELEMENTWISE
    return OpClass.OTHER


def is_known(name: str) -> bool:
    return class_of(name) is not OpClass.OTHER


def is_causal_kernel(name: str) -> bool:
    """It reads only the half of the scores that a causal mask leaves."""
    return name.startswith("scaled_upper_triang")
