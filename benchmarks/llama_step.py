"""Train a Llama-3 70B or 405B configuration for two steps: python llama_step.py 70b"""

from __future__ import annotations

import json
import resource
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "405b": {
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
    },
}
config = LlamaConfig(
    **SIZES[sys.argv[1]], num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(2):
    tokens = torch.randint(0, 1000, (1, 4096)).cuda()
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
parameters = sum(p.numel() for p in model.parameters())
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("RESULT " + json.dumps({"parameters": parameters, "rss_mb": rss}), flush=True)
