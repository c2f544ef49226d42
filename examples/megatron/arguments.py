"""Megatron-LM's own argument names, for a script on Megatron-core alone.

    command line ──> parse_arguments ──> Namespace ──> transformer_config, ddp_config, optimizer_config

An unknown argument is refused. One that is known but has no effect in this script is in WITHOUT_EFFECT with the
reason; one that would change the result and is not supported is in NOT_HERE.
"""

from __future__ import annotations

import argparse
import ast
import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

__all__ = ["NOT_HERE", "WITHOUT_EFFECT", "parse_arguments", "refuse"]

# Vocabulary sizes of public tokenizers; for others, pass --vocab-size or --padded-vocab-size.
_VOCABULARIES = {"GPT2BPETokenizer": 50257}

# name [type] [default]; a name alone is a switch.
_NUMBERS = """
num-layers int | hidden-size int | ffn-hidden-size int | num-attention-heads int | kv-channels int
num-query-groups int 1 | seq-length int | max-position-embeddings int | vocab-size int | padded-vocab-size int
make-vocab-size-divisible-by int 128 | rotary-base int 10000 | rotary-percent float 1.0 | norm-epsilon float 1e-5
init-method-std float 0.02 | attention-dropout float 0.1 | hidden-dropout float 0.1 | seed int 1234
tensor-model-parallel-size int 1 | pipeline-model-parallel-size int 1 | context-parallel-size int 1
num-layers-per-virtual-pipeline-stage int | num-virtual-stages-per-pipeline-rank int
microbatch-group-size-per-virtual-pipeline-stage int | decoder-first-pipeline-num-layers int
decoder-last-pipeline-num-layers int | num-distributed-optimizer-instances int 1 | ddp-bucket-size int
recompute-num-layers int | micro-batch-size int 1 | global-batch-size int | train-iters int 3
lr float 1e-4 | min-lr float 0.0 | lr-decay-iters int | lr-warmup-iters int 0 | lr-warmup-fraction float
weight-decay float 0.01 | clip-grad float 1.0 | adam-beta1 float 0.9 | adam-beta2 float 0.999 | adam-eps float 1e-8
sgd-momentum float 0.9 | loss-scale float | initial-loss-scale float 4294967296 | min-loss-scale float 1.0
loss-scale-window float 1000 | hysteresis int 2 | log-interval int 1
num-experts int | expert-model-parallel-size int 1 | expert-tensor-parallel-size int | moe-ffn-hidden-size int
moe-router-topk int 2 | moe-router-num-groups int | moe-router-group-topk int | moe-router-topk-scaling-factor float
moe-router-bias-update-rate float 1e-3 | moe-aux-loss-coeff float 0.0 | moe-z-loss-coeff float
moe-expert-capacity-factor float | moe-shared-expert-intermediate-size int
"""
_SWITCHES = """
group-query-attention untie-embeddings-and-output-weights disable-bias-linear add-qkv-bias swiglu squared-relu
qk-layernorm rotary-interleaved apply-layernorm-1p apply-residual-connection-post-layernorm fp32-residual-connection
apply-query-key-layer-scaling attention-softmax-in-fp32 bf16 fp16 accumulate-allreduce-grads-in-fp32
sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather ddp-average-in-collective
no-overlap-p2p-communication overlap-p2p-communication-warmup-flush distribute-saved-activations recompute-activations
use-flash-attn use-fused-swiglu use-fused-rmsnorm use-fused-rotary-pos-emb no-masked-softmax-fusion
no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion cross-entropy-loss-fusion
no-create-attention-mask-in-dataloader calculate-per-token-loss log-num-zeros-in-grad deterministic-mode
moe-router-pre-softmax moe-router-enable-expert-bias moe-pad-expert-input-to-capacity
"""
_CHOICES = {
    "position-embedding-type": ("learned_absolute", "rope", "none"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "recompute-granularity": (None, "full", "selective"),
    "recompute-method": (None, "uniform", "block"),
    "lr-decay-style": ("linear", "cosine", "constant"),
    "optimizer": ("adam", "sgd"),
    "transformer-impl": ("local", "transformer_engine"),
    "attention-backend": ("auto", "flash", "fused", "unfused", "local"),
    "moe-router-load-balancing-type": ("aux_loss", "sinkhorn", "seq_aux_loss", "global_aux_loss", "none"),
    "moe-token-dispatcher-type": ("allgather", "alltoall"),
    "moe-router-score-function": ("softmax", "sigmoid"),
    "moe-router-dtype": (None, "fp32", "fp64"),
    "moe-token-drop-policy": ("probs", "position"),
}

_ONE_WAY = "this script always does it that way"
_DATA = "data are synthetic"
_FILES = "nothing is saved or loaded"
_LOG = "only loss, learning rate and time are logged"
_CARD = "changes the device's speed, not its memory"
WITHOUT_EFFECT = {
    **dict.fromkeys(
        "use-mcore-models ai-framework distributed-backend distributed-timeout-minutes".split(), _ONE_WAY
    ),
    **dict.fromkeys(
        "no-gradient-accumulation-fusion no-rope-fusion no-persist-layer-norm moe-grouped-gemm moe-permute-fusion"
        " use-tp-pp-dp-mapping cross-entropy-fusion-impl cp-comm-type".split(),
        _ONE_WAY,
    ),
    **dict.fromkeys(
        "data-path split tokenizer-name-or-path tokenizer-model vocab-file merge-file data-cache-path num-workers"
        " mock-data no-mmap-bin-files reset-position-ids reset-attention-mask eod-mask-loss dataloader-type".split(),
        _DATA,
    ),
    **dict.fromkeys(
        "save load save-interval ckpt-format no-load-optim no-load-rng no-save-optim no-save-rng async-save"
        " use-persistent-ckpt-worker ckpt-fully-parallel-load ckpt-fully-parallel-save no-ckpt-fully-parallel-save"
        " ckpt-assume-constant-structure dist-ckpt-strictness dist-ckpt-optim-fully-reshardable finetune"
        " exit-interval exit-duration-in-mins use-checkpoint-args use-checkpoint-opt_param-scheduler"
        " override-opt_param-scheduler".split(),
        _FILES,
    ),
    **dict.fromkeys(
        "tensorboard-dir log-params-norm log-validation-ppl-to-tensorboard log-timers-to-tensorboard"
        " log-memory-to-tensorboard log-throughput timing-log-level wandb-project wandb-exp-name"
        " wandb-save-dir wandb-entity".split(),
        _LOG,
    ),
    **dict.fromkeys("eval-interval eval-iters eval-global-batch-size".split(), "nothing is evaluated"),
    **dict.fromkeys("manual-gc manual-gc-interval tp-comm-overlap".split(), _CARD),
}
_TE = "needs Transformer Engine's own layers"
NOT_HERE = {
    **dict.fromkeys(
        "fp8-format fp8-recipe fp8-param-gather first-last-layers-bf16 tp-comm-overlap-cfg".split(), _TE
    ),
    **dict.fromkeys(
        "use-megatron-fsdp data-parallel-sharding-strategy".split(), "is a different way to shard weights"
    ),
    "hierarchical-context-parallel-sizes": _TE,
    "mtp-num-layers": "multi-token prediction is not built here",
    "cuda-graph-impl": "graphs keep their own memory pools",
    "pipeline-model-parallel-layout": "only even stages and first/last exceptions are built here",
    "overlap-moe-expert-parallel-comm": _TE,
    "overlap-param-gather-with-optimizer-step": "is not built here",
    "multi-latent-attention": "only grouped-query attention is built here",
    "step-batch-size-schedule": "the batch size is constant here",
}


def refuse(sentence: str) -> None:
    """End the program with one sentence, as argparse does; only rank 0 prints it."""
    raise SystemExit(f"pretrain_gpt.py: {sentence}")


def parse_arguments(argv: Sequence[str] | None = None) -> Namespace:
    """Read, complete and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    _add(parser)
    args, unknown = parser.parse_known_args(argv)
    _explain(unknown)
    _complete(args)
    _check(args)
    return args


def _add(parser: argparse.ArgumentParser) -> None:
    kinds = {"int": int, "float": float}
    for entry in _NUMBERS.replace("\n", "|").split("|"):
        if entry.strip():
            name, kind, *default = entry.split()
            value = kinds[kind](default[0]) if default else None
            parser.add_argument(f"--{name}", type=kinds[kind], default=value)
    for name in _SWITCHES.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in _CHOICES.items():
        parser.add_argument(f"--{name}", choices=[c for c in choices if c], default=choices[0])
    parser.add_argument("--tokenizer-type", default="GPT2BPETokenizer")
    parser.add_argument("--moe-layer-freq", default="1", help="an int, or a list as Python writes it")
    parser.add_argument("--recompute-modules", nargs="*", default=None)
    for name in WITHOUT_EFFECT:
        parser.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)


def _explain(unknown: list[str]) -> None:
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    for flag in flags:
        if (reason := NOT_HERE.get(flag[2:])) is not None:
            refuse(f"{flag} {reason}; leave it out")
    if unknown:
        refuse(
            f"{(flags or unknown)[0]} is not an argument of this script; see arguments.py for the supported ones"
        )


def _complete(args: Namespace) -> None:
    """Fill in what Megatron-LM derives from other arguments."""
    for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length"):
        if getattr(args, name) is None:
            refuse(f"--{name.replace('_', '-')} is missing")
    args.world_size = int(os.environ.get("WORLD_SIZE", "1"))
    args.max_position_embeddings = args.max_position_embeddings or args.seq_length
    args.ffn_hidden_size = args.ffn_hidden_size or _ffn_size(args)
    args.kv_channels = args.kv_channels or args.hidden_size // args.num_attention_heads
    args.num_query_groups = args.num_query_groups if args.group_query_attention else args.num_attention_heads
    args.use_flash_attn = args.use_flash_attn or args.attention_backend in ("flash", "fused")
    if args.transformer_impl == "transformer_engine" and args.attention_backend == "auto":
        args.use_flash_attn = True
    if args.bf16:  # as Megatron-LM: bf16 gradients are accumulated in fp32
        args.accumulate_allreduce_grads_in_fp32 = True
    if args.recompute_activations:
        args.recompute_granularity = "selective"
    if args.tensor_model_parallel_size == 1:  # as Megatron-LM: there is nothing to split the sequence over
        args.sequence_parallel = False
    args.padded_vocab_size = args.padded_vocab_size or _padded(args)
    args.virtual_pipeline_model_parallel_size = _virtual_stages(args)
    model = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
    if args.world_size % model:
        refuse(
            f"world size {args.world_size} is not a multiple of {model} = tensor {args.tensor_model_parallel_size}"
            f" x pipeline {args.pipeline_model_parallel_size} x context {args.context_parallel_size} parallel size"
        )
    args.data_parallel_size = args.world_size // model
    args.global_batch_size = args.global_batch_size or args.micro_batch_size * args.data_parallel_size
    args.moe_layer_freq = ast.literal_eval(_plain_list(args.moe_layer_freq))


def _ffn_size(args: Namespace) -> int:
    """Four times the width; gated units get two thirds of it, rounded to 64, so that parameters stay equal."""
    return int(4 * args.hidden_size * 2 / 3 / 64) * 64 if args.swiglu else 4 * args.hidden_size


def _plain_list(text: str) -> str:
    """Parse `([0]*3+[1]*5)` as a list: the only arithmetic Megatron-LM users write there."""
    if "*" not in text and "+" not in text:
        return text
    parts = [part.strip().strip("()") for part in text.split("+")]
    items: list[Any] = []
    for part in parts:
        values, _, times = part.partition("*")
        items += ast.literal_eval(values) * int(times or 1)
    return repr(items)


def _padded(args: Namespace) -> int:
    size = args.vocab_size or _VOCABULARIES.get(args.tokenizer_type)
    if size is None:
        refuse(
            f"the vocabulary of {args.tokenizer_type} is not known here; pass --vocab-size or --padded-vocab-size"
        )
    unit = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    return (size + unit - 1) // unit * unit


def _virtual_stages(args: Namespace) -> int | None:
    if args.num_virtual_stages_per_pipeline_rank:
        return args.num_virtual_stages_per_pipeline_rank
    per_chunk = args.num_layers_per_virtual_pipeline_stage
    if per_chunk is None:
        return None
    if args.pipeline_model_parallel_size < 2:
        refuse("--num-layers-per-virtual-pipeline-stage needs --pipeline-model-parallel-size of at least 2")
    unit = per_chunk * args.pipeline_model_parallel_size
    if args.num_layers % unit:
        refuse(
            f"{args.num_layers} layers cannot be split into chunks of {per_chunk} on"
            f" {args.pipeline_model_parallel_size} stages: not a multiple of {unit}"
        )
    return args.num_layers // unit


def _check(args: Namespace) -> None:
    """Check for mistakes in a parallel strategy that would fail late or with an unclear error on a cluster."""
    tensor, stages = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    if args.fp16 and args.bf16:
        refuse("--fp16 and --bf16 are both given; remove one")
    if args.num_attention_heads % tensor:
        refuse(
            f"{args.num_attention_heads} attention heads cannot be split over {tensor} tensor-parallel ranks"
        )
    if args.num_query_groups % tensor:
        refuse(f"{args.num_query_groups} query groups cannot be split over {tensor} tensor-parallel ranks")
    if args.sequence_parallel and args.seq_length % (tensor * args.context_parallel_size):
        refuse(f"a sequence of {args.seq_length} cannot be split over {tensor} sequence-parallel ranks")
    is_even = args.decoder_first_pipeline_num_layers is None and args.decoder_last_pipeline_num_layers is None
    if is_even and args.num_layers % stages:
        refuse(f"{args.num_layers} layers cannot be split evenly over {stages} pipeline stages")
    samples = args.micro_batch_size * args.data_parallel_size
    if args.global_batch_size % samples:
        refuse(
            f"global batch size {args.global_batch_size} is not a multiple of {samples} = micro-batch size"
            f" {args.micro_batch_size} x {args.data_parallel_size} data-parallel ranks"
        )
    args.num_microbatches = args.global_batch_size // samples
    if args.virtual_pipeline_model_parallel_size and args.num_microbatches % stages:
        group = args.microbatch_group_size_per_virtual_pipeline_stage
        if group is None or args.num_microbatches < stages:
            refuse(
                f"the interleaved schedule needs a multiple of {stages} micro-batches (one per stage);"
                f" there are {args.num_microbatches}: raise --global-batch-size"
            )
    if args.context_parallel_size > 1:
        refuse(
            "context parallelism needs Transformer Engine's attention; Megatron-core's local layers have none"
        )
