"""Which operators can run again with bit-identical results, by name.

    "aten.add.Tensor" ──> is_rerunnable, writes_first_input, HIDDEN_WRITES

No framework is imported: the simulator reads names from a recording, the live runtime from its operators, and both
must make the same decisions. A test checks the tables against the schemas of the installed torch.
"""

from __future__ import annotations

from functools import cache

__all__ = ["HIDDEN_WRITES", "is_blank", "is_fill", "is_rerunnable", "is_view", "writes_first_input"]

_NAMESPACES = frozenset({"aten", "prims"})  # anything else may do more than compute

# Operators that update running statistics, mostly without a word in their schema: positions of those arguments.
HIDDEN_WRITES: dict[str, tuple[int, ...]] = {
    "batch_norm": (3, 4),
    "_batch_norm_impl_index": (3, 4),
    "_batch_norm_with_update": (3, 4),
    "_native_batch_norm_legit": (3, 4),
    "batch_norm_gather_stats": (3, 4),
    "batch_norm_gather_stats_with_counts": (3, 4),
    "batch_norm_update_stats": (1, 2),
    "cudnn_batch_norm": (3, 4),
    "instance_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
    "native_batch_norm": (3, 4),
}

# Memory without content: kernels torch does not see may fill it, so its maker is never run again.
_BLANKS = frozenset(
    """empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided
    _efficientzerotensor _empty_affine_quantized _empty_per_channel_affine_quantized""".split()
)
# Made from numbers alone (or from no more than a shape): cheap, and not computed from anything that could be gone.
_FACTORIES = frozenset(
    """arange bartlett_window blackman_window complex eye from_file full full_like hamming_window hann_window
    kaiser_window linspace logspace new_full new_ones new_zeros normal ones ones_like rand rand_like randint
    randint_like randn randn_like randperm range scalar_tensor tril_indices triu_indices zeros zeros_like
    fft_fftfreq fft_rfftfreq sparse_coo_tensor _sparse_coo_tensor_with_dims _sparse_compressed_tensor_with_dims
    _make_dep_token get_gradients""".split()
)
# Shapes that depend on values: a second run would have to be asked first.
_DATA_DEPENDENT = frozenset(
    """_assert_async _assert_scalar _ctc_loss _functional_assert_async _local_scalar_dense _unique _unique2 allclose
    argwhere bincount combinations equal index is_nonzero item
    linalg_lstsq masked_select nonzero nonzero_numpy nonzero_static one_hot
    repeat_interleave unique_consecutive unique_dim unique_dim_consecutive""".split()
)
# Forward kernels that torch itself lists as not deterministic on CUDA (use_deterministic_algorithms): atomics.
_RANDOM_ORDER_ON_CUDA = frozenset(
    """_index_put_impl bincount cumsum histc index_add index_copy index_put index_reduce kthvalue max_unpool2d
    max_unpool3d median nanmedian nll_loss2d_forward put scatter scatter_add scatter_reduce segment_reduce""".split()
)
# Operators whose state lives outside their arguments.
_STATEFUL = frozenset(
    """_cudnn_init_dropout_state _cufft_clear_plan_cache _cufft_set_plan_cache_max_size _print _resize_output
    _resize_output_ detach_ record_stream requires_grad_ resize_ resize_as_ resize_as_sparse_ retain_grad set_
    set_data""".split()
)
# In-place operators whose names do not say so.
_SILENT_WRITES = frozenset(
    """_cudnn_attention_forward_no_dropout_inplace _flash_attention_forward_no_dropout_inplace record_stream
    retain_grad set_data""".split()
)
# Results that share memory with an argument; reshape and its like do so when they can.
_VIEWS = frozenset(
    """H T _autocast_to_full_precision _autocast_to_reduced_precision _conj _fw_primal _indices _make_dual
    _neg_view _nested_get_values _nested_view_from_buffer _nested_view_from_jagged _reinterpret_tensor
    _reshape_alias _sparse_broadcast_to _test_autograd_multiple_dispatch_view _unpack_dual _unsafe_view _values
    adjoint alias align_to as_strided broadcast_to ccol_indices chunk coalesce col_indices conj contiguous
    crow_indices detach diagonal dsplit expand expand_as flatten hsplit imag indices lift_fresh linalg_diagonal
    mH mT matrix_H moveaxis movedim narrow numpy_T permute pin_memory positive ravel real refine_names rename
    reshape reshape_as resolve_conj resolve_neg row_indices select slice slice_inverse split split_with_sizes
    squeeze swapaxes swapdims t tensor_split to transpose unbind unflatten unfold unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze values view view_as view_as_complex view_as_real vsplit""".split()
)
# In-place operators whose result does not depend on what was there before.
_FILLS = frozenset(
    "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ random_ uniform_ zero_".split()
)


@cache
def is_rerunnable(name: str, is_cuda: bool = False) -> bool:
    """Whether running the operator again on the same inputs gives the same bits and changes nothing else.

    Random numbers are allowed, because the generator is reset before a second run. Views are not: there is nothing to
    recompute. Operators that write in place are, if the memory holds its content from before the write.
    """
    namespace, base = _parts(name)
    plain = base.rstrip("_") if not base.endswith("__") else base
    if namespace not in _NAMESPACES or base in _STATEFUL or plain in _BLANKS or plain in _VIEWS:
        return False
    if plain in _FACTORIES and not writes_first_input(name):
        return False
    if plain in _DATA_DEPENDENT or base in _DATA_DEPENDENT:
        return False
    return not (is_cuda and plain in _RANDOM_ORDER_ON_CUDA)


@cache
def writes_first_input(name: str) -> bool:
    """In-place: `add_`, `__iadd__`. An operator with `out=` writes too, but not into its first argument."""
    base = _parts(name)[1]
    if base.endswith("__"):
        return base.startswith("__i")
    return base.endswith("_") or base in _SILENT_WRITES


@cache
def is_view(name: str) -> bool:
    """Whether the result may share memory with an argument: nothing is computed, nothing is allocated."""
    return _parts(name)[1] in _VIEWS


@cache
def is_blank(name: str) -> bool:
    """Whether the result is memory without content."""
    return _parts(name)[1] in _BLANKS


@cache
def is_fill(name: str) -> bool:
    """Whether the operator overwrites its first argument without reading it."""
    return _parts(name)[1] in _FILLS


def _parts(name: str) -> tuple[str, str]:
    """Split "aten.add.Tensor" or "aten::add.Tensor" into "aten" and "add"."""
    namespace, _, rest = name.replace("::", ".", 1).partition(".")
    return namespace, rest.partition(".")[0]
