"""Which APIs each "risk_level" keeps: CORE the heavy arithmetic, FOCUS everything but data movement, ALL everything.

    (prefix, api) ──> is_kept("FOCUS", "Tensor", "view") ──> False

As in msProbe, an API is known by its own name whatever its prefix: Torch.cat and Tensor.cat are the same here.
"""

from __future__ import annotations

__all__ = ["is_kept", "is_kept_in_mindspore"]

# Prefixes whose APIs are all CORE: communication, and the fused kernels of an accelerator.
_CORE_PREFIXES = frozenset(("Distributed", "MintDistributed", "NPU", "MindSpeed"))
# Prefixes of the frameworks' own APIs; any other prefix was registered by the user, who wants to see it.
_FRAMEWORK_PREFIXES = frozenset(
    ("Functional", "Tensor", "Torch", "VF", "Aten", "Mint", "MintFunctional", "Primitive")
)


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_CORE = _words(
    # products of matrices
    "matmul __matmul__ mm mv bmm addmm addmm_ addmv addmv_ addr addr_ addbmm addbmm_ baddbmm baddbmm_",
    "chain_matmul linear bilinear",
    # convolutions
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution _convolution",
    # normalisation
    "batch_norm instance_norm layer_norm group_norm local_response_norm _batch_norm_impl_index",
    "batch_norm_elemt batch_norm_stats batch_norm_update_stats batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts batch_norm_backward_elemt batch_norm_backward_reduce",
    # attention, embeddings, fused optimizer steps
    "scaled_dot_product_attention multi_head_attention_forward embedding embedding_bag",
    "_fused_adam_ _fused_adamw_",
    # communication, by name: Tensor.gather and Torch.scatter are CORE for msProbe too
    "send recv isend irecv batch_isend_irecv broadcast reduce all_reduce gather all_gather scatter",
    "all_gather_into_tensor _all_gather_base reduce_scatter reduce_scatter_tensor _reduce_scatter_base",
    "all_to_all all_to_all_single",
)

# Values are moved, cast or created, not computed.
_MOVES = _words(
    # shapes
    "view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze expand expand_as repeat",
    "repeat_interleave tile transpose permute moveaxis movedim swapaxes swapdims unfold align_as align_to",
    "atleast_1d atleast_2d atleast_3d stride",
    # splitting and joining
    "chunk unsafe_chunk split split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit",
    "dsplit unbind stack cat concat concatenate hstack vstack dstack column_stack row_stack clone",
    # types
    "to type_as float double half bfloat16 int long byte char bool cfloat numpy __bool__",
    # new tensors, masks
    "empty empty_like zeros zeros_like ones ones_like full full_like arange linspace logspace eye identity",
    "diag diagflat diag_embed triu tril triu_indices tril_indices clamp",
)

# More of the same kind that msProbe's list of APIs does not know, so its dumps never hold them.
_MOVES_BEYOND_MSPROBE = _words(
    "__getitem__ T mT H mH imag view_as_real view_as_complex as_strided as_strided_ swapaxes_ contiguous detach",
    "detach_ alias rename refine_names as_subclass view_copy expand_copy permute_copy split_copy squeeze_copy",
    "new_zeros new_ones new_empty new_full new_tensor new_empty_strided empty_strided tensor as_tensor from_numpy",
    "meshgrid copy_ zero_ cpu cuda pin_memory type chalf cdouble data requires_grad_ resolve_conj",
    # questions about a tensor
    "size dim ndimension numel nelement element_size storage_offset data_ptr get_device is_contiguous",
    "is_floating_point is_complex is_same_size item tolist __len__ __iter__ __contains__ __int__ __float__",
    "__index__ __array__",
)


def is_kept(risk_level: str, prefix: str, api: str) -> bool:
    """Whether an API is collected at this level. An API in no list is collected, unless only CORE is wanted."""
    if risk_level == "ALL" or prefix in _CORE_PREFIXES:
        return True
    if risk_level == "FOCUS":
        return api in _CORE or (api not in _MOVES and api not in _MOVES_BEYOND_MSPROBE)
    return api in _CORE or prefix not in _FRAMEWORK_PREFIXES


def is_kept_in_mindspore(risk_level: str, prefix: str, api: str) -> bool:
    """The same for MindSpore, where msProbe has no levels: FOCUS keeps what msProbe lists, and everything that computes."""
    if risk_level == "FOCUS":
        return prefix != "Tensor" or api not in _MINDSPORE_MOVES
    if prefix == "Primitive":  # "matmul.MatMul": the attribute and the class
        return risk_level == "ALL" or any(word.lower() in _CORE_CLASSES for word in api.split("."))
    return is_kept(risk_level, prefix, api)


# Tensor methods that compute nothing and are not in msProbe's list.
_MINDSPORE_MOVES = _words(
    "__getitem__ __setitem__ item itemset contiguous copy_ expand expand_dims view_as reshape_as type_as chunk clone",
    "dsplit hsplit vsplit repeat select new_empty new_full fill fill_ fills zero_ to_coo to_csr index unfold",
)
# The classes of primitives have no underscores.
_CORE_CLASSES = frozenset(word.replace("_", "") for word in _CORE) | {
    "batchmatmul",
    "dense",
    "layernorm",
    "batchnorm",
}
