"""Hugging Face Trainer with FSDP, either version, started by torchrun."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

folder, version = sys.argv[1], int(sys.argv[2])
model = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2000,
    )
)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.arange(64) + i
        return {"input_ids": ids, "labels": ids}


arguments = TrainingArguments(
    output_dir=folder,
    per_device_train_batch_size=2,
    max_steps=3,
    bf16=True,
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "version": version},
    report_to=[],
    save_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
trainer.train()
print("steps", trainer.state.global_step)
