"""A Hugging Face Trainer script, as in the course: dataset, TrainingArguments, train()."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.arange(i, i + 32) % 100
        return {"input_ids": ids, "labels": ids}


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=64))
args = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=4,
    max_steps=4,
    gradient_accumulation_steps=2,
    bf16=True,
    gradient_checkpointing=True,
    logging_steps=1,
    save_strategy="steps",
    save_steps=2,
    report_to=[],
)
trainer = Trainer(model=model, args=args, train_dataset=Tokens())
result = trainer.train()
print("trained on", next(model.parameters()).device, "steps", result.global_step)
