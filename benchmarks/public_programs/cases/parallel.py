"""Jobs of several devices: DDP, FSDP, tensor and pipeline parallel, and the libraries made for them."""

from __future__ import annotations

from benchmarks.public_programs.case import Case, Group

__all__ = ["CASES"]


def _examples() -> tuple[Case, ...]:
    def at(folder: str, **more: object) -> Group:
        return Group("examples", start_in=f"distributed/{folder}", **more)

    series, tensor = at("ddp-tutorial-series"), at("tensor_parallelism")
    return (
        at("ddp")("DDP 2", "torchrun --nnodes=1 --nproc_per_node=2 example.py"),
        at("ddp")("DDP 8, run script", "bash run_example.sh example.py 8"),
        series("single", "single_gpu.py 2 1"),
        series("DDP 2, mp.spawn", "multigpu.py 2 1", "--world-size 2"),
        series("DDP 4", "torchrun --standalone --nproc_per_node=4 multigpu_torchrun.py 2 1"),
        series("DDP 2 x 4 nodes", "torchrun --nnodes 4 --nproc_per_node=2 multinode.py 2 1"),
        at("FSDP2")("FSDP2 2", "torchrun --nproc_per_node 2 example.py"),
        at("FSDP2")("FSDP2 4, bf16, prefetching", "torchrun --nproc_per_node 4 example.py --mixed-precision --explicit-prefetching"),
        at("FSDP2")("FSDP2 2, DCP", "torchrun --nproc_per_node 2 example.py --dcp-api"),
        tensor("TP 4", "bash run_example.sh tensor_parallel_example.py 4"),
        tensor("sequence parallel 2", "torchrun --nproc_per_node=2 sequence_parallel_example.py"),
        tensor("FSDP2 2 x TP 2", "torchrun --nproc_per_node=4 fsdp_tp_example.py"),
        at("minGPT-ddp", data={})(
            "DDP 2, GradScaler", "torchrun --standalone --nproc_per_node=2 mingpt/main.py data_config.path=mingpt/data/input.txt "
            "trainer_config.max_epochs=1 trainer_config.batch_size=16 data_config.truncate=0.01 trainer_config.data_loader_workers=0",
            "--steps 4",
        ),
        at("rpc/rnn")("RPC", "main.py", "--world-size 2", fails="RPC"),
    )  # fmt: skip


def _torchtitan() -> tuple[Case, ...]:
    titan = Group(
        "torchtitan", fails="torch", data={"tests/assets/c4_test/data.json": "lines/c4.json"}, paths=(".",)
    )

    def train(world: int, words: str = "", module: str = "llama3", backend: str = "partial_dtensor") -> str:
        return (
            f"torchrun --nproc_per_node={world} -m torchtitan.train --module {module} --config {module}_debugmodel "
            f"--training.steps 2 --parallelism.spmd_backend {backend} {words}"
        )

    return (
        titan("FSDP2 2", train(2)),
        titan("FSDP2 2 x TP 2", train(4, "--parallelism.tensor_parallel_degree 2")),
        titan(
            "PP 2",
            train(2, "--parallelism.pipeline_parallel_degree 2 --parallelism.data_parallel_shard_degree 1"),
        ),
        titan("FSDP2 2, compile", train(2, "--compile.enable")),
        titan("DeepSeek V3, FSDP2 2", train(2, module="deepseek_v3")),
        titan("FSDP2 2, spmd_types", train(2, backend="spmd_types")),
    )


def _libraries() -> tuple[Case, ...]:
    tune = Group("torchtune", data={"model": "torchtune"}, paths=(".",))
    settings = (
        "model._component_=torchtune.models.llama2.{model} model.vocab_size=32000 model.num_layers=2 model.num_heads=8 "
        "model.embed_dim=512 model.max_seq_len=2048 model.num_kv_heads=8 "
        "checkpointer._component_=torchtune.training.FullModelTorchTuneCheckpointer checkpointer.checkpoint_dir=model "
        "checkpointer.checkpoint_files=[model.pt] tokenizer.path=tests/assets/m.model output_dir=out "
        "dataset._component_=torchtune.datasets.alpaca_dataset dataset.source=json dataset.data_files=tests/assets/alpaca_tiny.json "
        "dataset.split=train max_steps_per_epoch=2 batch_size=2 gradient_accumulation_steps=1 optimizer._component_=torch.optim.AdamW "
    )
    full = settings.format(model="llama2")
    megatron = Group(
        "Megatron-LM", paths=(".",), variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, fails="Python 3.12"
    )
    gpt = (
        "pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 "
        "--micro-batch-size 2 --global-batch-size 8 --train-iters 3 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer "
        "--vocab-size 8192 --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion "
        "--no-masked-softmax-fusion --attention-backend unfused --eval-iters 0 --bf16"
    )
    return (
        tune("single, bf16", f"recipes/full_finetune_single_device.py --config recipes/configs/llama2/7B_full_low_memory.yaml {full} optimizer_in_bwd=False"),
        tune("FSDP2 2", f"torchrun --nproc_per_node 2 recipes/full_finetune_distributed.py --config recipes/configs/llama2/7B_full.yaml {full}"),
        megatron("DP 2", f"torchrun --nproc_per_node 2 {gpt} --use-distributed-optimizer"),
        megatron("TP 2", f"torchrun --nproc_per_node 2 {gpt} --tensor-model-parallel-size 2"),
        megatron("PP 2 x TP 2", f"torchrun --nproc_per_node 4 {gpt} --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2"),
        Group("litgpt", data={"text": "lines", "tokenizer": "hf-gpt2"}, paths=(".",))(
            "Fabric, bf16",
            "-m litgpt pretrain pythia-14m --tokenizer_dir tokenizer --data TextFiles --data.train_data_path text --train.max_tokens 4096 "
            "--train.global_batch_size 2 --train.micro_batch_size 1 --out_dir out", "--steps 2",
        ),
        Group("picotron")("TP 2", "torchrun --nproc_per_node 2 train.py --config template/base_config.json", fails="network"),
    )  # fmt: skip


CASES = (*_examples(), *_torchtitan(), *_libraries())
