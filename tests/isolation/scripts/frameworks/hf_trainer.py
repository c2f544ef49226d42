# Hugging Face's Trainer with save_total_limit, in a folder where checkpoints of a real training are
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        tokens = torch.randint(0, 1000, (16,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=1000, n_positions=64))
arguments = TrainingArguments(
    output_dir="ck",
    max_steps=3,
    per_device_train_batch_size=2,
    save_steps=1,
    save_total_limit=1,
    report_to=[],
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
trainer.train()
trainer.save_model("ck/final")

# the real ones are older, so they went first
assert [name for name in os.listdir("ck") if name.startswith("checkpoint-")] == ["checkpoint-3"]
assert os.path.exists("ck/checkpoint-3/training_args.bin")
assert os.path.exists("ck/final/model.safetensors")
print("DONE")
