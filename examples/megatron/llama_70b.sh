#!/bin/sh
# Llama-2-70B-like pretraining: TP 8 x PP 8, the rest data parallel, with the distributed optimizer.
#
#   CARDS=1024 LAUNCH="windtunnel run --device h100-80gb --world-size 1024" sh llama_70b.sh
#
# MICRO_BATCHES is the number of micro-batches per data-parallel replica in one step.
here=$(dirname "$0")
CARDS=${CARDS:-1024} ITERS=${ITERS:-3} MICRO_BATCHES=${MICRO_BATCHES:-32}
LAUNCH=${LAUNCH:-torchrun --nproc-per-node 8}
export CUDA_DEVICE_MAX_CONNECTIONS=1

# shellcheck disable=SC2086
exec $LAUNCH "$here/pretrain_gpt.py" \
    --use-mcore-models \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 \
    --disable-bias-linear --swiglu --normalization RMSNorm --position-embedding-type rope \
    --untie-embeddings-and-output-weights --padded-vocab-size 32000 --make-vocab-size-divisible-by 1 \
    --micro-batch-size 1 --global-batch-size $((CARDS / 64 * MICRO_BATCHES)) \
    --bf16 --use-flash-attn --attention-dropout 0.0 --hidden-dropout 0.0 --train-iters "$ITERS" --lr 1e-4 "$@"
