"""Train bert-large as the single-GPU page of the transformers docs does: python bert_trainer.py --batch 4 --fp16

512 random sequences of 512 tokens, two labels, transformers' model in float32, AdamW; micro-batches, gradient
checkpointing and fp16 autocast with a gradient scaler are options, as they are of the Trainer.
Source: transformers, docs/source/en/perf_train_gpu_one.mdx.
"""

from __future__ import annotations

import argparse
import contextlib

import torch

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=("adamw", "adafactor"), default="adamw")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    from transformers import Adafactor, BertConfig, BertForSequenceClassification

    args = parse()
    config = BertConfig(vocab_size=30522, attn_implementation="eager", **LARGE)
    model = BertForSequenceClassification(config).cuda()
    print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    else:
        optimizer = Adafactor(model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False)
    scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            tokens = torch.randint(100, 30000, (args.batch, args.seq_len)).cuda()
            labels = torch.randint(0, 2, (args.batch,)).cuda()
            with torch.autocast("cuda", torch.float16) if args.fp16 else contextlib.nullcontext():
                loss = model(input_ids=tokens, labels=labels).loss / args.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)  # torch at that time filled gradients with zeros
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
