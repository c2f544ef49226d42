#!/bin/sh
# Qwen2.5-7B pretraining with MindSpeed-LLM's published arguments, on 4 Ascend devices: TP 2 x PP 2, sequence 10,240.
#
#   sh qwen25_7b.sh                                     on the devices, with torchrun
#   LAUNCH="windtunnel run --device ascend-910b-64gb --world-size 4 --ranks 0,2" sh qwen25_7b.sh   without them
#
# RECOMPUTE=1 recomputes every layer in backward; TP, PP, SEQ, ITERS and GLOBAL_BATCH change the rest.
here=$(dirname "$0")
TP=${TP:-2} PP=${PP:-2} SEQ=${SEQ:-10240} ITERS=${ITERS:-3} GLOBAL_BATCH=${GLOBAL_BATCH:-64}
LAUNCH=${LAUNCH:-torchrun --nproc-per-node 4}
if [ "${RECOMPUTE:-0}" = 1 ]; then
    recompute="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi
export CUDA_DEVICE_MAX_CONNECTIONS=1

# shellcheck disable=SC2086
exec $LAUNCH "$here/pretrain_gpt.py" \
    --use-mcore-models \
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" --sequence-parallel \
    --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 \
    --max-position-embeddings "$SEQ" --seq-length "$SEQ" \
    --disable-bias-linear --add-qkv-bias --group-query-attention --num-query-groups 4 \
    --use-flash-attn --swiglu --use-fused-swiglu --normalization RMSNorm --norm-epsilon 1e-6 --use-fused-rmsnorm \
    --position-embedding-type rope --rotary-base 1000000 --use-fused-rotary-pos-emb \
    --untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size "$GLOBAL_BATCH" \
    --make-vocab-size-divisible-by 1 --padded-vocab-size 152064 --tokenizer-type PretrainedFromHF \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --train-iters "$ITERS" --lr 1.25e-6 --lr-decay-style cosine --min-lr 1.25e-7 --lr-warmup-fraction 0.01 \
    --init-method-std 0.01 --weight-decay 1e-1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 \
    --initial-loss-scale 4096 --no-gradient-accumulation-fusion --no-masked-softmax-fusion \
    --attention-softmax-in-fp32 --bf16 --split 100,0,0 --no-load-optim --no-load-rng --no-save-optim --no-save-rng \
    --seed 1234 --log-interval 1 --save-interval 2000 --eval-interval 2000 --eval-iters 0 --log-throughput \
    --distributed-backend nccl $recompute "$@"
