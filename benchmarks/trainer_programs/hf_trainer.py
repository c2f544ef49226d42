"""A Hugging Face Trainer on made-up tokens; FSDP, DeepSpeed and the rest by its own options."""

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.arange(i, i + 32) % 500
        return {"input_ids": ids, "labels": ids}


if __name__ == "__main__":
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens())
    trainer.train()
    trainer.save_model()
