"""Pretrain a GPT model with Megatron-core: tensor, sequence, pipeline, expert and data parallelism.

    torchrun --nproc-per-node 4 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 28 …
    windtunnel run --device ascend-910b-64gb --world-size 4 pretrain_gpt.py …         the same, without the devices

Runs on CUDA and Ascend devices. Arguments have Megatron-LM's names: see arguments.py. Data are synthetic.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ascend import IS_NPU  # before Megatron-core is imported  # isort: skip

import megatron.core.optimizer
from arguments import parse_arguments, refuse
from configs import ddp_config, optimizer_config, transformer_config
from layers import install_rotary, layer_spec, shorten_sinkhorn
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import clip_grads, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import local_multi_tensor_scale

Batch = dict[str, torch.Tensor | None]


def main() -> None:
    args = parse_arguments()
    start_parallel(args)
    install_rotary(args)
    shorten_sinkhorn()
    use_fused_kernels()
    chunks = build_model(args)
    optimizer = get_megatron_optimizer(optimizer_config(args), chunks)
    scheduler = build_scheduler(args, optimizer)
    prepare_schedule(args, chunks, optimizer)
    forward_backward = get_forward_backward_func()
    data = [synthetic_batches(args) for _ in chunks]
    for iteration in range(1, args.train_iters + 1):
        start = time.time()
        loss, grad_norm = train_step(args, chunks, optimizer, forward_backward, data)
        scheduler.step(increment=args.global_batch_size)
        if iteration % args.log_interval == 0:
            report(args, iteration, loss, grad_norm, optimizer, time.time() - start)


def start_parallel(args: Namespace) -> None:
    """Set up the process groups and random number generators of every axis."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    torch.distributed.init_process_group(
        "hccl" if IS_NPU else "nccl", world_size=args.world_size, rank=int(os.environ.get("RANK", "0"))
    )
    if (
        args.num_experts
        and args.data_parallel_size * args.tensor_model_parallel_size % args.expert_model_parallel_size
    ):
        refuse(
            f"expert parallel size {args.expert_model_parallel_size} does not divide the ranks of one stage"
        )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
    )
    torch.manual_seed(args.seed + 100 * parallel_state.get_pipeline_model_parallel_rank())
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)


def use_fused_kernels() -> None:
    """Without Apex or Transformer Engine Megatron-core takes torch's Adam, tensor lists and all, and scales gradients
    through temporary copies: take torch's fused kernels, which do both in place as those packages do."""
    if clip_grads.multi_tensor_scale_impl is local_multi_tensor_scale:
        clip_grads.multi_tensor_scale_impl = scale_in_place
    if megatron.core.optimizer.USING_PYTORCH_OPTIMIZER:
        megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
        megatron.core.optimizer.Adam = fused_adam


def scale_in_place(
    chunk_size: int, overflow: torch.Tensor, tensors: list[list[torch.Tensor]], scale: float
) -> None:
    """Apex's interface: scale from the first list into the second; both hold the same gradients."""
    torch._foreach_mul_(tensors[1], scale)


def fused_adam(params: Any, adam_w_mode: bool = True, **kwargs: Any) -> torch.optim.Optimizer:
    """Torch's fused kernel behind Apex's interface: it updates in place and needs no temporary tensors."""
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    return kind(params, fused=True, **kwargs)


def build_model(args: Namespace) -> list[DistributedDataParallel]:
    """Build the model chunks of this rank, on the device, in half precision, with gradient buffers."""
    config = transformer_config(args)
    n_chunks = args.virtual_pipeline_model_parallel_size
    stages = range(n_chunks) if n_chunks else [None]
    half = args.bf16 or args.fp16
    chunks = []
    for index, vp_stage in enumerate(stages):
        model = GPTModel(
            config=config,
            transformer_layer_spec=layer_spec(config, args, vp_stage),
            vocab_size=args.padded_vocab_size,
            max_sequence_length=args.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            vp_stage=vp_stage,
        )
        model.model_type = ModelType.encoder_or_decoder
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        model = model.cuda(torch.cuda.current_device())
        model = Float16Module(config, model) if half else model
        wrapped = DistributedDataParallel(config, ddp_config(args), model, disable_bucketing=index > 0)
        wrapped.broadcast_params()
        chunks.append(wrapped)
    return chunks


def build_scheduler(args: Namespace, optimizer: Any) -> OptimizerParamScheduler:
    decay_iters = args.lr_decay_iters or args.train_iters
    warmup = args.lr_warmup_fraction * decay_iters if args.lr_warmup_fraction else args.lr_warmup_iters
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=args.lr,
        min_lr=args.min_lr,
        lr_warmup_steps=int(warmup * args.global_batch_size),
        lr_decay_steps=decay_iters * args.global_batch_size,
        lr_decay_style=args.lr_decay_style,
        start_wd=args.weight_decay,
        end_wd=args.weight_decay,
        wd_incr_steps=args.train_iters * args.global_batch_size,
        wd_incr_style="constant",
    )


def prepare_schedule(args: Namespace, chunks: list[DistributedDataParallel], optimizer: Any) -> None:
    """Callbacks of Megatron-core's schedules."""
    config = chunks[0].config
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        config.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        if args.virtual_pipeline_model_parallel_size:
            config.grad_sync_func = [chunk.start_grad_sync for chunk in chunks]
    if args.overlap_param_gather and args.virtual_pipeline_model_parallel_size:
        config.param_sync_func = [chunk.start_param_sync for chunk in chunks]


def _one_or_all(functions: list[Callable[..., Any]]) -> Any:
    return functions[0] if len(functions) == 1 else functions


def train_step(
    args: Namespace,
    chunks: list[Any],
    optimizer: Any,
    forward_backward: Callable[..., Any],
    data: list[Iterator[Batch]],
) -> tuple[torch.Tensor | None, Any]:
    """All micro-batches of one global batch, then one update."""
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward(
        forward_step_func=forward_step,
        data_iterator=data if len(data) > 1 else data[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=args.num_microbatches,
        seq_length=args.seq_length,
        micro_batch_size=args.micro_batch_size,
        decoder_seq_length=args.seq_length,
        forward_only=False,
    )
    _, grad_norm, _ = optimizer.step()
    return _mean_loss(losses), grad_norm


def _mean_loss(losses: list[dict[str, torch.Tensor]]) -> torch.Tensor | None:
    """Loss per token of this rank's samples; only the last stage has one."""
    if not losses:
        return None
    both = torch.stack([each["lm loss"] for each in losses]).sum(dim=0)
    return both[0] / both[1]


def forward_step(data: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    batch = next(data)
    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return output, partial(loss_of, batch["loss_mask"])


def loss_of(
    loss_mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Sum over tokens, number of tokens, and both for the log."""
    mask = loss_mask.view(-1)
    loss = torch.sum(losses.view(-1).float() * mask)
    n_tokens = mask.sum().clone().detach().to(torch.int)
    reported = torch.stack([loss.clone().detach(), n_tokens.float()])
    return loss, n_tokens, {"lm loss": reported}


def synthetic_batches(args: Namespace) -> Iterator[Batch]:
    """Random tokens for the stages that read them: the first needs tokens, the last labels."""
    names = {"tokens", "position_ids", "labels", "loss_mask", "attention_mask"}
    is_first, is_last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    if not is_first:
        names -= {"tokens", "position_ids"}
    if not is_last:
        names -= {"labels", "loss_mask"}
    if args.no_create_attention_mask_in_dataloader or args.use_flash_attn or not (is_first or is_last):
        names -= {"attention_mask"}
    shape = (args.micro_batch_size, args.seq_length)
    generator = torch.Generator().manual_seed(args.seed)
    while True:
        text = torch.randint(args.padded_vocab_size, (shape[0], shape[1] + 1), generator=generator)
        whole = {
            "tokens": lambda text=text: text[:, :-1].contiguous(),
            "labels": lambda text=text: text[:, 1:].contiguous(),
            "position_ids": lambda: torch.arange(shape[1]).expand(shape).contiguous(),
            "loss_mask": lambda: torch.ones(shape),
            "attention_mask": lambda: torch.ones(shape[0], 1, shape[1], shape[1]).tril() < 0.5,
        }
        yield {
            name: make().cuda(non_blocking=True) if name in names else None for name, make in whole.items()
        }


def report(
    args: Namespace, iteration: int, loss: Any, grad_norm: Any, optimizer: Any, seconds: float
) -> None:
    if parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0:
        rate = optimizer.param_groups[0]["lr"]
        print(
            f" iteration {iteration:8d}/{args.train_iters:8d} | elapsed time per iteration (ms): {1000 * seconds:.1f}"
            f" | learning rate: {rate:.6E} | global batch size: {args.global_batch_size:5d}"
            f" | lm loss: {float(loss):.6E} | grad norm: {float(grad_norm or 0):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
