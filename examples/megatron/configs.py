"""Megatron-core's configuration records from Megatron-LM's arguments.

Namespace ──> TransformerConfig, DistributedDataParallelConfig, OptimizerConfig
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

__all__ = ["ddp_config", "optimizer_config", "transformer_config"]

# Arguments that are fields of the same name.
_SAME = """
num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels attention_dropout hidden_dropout
add_qkv_bias normalization qk_layernorm rotary_interleaved init_method_std apply_query_key_layer_scaling
attention_softmax_in_fp32 apply_residual_connection_post_layernorm fp32_residual_connection
tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size context_parallel_size
expert_model_parallel_size expert_tensor_parallel_size sequence_parallel bf16 fp16 deterministic_mode
recompute_granularity recompute_method recompute_num_layers recompute_modules distribute_saved_activations
calculate_per_token_loss cross_entropy_loss_fusion
""".split()
_SAME_MOE = """
moe_ffn_hidden_size moe_router_load_balancing_type moe_router_topk moe_router_num_groups moe_router_group_topk
moe_router_pre_softmax moe_router_topk_scaling_factor moe_router_score_function moe_router_dtype
moe_router_enable_expert_bias moe_router_bias_update_rate moe_aux_loss_coeff moe_z_loss_coeff
moe_token_dispatcher_type moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop_policy
moe_shared_expert_intermediate_size moe_layer_freq
""".split()


def transformer_config(args: Namespace) -> TransformerConfig:
    """The model and how it is split."""
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    is_interleaved = bool(args.virtual_pipeline_model_parallel_size)
    overlaps = is_interleaved and not args.no_overlap_p2p_communication
    is_fused = args.swiglu and args.use_fused_swiglu and hasattr(torch, "npu")
    fields: dict[str, Any] = {name: getattr(args, name) for name in _SAME}
    if args.num_experts:
        fields |= {name: getattr(args, name) for name in _SAME_MOE} | {"num_moe_experts": args.num_experts}
    config = TransformerConfig(
        **fields,
        layernorm_epsilon=args.norm_epsilon,
        layernorm_zero_centered_gamma=args.apply_layernorm_1p,
        add_bias_linear=not args.disable_bias_linear,
        gated_linear_unit=args.swiglu,
        activation_func=F.silu if args.swiglu else squared_relu if args.squared_relu else F.gelu,
        use_te_activation_func=is_fused,
        bias_activation_fusion=_fuses_activation(args) and not is_fused,
        masked_softmax_fusion=not args.no_masked_softmax_fusion,
        bias_dropout_fusion=not args.no_bias_dropout_fusion,
        num_layers_in_first_pipeline_stage=args.decoder_first_pipeline_num_layers,
        num_layers_in_last_pipeline_stage=args.decoder_last_pipeline_num_layers,
        microbatch_group_size_per_vp_stage=args.microbatch_group_size_per_virtual_pipeline_stage,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        overlap_p2p_comm=overlaps,
        batch_p2p_comm=not overlaps,
        overlap_p2p_comm_warmup_flush=args.overlap_p2p_communication_warmup_flush,
        deallocate_pipeline_outputs=True,
        gradient_accumulation_fusion=False,
    )
    config.use_fused_rmsnorm = args.use_fused_rmsnorm
    return config


def _fuses_activation(args: Namespace) -> bool:
    if args.swiglu:
        return not args.no_bias_swiglu_fusion
    if args.num_experts:  # Megatron-core fuses the experts' probabilities only into gated units
        return False
    return not (args.squared_relu or args.no_bias_gelu_fusion or args.disable_bias_linear)


def ddp_config(args: Namespace) -> DistributedDataParallelConfig:
    """How gradients are kept and reduced."""
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        use_distributed_optimizer=args.use_distributed_optimizer,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        bucket_size=args.ddp_bucket_size,
        average_in_collective=args.ddp_average_in_collective,
        check_for_nan_in_grad=True,
    )


def optimizer_config(args: Namespace) -> OptimizerConfig:
    """The update."""
    return OptimizerConfig(
        optimizer=args.optimizer,
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        sgd_momentum=args.sgd_momentum,
        bf16=args.bf16,
        fp16=args.fp16,
        params_dtype=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32,
        loss_scale=args.loss_scale,
        initial_loss_scale=args.initial_loss_scale,
        min_loss_scale=args.min_loss_scale,
        loss_scale_window=args.loss_scale_window,
        hysteresis=args.hysteresis,
        clip_grad=args.clip_grad,
        use_distributed_optimizer=args.use_distributed_optimizer,
        overlap_param_gather=args.overlap_param_gather,
        log_num_zeros_in_grad=args.log_num_zeros_in_grad,
    )
