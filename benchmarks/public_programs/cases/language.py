"""Language models on one device, with DDP, compiled, in mixed precision."""

from __future__ import annotations

from benchmarks.public_programs.case import Case, Group

__all__ = ["CASES"]


def _karpathy() -> tuple[Case, ...]:
    nano = Group("nanoGPT", data={"data/shakespeare_char": "nanogpt"})
    short = "train.py config/train_shakespeare_char.py --eval_iters=2 --max_iters=6 --log_interval=1"
    more = Group("makemore", data={"names.txt": "lines/names.txt"})
    tokens = Group("llm.c", data={"tokens": "shards"}, packages=("byte-tiktoken",))
    bins = "train_gpt2.py --input_bin tokens/fineweb_train_000000.bin --write_tensors 0 --num_iterations 4 --model d12"
    nanochat = Group("nanochat", variables={"NANOCHAT_BASE_DIR": "{data}/nanochat"})
    small = (
        "--depth=4 --head-dim=64 --max-seq-len=512 --device-batch-size=4 --total-batch-size=4096 --num-iterations=3 "
        "--eval-every=-1 --core-metric-every=-1 --sample-every=-1"
    )
    return (
        nano("AMP bf16", f"{short} --compile=False"),
        nano("GradScaler fp16", f"{short} --compile=False --dtype=float16"),
        nano("compile", short),
        nano("DDP 2, compile", f"torchrun --standalone --nproc_per_node=2 {short} --gradient_accumulation_steps=2"),
        nano("DDP 8, accumulation", f"torchrun --standalone --nproc_per_node=8 {short} --compile=False --gradient_accumulation_steps=16"),
        nano("CPU", f"{short} --compile=False --device=cpu --n_layer=2 --n_head=4 --n_embd=64 --batch_size=4 --dtype=float32", "--device cpu"),
        nano("benchmark", "bench.py --compile=False --real_data=False --batch_size=4"),
        Group("minGPT", start_in="projects/chargpt", data={"input.txt": "lines/input.txt"}, paths=(".",))("single", "chargpt.py", "--steps 4"),
        Group("minGPT", start_in="projects/adder", paths=(".",))("single", "adder.py", "--steps 4"),
        more("Transformer", "makemore.py --device cuda --max-steps 5 -n 1"),
        more("bigram, CPU", "makemore.py --type bigram --max-steps 5 -n 0", "--device cpu"),
        Group("build-nanogpt", data={"edu_fineweb10B": "shards"}, packages=("byte-tiktoken",))("AMP bf16", "train_gpt2.py", "--steps 1"),
        tokens("single", f"{bins} --dtype bfloat16 --flash 1 --tensorcores 1"),
        tokens("compile", f"{bins} --dtype bfloat16 --compile 1"),
        tokens("DDP 4, ZeRO 1", f"torchrun --standalone --nproc_per_node=4 {bins} --zero_stage 1 --total_batch_size 1024"),
        nanochat("compile, Muon", f"-m scripts.base_train {small}"),
        nanochat("DDP 2, compile", f"torchrun --standalone --nproc_per_node=2 -m scripts.base_train -- {small}"),
    )  # fmt: skip


def _torchbench() -> tuple[Case, ...]:
    bench = Group("benchmark", variables={"TORCH_HOME": "{data}/torch-home"})
    return tuple(
        bench(f"{name}, {mode}", f"run.py {name} -d cuda -t {mode}")
        for name, mode in (
            ("resnet18", "train"), ("BERT_pytorch", "train"), 
            ("LearningToPaint", "train"), ("nanogpt", "eval"),
        )
    )  # fmt: skip


CASES = (*_karpathy(), *_torchbench())
