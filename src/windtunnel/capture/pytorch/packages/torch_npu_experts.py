"""The operators of `torch_npu` for mixtures of experts: moving tokens to experts and back, and grouped products.

torch_npu.npu_moe_token_permute(tokens, indices)        ──> (tokens by expert, sorted indices)
torch_npu.npu_grouped_matmul([x], [weights], group_list=…) ──> one product per expert, one kernel
npu_gmm([x], [weight], …) of MindSpeed's extension      ──> the same product, as its C++ allocates it

How many tokens each expert gets is a value; the sizes of all these results follow from their arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate

__all__ = [
    "expert_functions",
    "gmm_functions",
    "group_add_functions",
    "permute_functions",
    "unpermute_functions",
]

Tensor = torch.Tensor
_NPU, _MINDSPEED = "npu", "mindspeed"
_ONE_RESULT = (2, 3)  # split_item: all groups write into one tensor
_NOTHING = (0, 0, 0)  # the shape of a result that torch_npu would not make; no real one has three dimensions
_BY_GROUP = 2  # group_type: the groups split the inner dimension, one result matrix per group


def expert_functions() -> dict[str, Any]:
    """Name -> function, as users find them in `torch_npu`."""
    return {
        **_token_permutation(_NPU, keeps_tokens=True),
        **_token_unpermutation(_NPU),
        **_routing_maps(),
        **_grouped_products(),
    }


# -- tokens by index ----------------------------------------------------------------------------------------


def permute_functions() -> dict[str, Any]:
    """MindSpeed's extension, which keeps the sorted indices only."""
    return _token_permutation(_MINDSPEED, keeps_tokens=False)


def unpermute_functions() -> dict[str, Any]:
    return _token_unpermutation(_MINDSPEED)


def _token_permutation(namespace: str, keeps_tokens: bool) -> dict[str, Any]:
    name = "npu_moe_token_permute"
    forward = define(
        namespace,
        f"{name}(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False) -> (Tensor, Tensor)",
        _permuted,
    )
    backward = define(
        namespace,
        f"{name}_grad(Tensor grad_permuted_tokens, Tensor sorted_indices, int n_tokens) -> Tensor",
        lambda grad, indices, n_tokens: grad.new_empty((n_tokens, grad.shape[1])),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.n_tokens = inputs[0].shape[0]
        ctx.save_for_backward(output[1], *(inputs[:2] if keeps_tokens else ()))

    def permute_back(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Any, ...]:
        found = None if grad is None else backward(grad, ctx.saved_tensors[0], ctx.n_tokens)
        return found, None, None, None

    differentiate(namespace, name, save, permute_back)
    return {name: forward}


def _permuted(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    if tokens.dim() != 2:
        raise RuntimeError(f"npu_moe_token_permute: tokens must have 2 dimensions, got {tokens.dim()}")
    wanted, n_slots = num_out_tokens or 0, indices.numel()
    n_out = min(wanted, n_slots) if wanted > 0 else wanted + n_slots
    return tokens.new_empty((n_out, tokens.shape[1])), indices.new_empty((n_slots,), dtype=torch.int32)


def _token_unpermutation(namespace: str) -> dict[str, Any]:
    name = "npu_moe_token_unpermute"
    forward = define(
        namespace,
        f"{name}(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False,"
        " int[]? restore_shape=None) -> Tensor",
        lambda tokens, indices, probs=None, padded_mode=False, restore_shape=None: tokens.new_empty(
            (indices.shape[0] // (1 if probs is None else probs.shape[1]), tokens.shape[-1])
        ),
    )
    backward = define(
        namespace,
        f"{name}_grad(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, Tensor sorted_indices, Tensor? probs=None)"
        " -> (Tensor, Tensor)",
        lambda tokens, grad, indices, probs=None: (
            tokens.new_empty(tokens.shape),
            tokens.new_empty((0,)) if probs is None else grad.new_empty(probs.shape),
        ),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    def unpermute_back(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None, None
        tokens, indices, probs = ctx.saved_tensors
        d_tokens, d_probs = backward(tokens, grad, indices, probs)
        return d_tokens, None, d_probs if probs is not None else None, None, None

    differentiate(namespace, name, save, unpermute_back)
    return {name: forward}


# -- tokens by map ------------------------------------------------------------------------------------------


def _routing_maps() -> dict[str, Any]:
    """torch_npu returns no tensor at all for probabilities that were not given; an operator must: it is left empty."""
    permute = define(
        _NPU,
        "npu_moe_token_permute_with_routing_map(Tensor tokens, Tensor routing_map, Tensor? probs=None,"
        " int? num_out_tokens=None, bool drop_and_pad=False) -> (Tensor, Tensor, Tensor)",
        _permuted_by_map,
    )
    permute_grad = define(
        _NPU,
        "npu_moe_token_permute_with_routing_map_grad(Tensor permuted_token_out_grad, Tensor? probs_grad,"
        " Tensor sorted_indices, Tensor routing_map, int experts_num, int tokens_num, bool drop_and_pad)"
        " -> (Tensor, Tensor)",
        lambda grad, d_probs, indices, routing_map, n_experts, n_tokens, drop_and_pad: (
            grad.new_empty((n_tokens, grad.shape[1])),
            grad.new_empty(_NOTHING) if d_probs is None else d_probs.new_empty((n_tokens, n_experts)),
        ),
    )
    unpermute = define(
        _NPU,
        "_npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, int[] restore_shape, *,"
        " Tensor? probs=None, Tensor? routing_map=None, bool drop_and_pad=False) -> (Tensor, Tensor, Tensor, Tensor)",
        _unpermuted_by_map,
    )
    unpermute_grad = define(
        _NPU,
        "npu_moe_token_unpermute_with_routing_map_grad(Tensor unpermuted_tokens_grad, Tensor out_index,"
        " Tensor permuted_token_id, Tensor? routing_map, Tensor? permuted_tokens, Tensor? probs, bool drop_and_pad,"
        " int[] restore_shape) -> (Tensor, Tensor)",
        lambda grad, index, ids, routing_map, tokens, probs, drop_and_pad, restore_shape: (
            grad.new_empty((index.shape[0], grad.shape[1])),
            grad.new_empty(_NOTHING if probs is None else probs.shape),
        ),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[2])
        tokens, routing_map, probs, _, drop_and_pad = inputs
        ctx.has_probs = probs is not None
        ctx.sizes = (routing_map.shape[1], tokens.shape[0], drop_and_pad)
        ctx.save_for_backward(output[2], routing_map)

    def permute_back(ctx: Any, grad: Tensor | None, d_probs: Tensor | None, _: Any) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None, None
        by_probs = d_probs if ctx.has_probs else None
        d_tokens, d_all = permute_grad(grad, by_probs, *ctx.saved_tensors, *ctx.sizes)
        return d_tokens, None, d_all if by_probs is not None else None, None, None

    differentiate(_NPU, "npu_moe_token_permute_with_routing_map", save, permute_back)

    def unpermute_only(*args: Any, **kwargs: Any) -> Tensor:
        return unpermute(*args, **kwargs)[0]

    return {
        "npu_moe_token_permute_with_routing_map": _hiding(permute, 1),
        "npu_moe_token_permute_with_routing_map_grad": _hiding(permute_grad, 1),
        "_npu_moe_token_unpermute_with_routing_map": _hiding(unpermute, 3),
        "npu_moe_token_unpermute_with_routing_map": unpermute_only,
        "npu_moe_token_unpermute_with_routing_map_grad": _hiding(unpermute_grad, 1),
    }


def _permuted_by_map(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    n_out = tokens.shape[0] if num_out_tokens is None else num_out_tokens
    unit = routing_map.shape[int(drop_and_pad)]
    n_out = n_out // unit * unit
    return (
        tokens.new_empty((n_out, tokens.shape[1])),
        tokens.new_empty(_NOTHING) if probs is None else probs.new_empty((n_out,)),
        tokens.new_empty((n_out,), dtype=torch.int32),
    )


def _unpermuted_by_map(
    tokens: Tensor,
    indices: Tensor,
    restore_shape: Sequence[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, ...]:
    return (
        tokens.new_empty(tuple(restore_shape[:2])),
        indices.new_empty(indices.shape),
        indices.new_empty(indices.shape),
        tokens.new_empty(_NOTHING) if probs is None else probs.new_empty(indices.shape),
    )


def _hiding(op: Any, position: int) -> Any:
    """The operator as a function that returns None for a result that torch_npu does not make."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        results = op(*args, **kwargs)
        missing = results[position].shape == _NOTHING
        return tuple(None if missing and i == position else result for i, result in enumerate(results))

    return call


# -- grouped products ---------------------------------------------------------------------------------------

_QUANTIZED = " ".join(
    f"Tensor[]? {name}=None,"
    for name in ("bias", "scale", "offset", "antiquant_scale", "antiquant_offset", "per_token_scale")
)
_ACTIVATIONS = " ".join(
    f"Tensor[]? {name}=None,"
    for name in ("activation_input", "activation_quant_scale", "activation_quant_offset")
)


def _grouped_products() -> dict[str, Any]:
    grouped = define(
        _NPU,
        f"npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, {_QUANTIZED} Tensor? group_list=None, {_ACTIVATIONS}"
        " int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0, int[]? tuning_config=None,"
        " ScalarType? output_dtype=None) -> Tensor[]",
        _grouped_results,
    )

    def npu_grouped_matmul(x: Any, weight: Any, *, group_list: Any = None, **options: Any) -> Any:
        if isinstance(group_list, (list, tuple)):  # the overload that takes the ends of the groups as numbers
            group_list = torch.tensor(group_list, dtype=torch.int64, device=x[0].device)
        return grouped(x, weight, group_list=group_list, **options)

    return {"npu_grouped_matmul": npu_grouped_matmul}


def _grouped_results(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    group_list: Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    output_dtype: torch.dtype | None = None,
    **_: Any,
) -> list[Tensor]:
    """One result for each x, or a single one; it has a matrix per group where the groups split the inner dimension."""
    dtype, width = output_dtype or x[0].dtype, weight[0].shape[-1]
    if split_item not in _ONE_RESULT:
        weights = weight if len(weight) == len(x) else [weight[0]] * len(x)
        return [
            a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype) for a, b in zip(x, weights, strict=True)
        ]
    if group_type == _BY_GROUP:
        n_groups = group_list.shape[0] if group_list is not None else len(x)
        return [x[0].new_empty((n_groups, x[0].shape[0], width), dtype=dtype)]
    return [x[0].new_empty((sum(a.shape[0] for a in x), width), dtype=dtype)]


def gmm_functions() -> dict[str, Any]:
    """MindSpeed's extension `grouped_matmul`: lists of one tensor, and gradients made of two more products."""
    product = define(
        _MINDSPEED,
        "grouped_matmul(Tensor x, Tensor weight, Tensor? group_list, int n_groups, bool by_group) -> Tensor",
        lambda x, weight, group_list, n_groups, by_group: x.new_empty(
            (*((n_groups,) if by_group else ()), x.shape[0], weight.shape[-1])
        ),
    )

    def npu_gmm(
        x: list[Tensor],
        weight: list[Tensor],
        bias: list[Tensor],
        group_list: Any,
        group_type: int | None = None,
        group_list_type: int | None = None,
    ) -> list[Tensor]:
        n_groups = 0 if group_list is None else len(group_list)
        groups = group_list if isinstance(group_list, Tensor) else None
        return [product(x[0], weight[0], groups, n_groups, group_type == _BY_GROUP)]

    def npu_gmm_backward_fusion(
        grad: list[Tensor], weight: list[Tensor], group_list: Any, group_list_type: int | None = None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return npu_gmm(grad, [weight[0].transpose(-1, -2)], [], group_list, 0), [], []

    def npu_gmm_backward(
        grad: list[Tensor],
        x: list[Tensor],
        weight: list[Tensor],
        group_list: Any,
        group_list_type: int | None = None,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        d_x = npu_gmm(grad, [weight[0].transpose(-1, -2)], [], group_list, 0)
        if isinstance(group_list, Tensor) and _is_transposed(weight[0]):
            turned = [grad[0].contiguous().transpose(-1, -2)]
            d_weight = npu_gmm(turned, x, [], group_list, _BY_GROUP)[0].transpose(-1, -2)
        else:
            d_weight = npu_gmm([x[0].transpose(-1, -2)], grad, [], group_list, _BY_GROUP)[0]
        return d_x, [d_weight.reshape(weight[0].shape)], []

    return {
        "npu_gmm": npu_gmm,
        "npu_gmm_backward": npu_gmm_backward,
        "npu_gmm_backward_fusion": npu_gmm_backward_fusion,
    }


def _is_transposed(weight: Tensor) -> bool:
    return weight.stride(-2) == 1 and weight.stride(-1) == weight.shape[-2]


def group_add_functions() -> dict[str, Any]:
    """A weight gradient added to an fp32 buffer in the kernel that computes it, for all experts."""
    return {
        "npu_groupmatmul_add_fp32": define(
            _MINDSPEED,
            "npu_groupmatmul_add_fp32(Tensor x, Tensor weight, Tensor group_list, Tensor(a!) grad) -> ()",
            lambda x, weight, group_list, grad: None,
        )
    }
