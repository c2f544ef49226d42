# Trainer with an evaluation at every save and the best model loaded at the end
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        tokens = torch.randint(0, 1000, (16,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=1000, n_positions=64))
arguments = TrainingArguments(
    output_dir="ck",
    max_steps=2,
    per_device_train_batch_size=2,
    save_steps=1,
    save_total_limit=2,
    eval_strategy="steps",
    eval_steps=1,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
    report_to=[],
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.train()

assert sorted(name for name in os.listdir("ck") if name.startswith("checkpoint-")) == [
    "checkpoint-1",
    "checkpoint-2",
]
assert os.path.exists("ck/checkpoint-2/trainer_state.json")
assert os.path.exists("ck/checkpoint-2/model.safetensors")
print("DONE")
