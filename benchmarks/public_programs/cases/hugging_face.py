"""The examples of transformers, accelerate and diffusers."""

from __future__ import annotations

from benchmarks.public_programs.case import Case, Group

__all__ = ["CASES"]


def _transformers() -> tuple[Case, ...]:
    def at(folder: str, *models: str) -> Group:
        data = {"text": "lines"} | {model: f"hf-{model}" for model in models}
        return Group("transformers", start_in=f"examples/pytorch/{folder}", data=data, paths=("src",))

    causal = at("language-modeling", "gpt2", "llama")
    trainer = "--do_train --max_steps 3 --per_device_train_batch_size 2 --output_dir out --save_strategy no --report_to none"
    by_hand = "--max_train_steps 3 --per_device_train_batch_size 2 --output_dir out"
    text = "--train_file text/train.txt --validation_file text/valid.txt --block_size 128"
    pairs = "--train_file text/pairs.csv --validation_file text/pairs.csv"
    return (
        causal("from scratch", f"run_clm.py --config_name gpt2 --tokenizer_name gpt2 {text} {trainer}"),
        causal("bf16, checkpointing", f"run_clm.py --model_name_or_path llama {text} {trainer} --bf16 --gradient_checkpointing"),
        causal("fp16 GradScaler, DDP 2", f"torchrun --nproc_per_node 2 run_clm.py --model_name_or_path gpt2 {text} {trainer} --fp16"),
        causal("compile", f"run_clm.py --model_name_or_path llama {text} {trainer} --bf16 --torch_compile"),
        causal(
            "FSDP 2", f"torchrun --nproc_per_node 2 run_clm.py --model_name_or_path llama {text} {trainer} --bf16 --fsdp full_shard "
            "--fsdp_config '{\"transformer_layer_cls_to_wrap\": [\"LlamaDecoderLayer\"]}'",
        ),
        causal("accelerate", f"run_clm_no_trainer.py --model_name_or_path gpt2 {text} {by_hand}"),
        causal("accelerate launch, DDP 2", f"accelerate launch --num_processes 2 --mixed_precision bf16 run_clm_no_trainer.py --model_name_or_path llama {text} {by_hand}"),
        at("text-classification", "bert")("GLUE", f"run_glue.py --model_name_or_path bert {pairs} --max_seq_length 64 {trainer}", fails="network"),
        at("text-classification", "bert")("accelerate", f"run_glue_no_trainer.py --model_name_or_path bert {pairs} --max_length 64 {by_hand}"),
        at("summarization", "t5")("T5", f"run_summarization.py --model_name_or_path t5 --train_file text/summaries.json --source_prefix 'summarize: ' {trainer}"),
        at("translation", "t5")(
            "T5, bf16", f"run_translation.py --model_name_or_path t5 --source_lang en --target_lang ro --train_file text/translations.json {trainer} --bf16"
        ),
        at("question-answering", "bert")(
            "SQuAD", f"run_qa.py --model_name_or_path bert --train_file text/questions.json --validation_file text/questions.json {trainer}"
        ),
        Group("transformers", start_in="examples/pytorch/image-classification", data={"vit": "hf-vit", "images": "imagenet"}, paths=("src",))(
            "ViT", f"run_image_classification.py --model_name_or_path vit --train_dir images/train --validation_dir images/val --ignore_mismatched_sizes "
            f"--remove_unused_columns False {trainer}"
        ),
        Group("transformers", start_in="examples/pytorch/image-pretraining", data={"images": "imagenet", "vit": "hf-vit"}, paths=("src",))(
            "MAE", f"run_mae.py --image_processor_name vit --train_dir images/train --validation_dir images/val --mask_ratio 0.75 "
            f"--config_overrides num_hidden_layers=2,decoder_num_hidden_layers=2 {trainer}"
        ),
    )  # fmt: skip


def _accelerate() -> tuple[Case, ...]:
    """Its own tests run these scripts with its table of MRPC instead of the download: so do we; the metric is downloaded."""
    mocked = Group(
        "accelerate",
        data={"bert-base-cased": "hf-bert"},
        paths=("src",),
        variables={"TESTING_MOCKED_DATALOADERS": "1"},
        fails="network",
    )
    return (
        mocked("bf16", "examples/nlp_example.py --mixed_precision bf16", "--steps 4"),
        mocked("fp16 GradScaler", "examples/nlp_example.py --mixed_precision fp16", "--steps 4"),
        mocked("DDP 2", "accelerate launch --num_processes 2 examples/nlp_example.py", "--steps 4"),
        mocked(
            "accumulation",
            "examples/by_feature/gradient_accumulation.py --gradient_accumulation_steps 2",
            "--steps 4",
        ),
        mocked(
            "local SGD, DDP 2",
            "accelerate launch --num_processes 2 examples/by_feature/local_sgd.py",
            "--steps 4",
        ),
    )


def _diffusers() -> tuple[Case, ...]:
    images = Group(
        "diffusers",
        start_in="examples/unconditional_image_generation",
        data={"images": "one-class"},
        paths=("src",),
    )
    train = (
        "train_unconditional.py --train_data_dir images --resolution 32 --train_batch_size 2 --num_epochs 1 --output_dir out "
        "--save_images_epochs 5 --save_model_epochs 5 --dataloader_num_workers 0"
    )
    return (
        images("single", train, "--steps 3"),
        images("fp16 GradScaler, EMA", f"{train} --mixed_precision fp16 --use_ema", "--steps 3"),
        images(
            "DDP 2, bf16", f"accelerate launch --num_processes 2 {train} --mixed_precision bf16", "--steps 3"
        ),
    )


CASES = (*_transformers(), *_accelerate(), *_diffusers())
